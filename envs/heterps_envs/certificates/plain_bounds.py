"""A lower bound of the certificate's own: linear programming, and a check in plain Python.

The reasons are those of `heterps_envs.closed_form.bounds` and
`heterps_envs.closed_form.memory_bounds`; the code is not. HiGHS proposes the prices, and only the
value that they have by the formula counts, so that an error of the linear programme cannot make the
bound too high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from heterps_envs.certificates.definition import PlainStage, after_s, in_flight
from heterps_envs.cost_tables import CostTables

MAX_REPLICAS = 4096
# Relative slack of what must fit, so that rounding makes no bound too high.
ROUNDING = 1e-12

Rows = list[list[float]]


class OwnBound(NamedTuple):
    """A lower bound of every placement's step time.

    Attributes:
        step_time_s: The bound.
        prices: (T,) of a device-second of each class, that all devices together cost 1 per second.
    """

    step_time_s: float
    prices: tuple[float, ...]


def own_bound(tables: CostTables, prices: Sequence[float] | None = None) -> OwnBound:
    """The best of: prices of seconds and bytes, one layer alone, one micro-batch.

    Args:
        tables: Cost tables.
        prices: (T,) of a device-second; without them those of the linear programme.
    """
    held = [in_flight(tables, int(count), 0) for count in tables.device_count]
    alone = [
        [float(s) + h * float(a) for h in held]
        for s, a in zip(tables.state_bytes, tables.activation_bytes, strict=True)
    ]
    work = _work(tables, alone)
    if any(min(row) == math.inf for row in work):
        return OwnBound(math.inf, tuple(0.0 for _ in held))
    need = _need(tables)
    per_second, per_byte = (
        _derive(tables, work, need) if prices is None else (list(prices), [0.0] * len(held))
    )
    total = sum(p * int(n) for p, n in zip(per_second, tables.device_count, strict=True))
    if total <= 0 or min(per_second) < 0 or min(per_byte) < 0:
        per_second, per_byte, total = (
            [1.0] * len(held),
            [0.0] * len(held),
            float(tables.device_count.sum()),
        )
    per_second, per_byte = [p / total for p in per_second], [p / total for p in per_byte]
    value = sum(
        min(
            p * w + q * b if w < math.inf else math.inf
            for p, q, w, b in zip(per_second, per_byte, work[layer], need[layer], strict=True)
        )
        for layer in range(tables.num_layers)
    ) - sum(
        q * int(n) * float(m)
        for q, n, m in zip(per_byte, tables.device_count, tables.memory_bytes, strict=True)
    )
    once = sum(
        min(
            float(c)
            for c, w in zip(tables.compute_s[layer], work[layer], strict=True)
            if w < math.inf
        )
        for layer in range(tables.num_layers)
    )
    single = max(_alone_s(tables, layer, work[layer]) for layer in range(tables.num_layers))
    return OwnBound(max(value, once, single), tuple(per_second))


def _alone_s(tables: CostTables, layer: int, work: Sequence[float]) -> float:
    """The least step time with this layer, on any class and replicas."""
    return min(
        math.ceil(tables.num_micro_batches / replicas) * float(tables.compute_s[layer, kind])
        + after_s(tables, PlainStage(layer, layer + 1, kind, replicas))
        for kind, count in enumerate(tables.device_count)
        if work[kind] < math.inf
        for replicas in range(1, min(int(count), tables.num_micro_batches, MAX_REPLICAS) + 1)
    )


def _work(tables: CostTables, alone: Rows) -> Rows:
    """Device-seconds of each layer and class, its share of the wait included; inf: does not fit."""
    before_s = [0.0]
    for row in tables.compute_s:
        before_s.append(before_s[-1] + float(min(row)))
    out: Rows = []
    for layer in range(tables.num_layers):
        row = []
        for kind, room in enumerate(map(float, tables.memory_bytes)):
            if alone[layer][kind] > room:
                row.append(math.inf)
                continue
            start, held = layer, alone[layer][kind]
            while start > 0 and held + alone[start - 1][kind] <= room * (1 + ROUNDING):
                start -= 1
                held += alone[start][kind]
            wait = 0.0
            if start > 0:
                wait = before_s[start] + min(
                    _least_message_s(tables, cut) for cut in range(start, layer + 1)
                )
            seconds = tables.num_micro_batches * float(tables.compute_s[layer, kind])
            # A device without room has only layers that hold nothing.
            share = alone[layer][kind] / room if room > 0 else 0.0
            row.append(seconds + float(tables.optimizer_s[layer, kind]) + wait * share)
        out.append(row)
    return out


def _least_message_s(tables: CostTables, cut: int) -> float:
    """Over a cut and back, between any two classes."""
    size = float(tables.output_bytes[cut - 1])
    return 2 * float((tables.latency_s + size * tables.inverse_bandwidth_s_per_byte).min())


def _need(tables: CostTables) -> Rows:
    """Bytes that each layer takes at least of all the memory of a class."""
    once = [
        float(s) + float(a)
        for s, a in zip(tables.state_bytes, tables.activation_bytes, strict=True)
    ]
    largest = sorted(
        (
            float(m)
            for m, n in zip(tables.memory_bytes, tables.device_count, strict=True)
            for _ in range(n)
        ),
        reverse=True,
    )
    behind = [_least_devices(once[cut:], largest) for cut in range(tables.num_layers + 1)]
    out: Rows = []
    for layer in range(tables.num_layers):
        row = []
        for room in map(float, tables.memory_bytes):
            stop, held = layer, 0.0
            while stop < tables.num_layers and held + once[stop] <= room * (1 + ROUNDING):
                held += once[stop]
                stop += 1
            flying = min(tables.num_micro_batches, 1 + behind[stop])
            if tables.is_gpipe:
                flying = tables.num_micro_batches
            row.append(
                float(tables.state_bytes[layer]) + flying * float(tables.activation_bytes[layer])
            )
        out.append(row)
    return out


def _least_devices(sizes: Sequence[float], largest: Sequence[float]) -> int:
    """Devices that layers of these sizes need at least, the largest devices first."""
    total, by_bytes = sum(sizes), 0
    while by_bytes < len(largest) and sum(largest[:by_bytes]) * (1 + ROUNDING) < total:
        by_bytes += 1
    stages, room = 0, 0.0
    for size in sizes:
        if size > room:
            stages, room = stages + 1, largest[0] * (1 + ROUNDING)
        room -= size
    return max(by_bytes, stages)


def _derive(tables: CostTables, work: Rows, need: Rows) -> tuple[list[float], list[float]]:
    """Prices of seconds and bytes from the dual linear programme, bytes in shares of the room."""
    layers, classes = tables.num_layers, tables.num_classes
    room = [
        max(int(n) * float(m), 1e-300)
        for n, m in zip(tables.device_count, tables.memory_bytes, strict=True)
    ]
    pairs = [(i, d) for i in range(layers) for d in range(classes) if work[i][d] < math.inf]
    scale = sum(min(row) for row in work) or 1.0
    rows, columns, values = [], [], []
    for index, (layer, kind) in enumerate(pairs):
        rows += [index] * 3
        columns += [layer, layers + kind, layers + classes + kind]
        values += [1.0, -work[layer][kind] / scale, -need[layer][kind] / room[kind]]
    result = linprog(
        np.array([-1.0] * layers + [0.0] * classes + [1.0] * classes),
        A_ub=coo_array((values, (rows, columns)), shape=(len(pairs), layers + 2 * classes)).tocsr(),
        b_ub=np.zeros(len(pairs)),
        A_eq=np.array([[0.0] * layers + [float(n) for n in tables.device_count] + [0.0] * classes]),
        b_eq=np.ones(1),
        bounds=[(None, None)] * layers + [(0, None)] * (2 * classes),
    )
    if result.status != 0:  # without an optimum: memory alone rules out every placement
        return [1.0] * classes, [0.0] * classes
    found = [max(0.0, float(value)) for value in result.x[layers:]]
    per_byte = [value * scale / size for value, size in zip(found[classes:], room, strict=True)]
    return found[:classes], per_byte
