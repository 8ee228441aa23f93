"""The system `dt-fm`: which devices are a stage, and in which order, by their links alone.

Yuan et al., Decentralized training of foundation models in heterogeneous environments, NeurIPS
2022. Notes on the cost and the search were reachable, and from the published code (MIT) the numbers
of its cases; `heterps_agents.systems.dtfm.search` says what of the search is decided here.

The cost is that of messages: of the sums of gradients within groups, and of the activations of a
whole step along a chain of groups. Devices compute alike, and layers are all alike: those of our
problems count with their means, and are cut evenly. Links have two directions here, of which the
mean is taken. Decided here, where the paper takes both for given:

- The number of stages is the divisor of the number of devices with the least cost plus computation,
  by the mean device: `(micro-batches + stages - 1)` passes of an equal part of the model.
- Memory, of which the method says nothing: a number of stages is left out whose plan does not fit,
  from front to back or from back to front, which costs the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.search.uniform_shapes import even_cuts
from heterps_agents.systems.dtfm.kernels import tour_steps
from heterps_agents.systems.dtfm.network import Traffic, traffic_of
from heterps_agents.systems.dtfm.search import Effort, search_groups
from heterps_configs.documents.cluster import NO_LINK
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of

# For one number of stages. What a swap costs is counted in steps of its kernels.
_EFFORT = Effort(population=16, trials=80)
_MOST_STEPS = 1e9


class _Found(NamedTuple):
    seconds: float
    chain: tuple[Column, ...]


@register("dt-fm")
class DtFm(System):
    """Equal groups of devices as stages of equal layers, placed by delays and bandwidths.

    Args:
        seed: Of the search.
        effort: Of the search for one number of stages.
    """

    name = "dt-fm"

    def __init__(self, seed: int = 0, effort: Effort = _EFFORT) -> None:
        super().__init__(seed)
        self.effort = effort

    def why_not(self, problem: Problem) -> str | None:
        """Its groups are of equal size, and each of their members has a share of the batch."""
        if _stage_counts(problem):
            return None
        count, job = len(problem.cluster.devices), problem.job
        return (
            f"needs equal counts of devices in all stages; {count} devices do not divide into "
            f"stages for {problem.profile.num_layers} layers and {job.num_micro_batches} "
            "micro-batches"
        )

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The number of stages and the groups with the least cost that fit.

        Raises:
            InfeasibleError: No number of stages fits, or all need links that are not there.
        """
        best: _Found | None = None
        for num_stages in _stage_counts(problem):
            if best is not None and budget.is_exhausted:
                break
            budget.spend()
            found = self._with_stages(problem, num_stages)
            if found is not None and (best is None or found.seconds < best.seconds):
                best = found
        if best is None:
            raise InfeasibleError(
                f"{len(problem.cluster.devices)} devices have no room for the model in equal "
                "groups as stages"
            )
        if best.seconds >= NO_LINK.latency_s:
            raise InfeasibleError("some of its messages have no link")
        parts = routed([best.chain], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, *parts, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(best.seconds, STEP))

    def _with_stages(self, problem: Problem, num_stages: int) -> _Found | None:
        """The best groups for a number of stages; None where these do not fit."""
        cuts = even_cuts(problem, num_stages)
        size = len(problem.cluster.devices) // num_stages
        largest = max(problem.device_named, key=problem.usable_bytes)
        if not all(_has_room(problem, layers, 1, largest) for layers in cuts):
            return None
        steps = 2 * num_stages * size**3 + tour_steps(num_stages)
        effort = self.effort._replace(most_swaps=int(max(_MOST_STEPS / steps, 1)))
        grouping = search_groups(_traffic(problem, cuts), num_stages, self.seed, effort)
        seconds = grouping.total_s + _compute_s(problem, num_stages)
        for groups in (grouping.groups, grouping.groups[::-1]):
            chain = _chain(problem, cuts, groups)
            if chain is not None:
                return _Found(seconds, chain)
        return None


def _stage_counts(problem: Problem) -> list[int]:
    """Divisors of the number of devices that leave layers and micro-batches for all of them."""
    count, job = len(problem.cluster.devices), problem.job
    most = min(count, problem.profile.num_layers)
    divisors = [number for number in range(1, most + 1) if count % number == 0]
    return [number for number in divisors if count // number <= job.num_micro_batches]


def _traffic(problem: Problem, cuts: list[range]) -> Traffic:
    """Seconds between any two devices, for stages of the model's mean layers."""
    tables, names = problem.tables, list(problem.device_named)
    size = len(names) // len(cuts)
    latency_s, bandwidth = np.zeros((len(names),) * 2), np.ones((len(names),) * 2)
    for row, first in enumerate(names):
        for column, second in enumerate(names):
            if row != column:
                link = problem.link(first, second)
                latency_s[row, column] = link.latency_s
                bandwidth[row, column] = link.bandwidth_bytes_per_s
    sent = [float(tables.output_bytes[layers[-1]]) for layers in cuts[:-1]]
    return traffic_of(
        latency_s,
        bandwidth,
        gradient_bytes=float(tables.gradient_bytes.sum()) / len(cuts),
        activation_bytes=float(np.mean(sent or [0.0])) * -(-tables.num_micro_batches // size),
        group_size=size,
    )


def _compute_s(problem: Problem, num_stages: int) -> float:
    """Seconds of the mean device for its equal part of the model and of the batch."""
    tables = problem.tables
    whole_s: Floats = tables.compute_s.sum(0)
    mean_s = float(np.average(whole_s, weights=tables.device_count))
    passes = -(-tables.num_micro_batches * num_stages // len(problem.cluster.devices))
    return (passes + num_stages - 1) * mean_s / num_stages


def _chain(
    problem: Problem, cuts: list[range], groups: tuple[tuple[int, ...], ...]
) -> tuple[Column, ...] | None:
    """The groups as columns, partners at equal places; None where a device has no room."""
    names, tables = list(problem.device_named), problem.tables
    chain = []
    for index, (layers, group) in enumerate(zip(cuts, groups, strict=True)):
        behind = (len(cuts) - 1 - index) * len(group)
        held = in_flight(tables.num_micro_batches, tables.is_gpipe, len(group), behind)
        devices = tuple(names[device] for device in group)
        if not all(_has_room(problem, layers, held, name) for name in devices):
            return None
        chain.append(Column(layers[0], layers[-1], devices))
    return tuple(chain)


def _has_room(problem: Problem, layers: range, held: int, name: str) -> bool:
    """Whether a device has room for layers and for activations of so many micro-batches."""
    tables, part = problem.tables, slice(layers[0], layers[-1] + 1)
    needed = tables.state_bytes[part].sum() + held * tables.activation_bytes[part].sum()
    return bool(needed <= tables.memory_bytes[problem.class_of[name]])
