"""Stragglers: layers, micro-batches and groups anew from slow-down ratios, as Malleus does.

Source: Malleus (arXiv 2410.13333, section 4) and the behaviour of its planner. A group of devices
of a node works on a stage together (tensor parallel). Pipelines are built of such groups with the
slow ones in front, where layers need most memory and a slow group has few of them. Two problems
remain: layers for the groups of a pipeline (`min o = max y_j l_j`) and micro-batches for the
pipelines (`min max o_i m_i`). Both are small integer programmes, which are solved exactly by
raising the limit to the next value that any variable can take.

What is compared are the groups as they were, and all groupings of `groups.groupings`, each dealt to
the pipelines in every way that differs. So no answer is slower than keeping the groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from heterps_agents.systems.malleus.dealing import dealt, lengths_of
from heterps_agents.systems.malleus.groups import Pace, RatioPace, group_of, groupings, speed
from heterps_agents.systems.malleus.layers import Solver
from heterps_agents.systems.malleus.memory import Memory
from heterps_agents.systems.malleus.plans import (
    Groups,
    StragglerPlan,
    UniformPlan,
    uniform_groups,
)
from heterps_configs.errors import InfeasibleError

# After so many ways to group and deal no other grouping is begun.
MAX_SOLVED = 200


def replan_stragglers(
    ratios: Mapping[str, float],
    nodes: Sequence[Sequence[str]],
    uniform: UniformPlan,
    memory: Memory | None = None,
    group_factor: Sequence[float] = (1.0, 2.0, 4.0, 8.0),
) -> StragglerPlan:
    """Pipelines that go round stragglers, from ratios alone.

    Args:
        ratios: Measured over normal seconds of each device; missing: 1.
        nodes: Devices of each node.
        uniform: Whose pipelines stay as many; `group_size` is a power of two.
        memory: Of stages; None: without limit.
        group_factor: Seconds of a group of n, n/2, n/4, ... devices over those of n.

    Raises:
        InfeasibleError: There are too few groups, or the layers do not fit.
    """
    pace = RatioPace(ratios, uniform.group_size, group_factor)
    return regroup(pace, nodes, uniform, memory)


def regroup(
    pace: Pace,
    nodes: Sequence[Sequence[str]],
    uniform: UniformPlan,
    memory: Memory | None = None,
    kept: Groups | None = None,
) -> StragglerPlan:
    """Pipelines that go round stragglers.

    Args:
        pace: Of the devices.
        nodes: Devices of each node.
        uniform: Whose pipelines stay as many.
        memory: Of stages; None: without limit.
        kept: Groups that there are; by default those of the equal plan.

    Raises:
        InfeasibleError: There are too few groups, or the layers do not fit.
    """
    best = _best_grouping(pace, nodes, uniform, Solver(uniform, memory, _quickest(pace, nodes)))
    as_before = keep_groups(pace, nodes, uniform, memory, kept)
    # Of equals the first, so that a device that is of no use is suspended.
    if best is None or (as_before is not None and as_before.seconds < best.seconds):
        best = as_before
    if best is None:
        devices = sum(map(len, nodes))
        raise InfeasibleError(
            f"{uniform.num_layers} layers fit on no {uniform.num_pipelines} pipelines of the "
            f"groups of its {devices} devices"
        )
    return best.without_idle(nodes)


def keep_groups(
    pace: Pace,
    nodes: Sequence[Sequence[str]],
    uniform: UniformPlan,
    memory: Memory | None = None,
    kept: Groups | None = None,
) -> StragglerPlan | None:
    """The groups as they were, with other layers and micro-batches.

    Args:
        pace: Of the devices.
        nodes: Devices of each node.
        uniform: What is shared.
        memory: Of stages; None: without limit.
        kept: The groups of each pipeline, from the front; by default those of the equal plan.

    Returns:
        None where there are no such groups, or something does not fit.
    """
    found = kept or uniform_groups(nodes, uniform)
    if found is None:
        return None
    pipelines = [[group_of(devices, pace) for devices in own] for own in found]
    plan = Solver(uniform, memory, _quickest(pace, nodes)).in_order(pipelines)
    return plan and plan.without_idle(nodes)


def _best_grouping(
    pace: Pace, nodes: Sequence[Sequence[str]], uniform: UniformPlan, solver: Solver
) -> StragglerPlan | None:
    """The best of all ways to group and deal devices, the first of equals."""
    places = uniform.num_pipelines * uniform.num_stages
    best, num_solved = None, 0
    for groups in groupings(nodes, pace, places, solver.kind):
        # Those behind it have no more speed, and even this one, shared freely, would be slower.
        least = uniform.num_layers * uniform.num_micro_batches / speed(groups, places)
        if num_solved >= MAX_SOLVED or (best is not None and least >= best.seconds):
            break
        lengths = lengths_of(len(groups), uniform.num_pipelines, uniform.num_stages)
        for own in dealt(groups, lengths, solver.is_slow, solver.kind) if all(lengths) else ():
            num_solved += 1
            plan = solver.best_order(own, math.inf if best is None else best.seconds)
            best = plan or best
    return best


def _quickest(pace: Pace, nodes: Sequence[Sequence[str]]) -> float:
    """Slow-down of the quickest group that there could be."""
    return min(
        pace.seconds(name, degree) for node in nodes for name in node for degree in pace.degrees
    )
