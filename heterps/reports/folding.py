"""Equal devices as one row: hundreds of rows are a table that nobody reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from heterps.reports.ways import plan_ways_text, way_text
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem

# More rows than this do not fit a screen, nor a page.
MOST_ROWS = 24
# Ranges of names that one cell has room for.
MOST_RANGES = 3
_NUMBER = re.compile(r"(\d+)")
_REPLICA = re.compile(r"(.+)r\d+")


class StageGroup(NamedTuple):
    """Replicas of a stage on devices of one type; in large plans, of several stages of one size.

    Attributes:
        label: `s0 x 8`: eight replicas; `s4..7 x 2`: two of each.
        stages: Their names.
        devices: In the cluster's order.
        type: Of the devices.
        first_layer: Of the first stage.
        last_layer: Of the last one.
        num_stages: How many stages follow one another; 1 but in large plans.
        degree: Devices that carry out a replica together.
        way: How (`heterps.reports.ways`); empty: one device that keeps all.
    """

    label: str
    stages: tuple[str, ...]
    devices: tuple[str, ...]
    type: str
    first_layer: int
    last_layer: int
    num_stages: int = 1
    degree: int = 1
    way: str = ""

    @property
    def layers(self) -> str:
        """`3-6`, or `3-6, 2 each` of several stages."""
        text = f"{self.first_layer}-{self.last_layer}"
        if self.num_stages == 1:
            return text
        return f"{text}, {(self.last_layer - self.first_layer + 1) // self.num_stages} each"


def stage_groups(problem: Problem, plan: Plan) -> list[StageGroup]:
    """The stages of a plan, replicas on devices of one type together.

    Where these are too many for a table still, stages that follow one another with as many layers
    and as many replicas on the same type are one group, too.
    """
    found: dict[tuple[int, int, str, int, str], list[Stage]] = {}
    for stage in plan.stages:
        types = dict.fromkeys(problem.device_named[name].type.name for name in stage.devices)
        kind = " and ".join(types) if len(types) < 3 else f"{len(types)} types"
        way = way_text(plan, stage)
        key = stage.first_layer, stage.last_layer, kind, stage.degree, way
        found.setdefault(key, []).append(stage)
    order = {device.name: index for index, device in enumerate(problem.cluster.devices)}
    groups = []
    for (first, last, kind, degree, way), stages in found.items():
        names = tuple(stage.name for stage in stages)
        used = {name for stage in stages for name in stage.devices}
        devices = sorted(used, key=order.__getitem__)
        label = _label([names])
        groups.append(StageGroup(label, names, tuple(devices), kind, first, last, 1, degree, way))
    return groups if len(groups) <= MOST_ROWS else _chained(groups)


def _chained(groups: Sequence[StageGroup]) -> list[StageGroup]:
    """Groups that follow one another and differ in nothing but their layers, as one."""
    runs: list[list[StageGroup]] = []
    for group in groups:
        if runs and _continues(runs[-1][-1], group):
            runs[-1].append(group)
        else:
            runs.append([group])
    return [
        run[0]
        if len(run) == 1
        else StageGroup(
            _label([group.stages for group in run]),
            tuple(name for group in run for name in group.stages),
            tuple(name for group in run for name in group.devices),
            run[0].type,
            run[0].first_layer,
            run[-1].last_layer,
            len(run),
            run[0].degree,
            run[0].way,
        )
        for run in runs
    ]


def _continues(before: StageGroup, group: StageGroup) -> bool:
    sizes = [each.last_layer - each.first_layer for each in (before, group)]
    return (
        before.last_layer + 1 == group.first_layer
        and sizes[0] == sizes[1]
        and before.type == group.type
        and len(before.stages) == len(group.stages)
        and len(before.devices) == len(group.devices)
        and before.way == group.way
    )


def _label(stages: Sequence[Sequence[str]]) -> str:
    """Of stages, each with the names of its replicas."""
    count = len(stages[0])
    if count == 1:
        return folded_names(names[0] for names in stages)
    stems: list[str] = []
    for names in stages:
        found = {match[1] for name in names if (match := _REPLICA.fullmatch(name)) is not None}
        if len(found) != 1:
            return folded_names(name for names in stages for name in names)
        stems += found
    return f"{folded_names(stems)} x {count}"


def folded_names(names: Iterable[str], most: int = MOST_RANGES) -> str:
    """Names for people: `h100-b-0..7`, `node0..3-0..7`.

    Args:
        names: Of any kind; they are sorted, numbers by their value.
        most: How many ranges are shown; the rest is counted.
    """
    # Every second part is a number, as its first and its last value.
    parts = [tuple(_NUMBER.split(name)) for name in dict.fromkeys(names)]
    parts.sort(key=lambda name: [int(p) if i % 2 else p for i, p in enumerate(name)])
    ranges = [[(part, part) for part in name] for name in parts]
    counts = [1] * len(ranges)
    for position in range(max((len(r) for r in ranges), default=0) - 1, -1, -1):
        if position % 2:
            ranges, counts = _merged(ranges, counts, position)
    texts = ["".join(a if a == b else f"{a}..{b}" for a, b in entry) for entry in ranges]
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[: most - 1])} and {sum(counts[most - 1 :])} more"


_Range = list[tuple[str, str]]


def _merged(
    ranges: Sequence[_Range], counts: Sequence[int], position: int
) -> tuple[list[_Range], list[int]]:
    """Neighbours that differ in one number only, by one, as one range."""
    found: list[_Range] = []
    sums: list[int] = []
    for entry, count in zip(ranges, counts, strict=True):
        before = found[-1] if found else []
        if len(before) == len(entry) > position:
            last = before[position][1]
            rest = [each[:position] + each[position + 1 :] for each in (before, entry)]
            if rest[0] == rest[1] and entry[position][0] == str(int(last) + 1).zfill(len(last)):
                before[position] = before[position][0], entry[position][1]
                sums[-1] += count
                continue
        found.append(list(entry))
        sums.append(count)
    return found, sums


def idle_text(problem: Problem, used: Iterable[str]) -> str:
    """The devices without a stage, where they are many by type: `40 A10G`; empty for none."""
    names = set(used)
    idle = [device for device in problem.cluster.devices if device.name not in names]
    if len(idle) <= MOST_RANGES:
        return ", ".join(device.name for device in idle)
    counts = Counter(device.type.name for device in idle)
    return ", ".join(
        f"{count} {kind} ({folded_names(d.name for d in idle if d.type.name == kind)})"
        for kind, count in counts.items()
    )


def folded_estimate(
    problem: Problem, plan: Plan, estimate: Estimate, *, with_types: bool = True
) -> Estimate:
    """For tables and figures: of many devices, of each group the fullest one, named as the group.

    Small plans keep a row for each device, or for each group that works as one (tensor parallel).

    Args:
        problem: Of the plan.
        plan: What the estimate is of.
        estimate: With whatever is to be shown of it.
        with_types: Names say the device type, too, and not only where it tells two groups apart.
    """
    if len(plan.devices) <= MOST_ROWS:
        if all(len(group) == 1 for group in plan.device_groups):
            return estimate
        labels = _group_labels(plan, estimate.memory_bytes)
    else:
        labels = _labels(problem, plan, estimate.memory_bytes, with_types)
    return estimate.changed(
        memory_bytes=_renamed(labels, estimate.memory_bytes),
        memory_limit_bytes=_renamed(labels, estimate.memory_limit_bytes),
        timeline=tuple(
            event.model_copy(update={"device": labels[event.device]})
            for event in estimate.timeline
            if event.device in labels
        ),
        memory_curves=tuple(
            curve.changed(device=labels[curve.device])
            for curve in estimate.memory_curves
            if curve.device in labels
        ),
    )


def stage_stem(name: str) -> str:
    """The stage that replicas of it are named after: `s0` of `s0r3`."""
    found = _REPLICA.fullmatch(name)
    return name if found is None else found[1]


def folded_title(title: str, plan: Plan) -> str:
    """The title of a figure of `folded_estimate`, with how stages are carried out.

    Where rows are groups of stages, it says what they show.
    """
    way = plan_ways_text(plan)
    title = f"{title}; {way}, micro-batches of {plan.job.micro_batch_size}" if way else title
    if len(plan.devices) <= MOST_ROWS:
        return title
    return f"{title}; a row is the fullest device of its group"


def _group_labels(plan: Plan, used_bytes: Mapping[str, int]) -> dict[str, str]:
    """By the fullest device of each tensor-parallel group: its devices, as one row."""
    return {
        max(group, key=lambda name: used_bytes.get(name, 0)): folded_names(group)
        + (f" ({len(group)} as one)" if len(group) > 1 else "")
        for group in plan.device_groups
    }


def _labels(
    problem: Problem, plan: Plan, used_bytes: Mapping[str, int], with_types: bool
) -> dict[str, str]:
    """By the device that stands for its group: what the group is called."""
    groups_of: dict[str, list[StageGroup]] = {}
    for group in stage_groups(problem, plan):
        for name in group.devices:
            groups_of.setdefault(name, []).append(group)
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, groups in groups_of.items():
        kind = problem.device_named[name].type.name
        alike.setdefault((*(group.label for group in groups), kind), []).append(name)
    found: dict[str, str] = {}
    for (*stages, kind), names in alike.items():
        more = "" if len(stages) == 1 else f" and {len(stages) - 1} more"
        label = f"{stages[0]}{more}"
        degree = groups_of[names[0]][0].degree
        if with_types or label in found.values():
            label += f", {kind}" if degree == 1 else f", {degree} {kind} each"
        if label in found.values():
            label += f": {folded_names(names)}"
        found[max(names, key=lambda name: used_bytes.get(name, 0))] = label
    return found


def _renamed(labels: Mapping[str, str], values: Mapping[str, int]) -> dict[str, int]:
    return {label: values[name] for name, label in labels.items() if name in values}
