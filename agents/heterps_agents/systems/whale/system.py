"""The system `whale`: the whole model on every device, more for fast ones; else a pipeline.

Jia et al., Whale: Efficient giant model training over heterogeneous GPUs, USENIX ATC 2022. The
abstract and notes on the paper's balance were reachable; the published code (EasyParallelLibrary)
has no balance of unlike devices. In the paper a user says what is replicated and what is a
pipeline. Decided here, where that leaves a choice:

- The model is replicated where the devices have room for it together, and a pipeline else.
- Units of load are micro-batches of replicas, and layers of a pipeline; a replica's power is
  micro-batches per second, by the profile, a stage's the model's layers per second.
- Stages are in the order of memory, the largest in front, since these keep most activations; each
  type's devices stand together. Memory of a stage is counted for 1F1B.
- Own cost: the longest time of a device for its load; it has no term for messages and sums.
"""

from __future__ import annotations

from collections.abc import Sequence

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.whale.balance import balanced
from heterps_configs.documents.plan import Pipeline
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

Parts = tuple[tuple[Stage, ...], tuple[Pipeline, ...]]


@register("whale")
class Whale(System):
    """Loads in proportion to power, within memory: of replicas, or of the stages of a pipeline."""

    name = "whale"

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Replicas on all devices where they have room for the batch; else one pipeline.

        Raises:
            InfeasibleError: Neither fits by the method's own count of memory.
        """
        budget.spend()
        found = _replicas(problem) or _pipeline(problem)
        if found is None:
            raise InfeasibleError("the devices have no room for the model, replicated or in a row")
        (stages, pipelines), own_s = found
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(own_s, STEP))


def _replicas(problem: Problem) -> tuple[Parts, float] | None:
    """The whole model on every device that gets micro-batches, and the longest time of one."""
    names = list(problem.device_named)
    kinds = [problem.class_of[name] for name in names]
    tables = problem.tables
    each_s = [max(float(tables.compute_s[:, kind].sum()), 1e-30) for kind in kinds]
    state, kept = float(tables.state_bytes.sum()), float(tables.activation_bytes.sum())

    def has_room(index: int, load: int) -> bool:
        in_flight = load if tables.is_gpipe else min(load, 1)
        room = float(tables.memory_bytes[kinds[index]])
        return load == 0 or state + in_flight * kept <= room

    power = [1 / seconds for seconds in each_s]
    loads = balanced(problem.job.num_micro_batches, power, has_room)
    if loads is None:
        return None
    last = problem.profile.num_layers - 1
    chains, shares, taken = [], [], 0
    for name, load in zip(names, loads, strict=True):
        if load:
            chains.append((Column(0, last, (name,)),))
            shares.append(range(taken, taken + load))
            taken += load
    longest_s = max(load * seconds for load, seconds in zip(loads, each_s, strict=True))
    return routed(chains, shares), longest_s


def _pipeline(problem: Problem) -> tuple[Parts, float] | None:
    """Layers in proportion to power, from the device with most memory on."""
    tables, num_layers = problem.tables, problem.profile.num_layers
    largest_first = sorted(
        problem.device_named, key=lambda name: -tables.memory_bytes[problem.class_of[name]]
    )[:num_layers]
    kinds = [problem.class_of[name] for name in largest_first]
    power = [1 / max(float(tables.compute_s[:, kind].sum()), 1e-30) for kind in kinds]
    state, kept = tables.state_bytes, tables.activation_bytes

    def has_room(index: int, load: int) -> bool:
        """Of so many layers of mean size: where they stand is known at the end."""
        num_behind = len(kinds) - index
        held = tables.num_micro_batches if tables.is_gpipe else num_behind
        held = min(held, tables.num_micro_batches)
        needed = load * float(state.mean() + held * kept.mean())
        return bool(needed <= tables.memory_bytes[kinds[index]])

    loads = balanced(num_layers, power, has_room)
    if loads is None:
        return None
    columns, seconds = _columns(problem, largest_first, loads)
    num_micro_batches = problem.job.num_micro_batches
    parts = routed([tuple(columns)], [range(num_micro_batches)])
    return parts, sum(seconds) + (num_micro_batches - 1) * max(seconds)


def _columns(
    problem: Problem, names: Sequence[str], loads: Sequence[int]
) -> tuple[list[Column], list[float]]:
    """A stage for each device that gets layers, and its seconds for a micro-batch."""
    columns, seconds, first = [], [], 0
    for name, load in zip(names, loads, strict=True):
        if load:
            columns.append(Column(first, first + load - 1, (name,)))
            own = problem.tables.compute_s[first : first + load, problem.class_of[name]]
            seconds.append(float(own.sum()))
            first += load
    return columns, seconds
