"""The figures of a step: how busy its devices were, and what the passes of their stages took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heterps_configs.documents.estimate import TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.link_times import RouteSeconds
from heterps_runtime.results.measurements import PassSeconds, pass_seconds

# What counts as computing; the simulator counts the same.
COMPUTE = frozenset(("forward", "backward", "backward-input", "backward-weight", "step"))


def without_overlap(records: Sequence[ActionRecord]) -> list[ActionRecord]:
    """The actions of one device, each ended at the latest when the next one takes the device.

    An emulated device whose host was late goes on at the time at which it should have been done.
    Messages and gradient sums under way do not take the device.
    """
    found, next_s = [], math.inf
    for record in reversed(records):
        if record.kind not in ("send", "reduce"):
            record = record._replace(end_s=max(record.start_s, min(record.end_s, next_s)))
            next_s = record.start_s
        found.append(record)
    return found[::-1]


def busy_s(records: Sequence[ActionRecord]) -> float:
    """Seconds of a step in which a device computes, as `without_overlap` has them."""
    busy_s, next_s = 0.0, math.inf
    # Every step of every rank does this: no records are made anew.
    for kind, _, _, start_s, end_s in reversed(records):
        if kind not in ("send", "reduce"):
            if kind in COMPUTE:
                busy_s += max(0.0, min(end_s, next_s) - start_s)
            next_s = start_s
    return busy_s


def bubble_share(busy_s: float, step_time_s: float) -> float:
    """Share of a step in which a device computes nothing.

    Computing are forward and backward passes, also those in two parts, and the optimizer step. All
    else is bubble: waiting for messages and for slower devices, gradient all-reduces, and what the
    host needs between two actions. A device without a stage has none.
    """
    return max(0.0, 1 - busy_s / step_time_s) if step_time_s > 0 else 0.0


class StagePasses(NamedTuple):
    """One stage in one step: median seconds of a full micro-batch's passes."""

    device: str
    stage: str
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class StepFigures:
    """What a step takes, measured or predicted.

    Attributes:
        step_time_s: Of all devices together.
        bubble_shares: Of each device of the plan; empty where actions are not measured.
        stages: Seconds of their passes.
        memory_bytes: Peak of each device; empty until it is measured.
        links: Seconds of their messages, where they are timed and known.
    """

    step_time_s: float
    bubble_shares: Mapping[str, float] = field(default_factory=dict)
    stages: tuple[StagePasses, ...] = ()
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    links: tuple[RouteSeconds, ...] = ()


def step_row(plan: Plan, device: str, records: Sequence[ActionRecord]) -> list[float]:
    """What a rank tells of a step: busy seconds, then two numbers for each of its stages.

    Rows of all devices are equally long, so that one gathering takes them.
    """
    return row_of_passes(plan, device, busy_s(records), pass_seconds(plan.job, records))


def row_of_passes(plan: Plan, device: str, busy_s: float, passes: PassSeconds) -> list[float]:
    """The same where the seconds of the passes are known already."""
    seconds: dict[tuple[str, str], list[float]] = {}
    for (kind, stage, _), taken_s in passes.items():
        seconds.setdefault((kind, stage), []).append(taken_s)
    row = [busy_s]
    for stage in _stages_of(plan, device):
        row += [statistics.median(seconds.get((k, stage), (0.0,))) for k in ("forward", "backward")]
    return row + [0.0] * (1 + 2 * _most_stages(plan) - len(row))


def step_figures(
    plan: Plan,
    step_time_s: float,
    rows: Mapping[str, Sequence[float]],
    memory_bytes: Mapping[str, int],
    links: Sequence[RouteSeconds] = (),
) -> StepFigures:
    """The figures of a step.

    Args:
        plan: What ran.
        step_time_s: How long it took.
        rows: What the device of each rank told; empty where actions are not measured.
        memory_bytes: Peak of each device, where it is known.
        links: Seconds of messages, where they are known.
    """
    return StepFigures(
        step_time_s,
        {device: bubble_share(row[0], step_time_s) for device, row in rows.items()},
        # Stages that ran nothing are left out.
        tuple(
            StagePasses(device, stage, forward_s, backward_s)
            for device, row in rows.items()
            for stage, forward_s, backward_s in zip(
                _stages_of(plan, device), row[1::2], row[2::2], strict=False
            )
            if forward_s > 0
        ),
        memory_bytes,
        tuple(links),
    )


def timeline_rows(plan: Plan, timeline: Iterable[TimelineEvent]) -> dict[str, list[float]]:
    """What the ranks would tell of a step that went as an estimate's timeline says.

    Of a tensor-parallel group the timeline tells what its first device does; all do the same.
    """
    records: dict[str, list[ActionRecord]] = {device: [] for device in plan.devices}
    for event in timeline:
        records[event.device].append(
            ActionRecord(event.action, event.stage, event.micro_batch, event.start_s, event.end_s)
        )
    return {
        device: step_row(plan, device, records[group[0]])
        for group in plan.device_groups
        for device in group
    }


def measured_timeline(
    ranks: Sequence[dict[str, Any]], records: Sequence[Any]
) -> tuple[TimelineEvent, ...]:
    """Of one step, in the shape of an estimate's timeline; `records` has those of each rank."""
    return tuple(
        TimelineEvent(
            device=rank["device"],
            action=kind,
            stage=stage,
            micro_batch=micro_batch,
            start_s=start_s,
            end_s=end_s,
        )
        for rank, own in zip(ranks, records, strict=True)
        for kind, stage, micro_batch, start_s, end_s in without_overlap(
            [ActionRecord(*record) for record in own]
        )
    )


def _stages_of(plan: Plan, device: str) -> list[str]:
    return [stage.name for stage in plan.stages if device in stage.devices]


def _most_stages(plan: Plan) -> int:
    return max(len(_stages_of(plan, device)) for device in plan.devices)
