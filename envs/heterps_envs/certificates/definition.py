"""The closed form as it is defined, in plain Python: slow, readable, and on its own.

`heterps_envs.closed_form.formula` says what the symbols mean; its kernels are tested against this,
and `heterps_envs.certificates.plan` re-checks plans with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables


class PlainStage(NamedTuple):
    """Layers `start .. stop - 1` on `replicas` devices of a class (index)."""

    start: int
    stop: int
    kind: int
    replicas: int


def in_flight(tables: CostTables, replicas: int, behind: int) -> int:
    """Micro-batches that one replica holds at most, with `behind` devices behind its stage."""
    share = math.ceil(tables.num_micro_batches / replicas)
    return share if tables.is_gpipe else min(share, math.ceil((replicas + behind) / replicas))


def stage_bytes(tables: CostTables, start: int, stop: int, replicas: int, behind: int) -> float:
    """Bytes on each device of a stage of layers `start .. stop - 1`."""
    held = in_flight(tables, replicas, behind)
    return _sum(tables.state_bytes, start, stop) + held * _sum(tables.activation_bytes, start, stop)


def most_in_flight(tables: CostTables, stage: PlainStage, behind: int) -> int:
    """Micro-batches that a replica has in flight: those that it must, or all that fit."""
    must = in_flight(tables, stage.replicas, behind)
    if tables.is_gpipe or tables.holds_by_rule:
        return must
    share = math.ceil(tables.num_micro_batches / stage.replicas)
    state = _sum(tables.state_bytes, stage.start, stage.stop)
    kept = _sum(tables.activation_bytes, stage.start, stage.stop)
    room = float(tables.memory_bytes[stage.kind]) - state
    if share * kept <= room:
        return share
    return max(must, math.floor(room / kept)) if room > 0 else must


def closed_form_s(tables: CostTables, stages: Sequence[PlainStage]) -> float:
    """Step time of a placement, stages front first, whether its memory suffices or not."""
    compute_s = [_sum(tables.compute_s[:, each.kind], each.start, each.stop) for each in stages]
    latency_s, transfer_s = [], []
    for each, behind in zip(stages, [*stages[1:], None], strict=True):
        latency_s.append(float(tables.latency_s[each.kind, behind.kind]) if behind else 0.0)
        transfer_s.append(
            float(tables.output_bytes[each.stop - 1])
            * float(tables.inverse_bandwidth_s_per_byte[each.kind, behind.kind])
            if behind
            else 0.0
        )
    message_s = [a + b for a, b in zip(latency_s, transfer_s, strict=True)]
    passed_s = [c + 2 * x for c, x in zip(compute_s, message_s, strict=True)]
    longest_s = 0.0
    for index, each in enumerate(stages):
        share = math.ceil(tables.num_micro_batches / each.replicas)
        held = most_in_flight(tables, each, sum(one.replicas for one in stages[index + 1 :]))
        forward_s = _sum(tables.forward_s[:, each.kind], each.start, each.stop)
        round_trip_s = 2 * message_s[index] + sum(passed_s[index + 1 :])
        waits = [
            max(0.0, round_trip_s - (held - 1) * seconds)
            for seconds in (forward_s, compute_s[index] - forward_s)
        ]
        work_s = max(
            share * compute_s[index] + (sum(waits) if share > held else max(waits)),
            math.ceil(share / held) * (compute_s[index] + round_trip_s),
        )
        busy_s = work_s + after_s(tables, each)
        link_s = 0.0
        if index + 1 < len(stages):
            link_s = compute_s[index] + 2 * latency_s[index] + (share + 1) * transfer_s[index]
        longest_s = max(longest_s, sum(passed_s[:index]) + max(busy_s, link_s))
    return longest_s


def after_s(tables: CostTables, stage: PlainStage) -> float:
    """Seconds after the last backward pass: ring all-reduce over the replicas, optimizer step."""
    start, stop, kind, replicas = stage
    seconds = _sum(tables.optimizer_s[:, kind], start, stop)
    if replicas > 1:
        part = _sum(tables.gradient_bytes, start, stop) / replicas
        latency_s = float(tables.latency_s[kind, kind])
        inverse_bandwidth = float(tables.inverse_bandwidth_s_per_byte[kind, kind])
        if tables.rings is not None:
            far = 1 if replicas > tables.rings.node_size[kind] else 0
            latency_s = float(tables.rings.latency_s[kind, far])
            inverse_bandwidth = float(tables.rings.inverse_bandwidth_s_per_byte[kind, far])
        seconds += 2 * (replicas - 1) * (part * inverse_bandwidth + latency_s)
    return seconds


def _sum(values: Floats, start: int, stop: int) -> float:
    return float(sum(float(value) for value in values[start:stop]))
