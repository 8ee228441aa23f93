"""The system `hap`: groups with uneven tensor shares, or replicas with uneven batches, as a plan.

HAP gives every device a slice of every layer. A plan of ours says two such programs: layers over
one tensor-parallel group of a node, each split (columns and rows, heads, vocabulary, experts),
split by batch or replicated, and all layers on each device or group, which share the micro-batches
(split batch). Of these the one with the least seconds by HAP's own cost that fits is taken, with
shares by its linear programme, rounded to whole units. That cost counts no optimizer: layers that
could be split are replicated or split by batch only where the simulator finds that quicker, too.
Where another program would be quicker by HAP's cost, a note says why plans do not say it, and by
how much.
"""

from __future__ import annotations

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import nodes_of
from heterps_agents.systems.hap.groups import Dealt, deal, share_groups, whole_group
from heterps_agents.systems.hap.joint import best_choice
from heterps_agents.systems.hap.layers import whole_chain
from heterps_agents.systems.hap.words import is_by_batch, layer_ways, program_text
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import estimate

# A cluster of more is no single group of slices.
MAX_DEVICES = 64
# A program that gains less is no news.
_GAIN = 0.01


@register("hap")
class Hap(System):
    """The quickest of the programs that a plan says, by HAP's cost; all devices, or fewer."""

    name = "hap"
    own_way = "makes groups by its own cost"

    def why_not(self, problem: Problem) -> str | None:
        """Every device has a slice of every layer, or a copy of it."""
        count = len(problem.cluster.devices)
        if count > MAX_DEVICES:
            return f"slices layers for up to {MAX_DEVICES} devices; there are {count}"
        return None

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Replicas, a group, or groups of the nodes that are replicas."""
        candidates = sorted(_candidates(problem), key=lambda dealt: dealt.seconds)
        plans = []
        for dealt in candidates:
            budget.spend()
            plans.append(self._plan(problem, dealt))
            if _is_worth_it(problem, plans[-1]):
                break
        else:
            plans = plans[:1]
        chosen = candidates[len(plans) - 1]
        own_cost = OwnCost(chosen.seconds, STEP, _note(problem, chosen))
        return SystemAnswer(plans[-1], own_cost)

    def _plan(self, problem: Problem, dealt: Dealt) -> Plan:
        last = problem.tables.num_layers - 1
        stages = tuple(
            Stage(
                name="s0" if len(dealt.groups) == 1 else f"s0r{index}",
                first_layer=0,
                last_layer=last,
                devices=group.devices,
                tensor_shares=group.shares if len(set(group.shares)) > 1 else (),
                whole_layers=group.whole_layers,
                batch_layers=group.batch_layers,
            )
            for index, group in enumerate(dealt.groups)
        )
        pipelines, first = [], 0
        for stage, count in zip(stages, dealt.micro_batches, strict=True):
            pipelines.append(
                Pipeline(stages=(stage.name,), micro_batches=tuple(range(first, first + count)))
            )
            first += count
        return plan_of(problem, stages, tuple(pipelines), planner=self.name, seed=self.seed)


def _is_worth_it(problem: Problem, plan: Plan) -> bool:
    """Whether it fits, and is no slower than with all layers split that can be."""
    found = estimate(problem, plan)
    split = tuple(stage.changed(whole_layers=(), batch_layers=()) for stage in plan.stages)
    if not found.feasible or split == plan.stages:
        return found.feasible
    other = estimate(problem, plan.changed(stages=split))
    return not other.feasible or found.step_time_s < other.step_time_s


def _candidates(problem: Problem) -> list[Dealt]:
    """Split batch over all devices, those of a node, one; groups of a node, of all as replicas."""
    names = [device.name for device in problem.cluster.devices]
    alone = [whole_group(problem, name) for name in names]
    of_class = {problem.class_of[name]: group for name, group in zip(names, alone, strict=True)}
    found = [deal(problem, alone), *(deal(problem, [group]) for group in of_class.values())]
    nodes = nodes_of(problem)
    groups = [list(share_groups(problem, node)) for node in nodes]
    found += [deal(problem, [group]) for own in groups for group in own]
    if len(nodes) > 1:
        for node in nodes:
            found.append(deal(problem, [group for group in alone if group.devices[0] in node]))
        found += [deal(problem, replicas) for replicas in zip(*groups, strict=False)]
    return found


def _note(problem: Problem, chosen: Dealt) -> str:
    """What a program that plans cannot say would gain; empty where there is none."""
    names = [device.name for device in problem.cluster.devices]
    if len(names) == 1:
        return ""
    best = best_choice(whole_chain(problem, names))
    if best.seconds > chosen.seconds * (1 - _GAIN):
        return ""
    if is_by_batch(best.program):
        why = "micro-batches are dealt as wholes"
    elif len(nodes_of(problem)) > 1:
        why = "a tensor-parallel group is on one node"
    elif "split batch" in layer_ways(best.program):
        why = "gradients of layers by batch are summed for each micro-batch, slices are whole units"
    else:
        why = "slices are whole units"
    return (
        f"by HAP's own cost, which counts no memory, {program_text(best.program)} would take "
        f"{best.seconds:.4g} s a step; in a plan {why}, and the quickest that fits takes "
        f"{chosen.seconds:.4g} s"
    )
