"""The closed form: step time, memory and price of a placement in under a microsecond (numba).

With stages numbered from the front, `C_s` the forward and backward seconds of one micro-batch,
`X_s` one message over the cut behind stage s, and `m_s = ceil(M / k_s)` micro-batches for each of
its `k_s` replicas:

    fill_s  = sum over j < s of (C_j + 2 X_j)          a micro-batch comes in, its gradient goes out
    busy_s  = m_s C_s + gradient all-reduce_s + optimizer_s
    link_s  = C_s + 2 latency_s + (m_s + 1) bytes_s / bandwidth_s
    step time = max over s of (fill_s + max(busy_s, link_s))

For equal stages this is the usual `sum_s (C_s + 2 X_s) + (M - 1) max_s C_s`. For unequal ones it
is tighter: work behind the slowest stage hides under it.

Without all-reduce and optimizer it is a lower bound of every simulated step, under the assumptions
that it makes: every micro-batch is full, every link is as slow as the slowest between its classes,
and a replica sends all its messages over one link (`link_s`; several replicas behind a stage have
a link each in the simulator). It leaves out

- what a stage waits with h micro-batches in flight when a micro-batch takes `R` seconds through
  the stages behind it and back: `max(0, R - (h - 1) forward_s)` at the start of the step and
  `max(0, R - (h - 1) backward_s)` at its end, and, where links dominate, in every round;
- the all-reduce of parameters that are tied across stages.

So simulated over closed-form step time is 1.0 in the median of random placements (shipped models
and clusters, micro-batches of one sample) but 1.2 to 1.3 at the optimum of the closed form, which
seeks out what it leaves out; see `benchmarks/closed_form.py`. Planners that can afford it let the
simulator choose among near optima.

Stages are appended from the back to the front (`step time behind me` is one number), which is also
what makes the number of micro-batches in flight, and so the memory of a stage, known when it is
built.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.problem import MAX_CLASSES as MAX_CLASSES
from heterps_envs.problem import CostTables

Floats = NDArray[np.float64]

# One layer of a coded placement (int16): bits 0-3 device class, bit 4 a cut behind this layer
# although the next one has the same class, bits 5-10 replicas - 1 of the stage. The replicas are
# read at the last layer of a stage; a change of class is always a cut.
CLASS_MASK, CUT_BIT, REPLICA_SHIFT = 15, 16, 5
MAX_REPLICAS = 64

FITS, OUT_OF_DEVICES, OUT_OF_MEMORY = 0, 1, 2


class KernelTables(NamedTuple):
    """The cost tables as compiled kernels take them, with prefix sums over the layers."""

    num_layers: int
    num_classes: int
    num_micro_batches: int
    is_gpipe: bool
    compute_prefix_s: Floats  # (L + 1, T)
    optimizer_prefix_s: Floats  # (L + 1, T)
    state_prefix_bytes: Floats  # (L + 1,)
    gradient_prefix_bytes: Floats  # (L + 1,)
    activation_prefix_bytes: Floats  # (L + 1,)
    output_bytes: Floats  # (L,)
    device_count: NDArray[np.int64]  # (T,)
    memory_bytes: Floats  # (T,)
    price_usd_per_hour: Floats  # (T,)
    latency_s: Floats  # (T, T)
    inverse_bandwidth_s_per_byte: Floats  # (T, T)


def kernel_tables(tables: CostTables) -> KernelTables:
    """Prepares the arrays once for each problem."""

    def prefix(values: Floats) -> Floats:
        out = np.zeros((values.shape[0] + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, out=out[1:])
        return out

    return KernelTables(
        num_layers=tables.num_layers,
        num_classes=tables.num_classes,
        num_micro_batches=tables.num_micro_batches,
        is_gpipe=tables.is_gpipe,
        compute_prefix_s=prefix(tables.compute_s),
        optimizer_prefix_s=prefix(tables.optimizer_s),
        state_prefix_bytes=prefix(tables.state_bytes),
        gradient_prefix_bytes=prefix(tables.gradient_bytes),
        activation_prefix_bytes=prefix(tables.activation_bytes),
        output_bytes=np.ascontiguousarray(tables.output_bytes, dtype=float),
        device_count=np.ascontiguousarray(tables.device_count, dtype=np.int64),
        memory_bytes=np.ascontiguousarray(tables.memory_bytes, dtype=float),
        price_usd_per_hour=np.ascontiguousarray(tables.price_usd_per_hour, dtype=float),
        latency_s=np.ascontiguousarray(tables.latency_s, dtype=float),
        inverse_bandwidth_s_per_byte=np.ascontiguousarray(
            tables.inverse_bandwidth_s_per_byte, float
        ),
    )


@njit(cache=True, inline="always")
def in_flight(num_micro_batches: int, is_gpipe: bool, replicas: int, replicas_behind: int) -> int:
    """Micro-batches whose activations one replica of a stage holds at most.

    1F1B with one replica everywhere: the stages behind it, plus one. With replicas the stage must
    keep all devices behind it busy: the same rule counted in devices, shared by its own replicas.

    Args:
        num_micro_batches: M.
        is_gpipe: GPipe holds all of its share.
        replicas: Replicas of this stage.
        replicas_behind: Sum of the replicas of all stages behind it.
    """
    share = (num_micro_batches + replicas - 1) // replicas
    if is_gpipe:
        return share
    return min(share, (replicas + replicas_behind + replicas - 1) // replicas)


@njit(cache=True, inline="always")
def stage_busy_s(
    compute_s: float,
    gradient_bytes: float,
    optimizer_s: float,
    replicas: int,
    num_micro_batches: int,
    latency_s: float,
    inverse_bandwidth_s_per_byte: float,
) -> float:
    """Seconds that the busiest replica works: its micro-batches, ring all-reduce, optimizer."""
    share = (num_micro_batches + replicas - 1) // replicas
    busy = share * compute_s + optimizer_s
    if replicas > 1:
        busy += (
            2.0
            * (replicas - 1)
            * (gradient_bytes * inverse_bandwidth_s_per_byte / replicas + latency_s)
        )
    return busy


@njit(cache=True, inline="always")
def behind_stage_s(
    compute_s: float,
    busy_s: float,
    behind_s: float,
    has_next: bool,
    replicas: int,
    num_micro_batches: int,
    output_bytes: float,
    latency_s: float,
    inverse_bandwidth_s_per_byte: float,
) -> float:
    """Closed-form step time of the pipeline that begins with this stage.

    Args:
        compute_s: Forward and backward of one micro-batch on one replica of the stage.
        busy_s: From `stage_busy_s`.
        behind_s: The same as the result for the pipeline behind the stage.
        has_next: False for the last stage, which has nothing behind it.
        replicas: Replicas of the stage.
        num_micro_batches: M.
        output_bytes: One message over the cut behind the stage.
        latency_s: Of the link to the next stage.
        inverse_bandwidth_s_per_byte: Of the same link.
    """
    if not has_next:
        return busy_s
    transfer = output_bytes * inverse_bandwidth_s_per_byte
    share = (num_micro_batches + replicas - 1) // replicas
    longest = max(busy_s, compute_s + 2.0 * (latency_s + transfer) + behind_s)
    return max(longest, compute_s + 2.0 * latency_s + (share + 1) * transfer)


@njit(cache=True)
def evaluate_one(code: Any, k: Any, used: Any) -> tuple[float, float, int]:
    """Closed form of one coded placement.

    Args:
        code: (L,) int16, see `CLASS_MASK`.
        k: `KernelTables`.
        used: (T,) int64 scratch; on return the devices used of each class.

    Returns:
        Step time in seconds (inf where it does not fit), price in US dollars per hour of the
        devices used, and `FITS`, `OUT_OF_DEVICES` or `OUT_OF_MEMORY`.
    """
    used[:] = 0
    stop = k.num_layers
    behind_s, price, replicas_behind, next_class = 0.0, 0.0, 0, -1
    verdict = FITS
    while stop > 0:
        last = code[stop - 1]
        kind = last & CLASS_MASK
        replicas = (last >> REPLICA_SHIFT) + 1
        start = stop - 1
        while (
            start > 0 and (code[start - 1] & CLASS_MASK) == kind and not code[start - 1] & CUT_BIT
        ):
            start -= 1
        used[kind] += replicas
        if used[kind] > k.device_count[kind]:
            return math.inf, math.inf, OUT_OF_DEVICES
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, replicas_behind)
        memory = (k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]) + held * (
            k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        )
        if memory > k.memory_bytes[kind]:
            verdict = OUT_OF_MEMORY
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        busy = stage_busy_s(
            compute,
            k.gradient_prefix_bytes[stop] - k.gradient_prefix_bytes[start],
            k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind],
            replicas,
            k.num_micro_batches,
            k.latency_s[kind, kind],
            k.inverse_bandwidth_s_per_byte[kind, kind],
        )
        has_next = next_class >= 0
        neighbour = next_class if has_next else kind
        behind_s = behind_stage_s(
            compute,
            busy,
            behind_s,
            has_next,
            replicas,
            k.num_micro_batches,
            k.output_bytes[stop - 1],
            k.latency_s[kind, neighbour],
            k.inverse_bandwidth_s_per_byte[kind, neighbour],
        )
        price += replicas * k.price_usd_per_hour[kind]
        replicas_behind += replicas
        next_class = kind
        stop = start
    return (behind_s if verdict == FITS else math.inf), price, verdict


@njit(cache=True)
def _evaluate_rows(codes: Any, k: Any, step_time_s: Any, price: Any, verdict: Any) -> None:
    used = np.zeros(k.num_classes, np.int64)
    for row in range(codes.shape[0]):
        step_time_s[row], price[row], verdict[row] = evaluate_one(codes[row], k, used)


def evaluate(
    codes: NDArray[np.int16], kernel: KernelTables
) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """Closed form of many coded placements of one problem.

    Args:
        codes: (N, L) int16.
        kernel: From `kernel_tables`.

    Returns:
        Step times in seconds (N,), prices of the devices used in US dollars per hour (N,),
        verdicts (N,).
    """
    rows = len(codes)
    step_time_s, price, verdict = np.empty(rows), np.empty(rows), np.empty(rows, np.int8)
    _evaluate_rows(codes, kernel, step_time_s, price, verdict)
    return step_time_s, price, verdict
