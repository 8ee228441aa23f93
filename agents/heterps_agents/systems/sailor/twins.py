"""GPU types of equal times, memory and links under different names: one type for the planner.

A stage's replicas are of one GPU type. Without this, renaming some of many equal GPUs would keep
them out of the others' stages, and the same machine would get another plan.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from heterps_agents.systems.sailor.goal import SailorGoal
from heterps_configs.importers.sailor import (
    SailorCluster,
    SailorEnd,
    SailorLink,
    SailorLinks,
    SailorModel,
)
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage

# The names of each merged type and how many GPUs each has; the first name stands for all.
Twins = dict[str, dict[str, int]]


def find_twins(
    model: SailorModel,
    cluster: SailorCluster,
    links: SailorLinks,
    num_gpus: Mapping[str, int],
    goal: SailorGoal = SailorGoal(),
) -> Twins:
    """Groups the GPU types that only their names tell apart, not even their prices.

    Types are merged only where tensor-parallel groups cannot straddle two names: every degree
    divides the larger ones, and the largest divides the number of GPUs of each name.
    """
    twins: Twins = {}
    for name, count in num_gpus.items():
        for first, members in twins.items():
            if all(_whole_groups(model, other, number) for other, number in members.items()) and (
                _whole_groups(model, name, count)
                and all(goal.usd_per_s(name) == goal.usd_per_s(other) for other in members)
                and all(_are_twins(model, cluster, links, name, other) for other in members)
            ):
                twins[first][name] = count
                break
        else:
            twins[name] = {name: count}
    return twins


def with_names(plan: SailorPlan, twins: Twins) -> SailorPlan:
    """Gives every group of a plan for merged types one of their names, widest groups first."""
    left = {first: dict(members) for first, members in twins.items()}
    places = sorted(
        (-group.tensor_parallel, stage, replica)
        for stage, entry in enumerate(plan.stages)
        for replica, group in enumerate(entry.groups)
    )
    groups = [list(stage.groups) for stage in plan.stages]
    for width, stage, replica in places:
        group = groups[stage][replica]
        name = next(other for other, count in left[group.gpu].items() if count >= -width)
        left[group.gpu][name] += width
        groups[stage][replica] = SailorGroup(name, group.tensor_parallel, group.zone)
    stages = tuple(
        SailorStage(stage.first_layer, stage.end_layer, tuple(named))
        for stage, named in zip(plan.stages, groups, strict=True)
    )
    return plan._replace(stages=stages)


def _whole_groups(model: SailorModel, name: str, count: int) -> bool:
    degrees = sorted({shape.tensor_parallel for shape in model.times if shape.gpu == name})
    chained = all(larger % smaller == 0 for smaller, larger in itertools.pairwise(degrees))
    return chained and count % (degrees[-1] if degrees else 1) == 0


def _are_twins(
    model: SailorModel, cluster: SailorCluster, links: SailorLinks, one: str, other: str
) -> bool:
    if cluster.node_type(one) != cluster.node_type(other):
        return False
    times = [
        {shape[1:]: layers for shape, layers in model.times.items() if shape.gpu == name}
        for name in (one, other)
    ]
    return times[0] == times[1] and _links_of(links, one, other) == _links_of(links, other, one)


def _links_of(
    links: SailorLinks, name: str, twin: str
) -> dict[tuple[SailorEnd, SailorEnd], SailorLink]:
    """The links of a type, under a name that it shares with its twin.

    The links between the two must be those inside each.
    """
    shared = {name: "", twin: ""}

    def renamed(end: SailorEnd) -> SailorEnd:
        return end._replace(gpu=shared.get(end.gpu, end.gpu))

    found: dict[tuple[SailorEnd, SailorEnd], SailorLink] = {}
    for ends, link in links.links.items():
        if name not in (ends[0].gpu, ends[1].gpu):
            continue
        key = renamed(ends[0]), renamed(ends[1])
        if found.setdefault(key, link) != link:
            # Never equal to the links of another type.
            return {key: SailorLink((0.0, 0.0, 0.0), float("nan"))}
    return found
