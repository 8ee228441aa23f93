"""Compiled: a pipeline beside others that hold its layers, too, by the closed form of chains.

Each of its stages ends with a sum of gradients over all of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from heterps_envs.closed_form.formula import Built, step_with_stage_s
from heterps_envs.closed_form.stage_formula import (
    in_flight,
    most_held,
    stage_after_option_s,
    stage_state_bytes,
)
from heterps_envs.compiled import (
    MINUS_ONE,
    ZERO,
    checked,
    uncounted,
    uncounted_helper,
)


class Beside(NamedTuple):
    """What stands beside a pipeline.

    Attributes:
        share: Micro-batches that the pipeline has.
        others: Other pipelines, on average.
        latency_s: Of the slowest link that sums of gradients take.
        s_per_byte: Of the same link.
        counted: Share of the seconds of sums that no pass hides.
        is_open: Whether stages hold as many micro-batches as fit, beyond the rule of 1F1B.
    """

    share: int
    others: float
    latency_s: float
    s_per_byte: float
    counted: float
    is_open: bool


class Stage(NamedTuple):
    """A stage that may stand in front of others; numbers alone, which are passed on at no cost.

    Attributes:
        stop: The layer behind its last.
        kind: Its option.
        replicas: That take turns.
        share: Micro-batches of the busiest of them.
        forward_s, compute_s: Of a micro-batch, the second one with its backward pass.
        after_s: What follows its last backward pass.
        state_bytes, kept_bytes: At all times, and of each micro-batch in flight.
        room_bytes: Of a device.
    """

    stop: int
    kind: int
    replicas: int
    share: int
    forward_s: float
    compute_s: float
    after_s: float
    state_bytes: float
    kept_bytes: float
    room_bytes: float


@uncounted
def stage_of(k: Any, beside: Any, start: int, stop: int, kind: int, replicas: int) -> Any:
    """The stage of layers `start .. stop - 1` in a pipeline beside others.

    Args:
        k: `KernelTables`.
        beside: `Beside`.
        start: Its first layer.
        stop: The layer behind the last.
        kind: Its option.
        replicas: That take turns.
    """
    after = stage_after_option_s(k, start, stop, kind, replicas)
    if beside.others > 0:
        # A ring over all that hold the layers takes the place of that over the replicas.
        num_bytes = k.gradient_prefix_bytes[stop, kind] - k.gradient_prefix_bytes[start, kind]
        holders = beside.others + replicas
        ring_s = beside.latency_s + num_bytes / holders * beside.s_per_byte
        optimizer = k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind]
        after = max(after, optimizer + beside.counted * 2.0 * (holders - 1.0) * ring_s)
    return Stage(
        stop, kind, replicas, (beside.share + replicas - 1) // replicas,
        k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind],
        k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind],
        after, stage_state_bytes(k, start, stop, kind, replicas),
        k.activation_prefix_bytes[stop, kind] - k.activation_prefix_bytes[start, kind],
        k.memory_bytes[kind],
    )  # fmt: skip


@uncounted
def held_by(stage: Any, beside: Any, is_gpipe: bool, behind: int) -> int:
    """Micro-batches that a replica may hold; 0 where it has no room for those that it must.

    Args:
        stage: `Stage`.
        beside: `Beside`.
        is_gpipe: All of its share.
        behind: Replicas of the stages behind it.
    """
    held: int = in_flight(beside.share, is_gpipe, stage.replicas, behind)
    if stage.state_bytes + held * stage.kept_bytes > stage.room_bytes:
        return 0
    if is_gpipe or behind == 0 or not beside.is_open:
        return held
    room_bytes = stage.room_bytes - stage.state_bytes
    return max(held, most_held(stage.share, room_bytes, stage.kept_bytes))


@uncounted
def put_stage_in_front(
    stage: Any, held: int, latency: float, transfer: float, built: Any
) -> tuple[float, float]:
    """Step time and fill with a stage in front of what is built.

    Args:
        stage: `Stage`.
        held: From `held_by`.
        latency: Of the link behind it.
        transfer: Seconds of the bytes of a message over that link.
        built: `Built`.
    """
    backward, message = stage.compute_s - stage.forward_s, 2.0 * (latency + transfer)
    step_s = step_with_stage_s(
        stage.forward_s, backward, stage.after_s, built, stage.share, held, transfer, latency
    )
    return step_s, stage.compute_s + (message + built.fill_s if built.kind >= 0 else 0.0)


@checked
def pipeline_steps_s(k: Any, beside: Any, stages: Any, shares: Any, step_s: Any) -> None:
    """Writes the closed form of one pipeline beside others; inf where it does not fit.

    Args:
        k: `KernelTables`.
        beside: `Beside`, whose share does not count.
        stages: (S, 3) rows of (layer behind the last, option, replicas), front first.
        shares: (N,) numbers of micro-batches.
        step_s: (N,) written to.
    """
    for index in range(len(shares)):
        own = Beside(
            shares[index], beside.others, beside.latency_s, beside.s_per_byte, beside.counted,
            beside.is_open,
        )  # fmt: skip
        step_s[index] = _pipeline_step_s(k, own, stages)


@uncounted_helper
def _pipeline_step_s(k: Any, beside: Any, stages: Any) -> float:
    step_s, fill_s, behind, kind = 0.0, 0.0, ZERO, MINUS_ONE
    for row in range(len(stages) - 1, -1, -1):
        stop, own, replicas = stages[row, 0], stages[row, 1], min(stages[row, 2], beside.share)
        start = stages[row - 1, 0] if row > 0 else 0
        stage = stage_of(k, beside, start, stop, own, replicas)
        held = held_by(stage, beside, k.is_gpipe, behind)
        if held == 0:
            return math.inf
        latency, transfer = link_behind(k, stop, own, kind)
        step_s, fill_s = put_stage_in_front(
            stage, held, latency, transfer, Built(kind, step_s, fill_s)
        )
        behind += replicas
        kind = own
    return step_s


@uncounted
def link_behind(k: Any, stop: int, kind: int, other: int) -> tuple[float, float]:
    """Latency, and seconds of the bytes of a message, from an option to another one.

    Args:
        k: `KernelTables`.
        stop: The layer behind the cut.
        kind: Option in front of it.
        other: Option behind it; -1: there is none, and no message.
    """
    if other < 0:
        return 0.0, 0.0
    transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, other]
    return k.latency_s[kind, other], transfer
