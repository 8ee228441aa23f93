"""The closed form: step time, memory and price of a placement in under a microsecond (numba).

With stages numbered from the front, `C_s = F_s + B_s` the forward and backward seconds of one
micro-batch, `X_s` one message over the cut behind stage s, `m_s = ceil(M / k_s)` micro-batches for
each of its `k_s` replicas, and `h_s` of them in flight at most (all that memory has room for, and
at least what the rule of 1F1B says, `in_flight`, without which a placement does not fit):

    fill_s  = sum over j < s of (C_j + 2 X_j)          a micro-batch comes in, its gradient goes out
    R_s     = 2 X_s + sum over j > s of (C_j + 2 X_j)  from its forward to its backward pass here
    wait_s  = max(0, R_s - (h_s - 1) F_s) + max(0, R_s - (h_s - 1) B_s)    in the first, last round
    work_s  = max(m_s C_s + wait_s, ceil(m_s / h_s) (C_s + R_s))
    busy_s  = work_s + gradient all-reduce_s + optimizer_s
    link_s  = C_s + 2 latency_s + (m_s + 1) bytes_s / bandwidth_s
    step time = max over s of (fill_s + max(busy_s, link_s))

For equal stages and free links this is the usual `sum_s C_s + (M - 1) max_s C_s`. For unequal ones
it is tighter: work behind the slowest stage hides under it. (Where all micro-batches are in flight,
as in GPipe, the two waits are one wait, and only the longer one counts.) More in flight never takes
longer here, so no number of them need be chosen: that they all fit is what shortens the wait.
`heterps_envs.closed_form.round_trips` says how many a plan then holds.

Why no schedule is faster. From the end of a forward pass of stage s to the start of its backward
pass at least `R_s` goes by. Before the first backward pass a replica runs at most `h_s - 1` more
forward passes, after the last forward pass at most `h_s - 1` backward passes: the rest of `R_s` is
spent waiting. And the micro-batches 0, h, 2 h, ... of a replica follow each other, each taking `C_s
+ R_s`. So without all-reduce and optimizer, whose seconds may overlap with the drain, the closed
form is a lower bound of every simulated step, however many micro-batches a stage holds of those
that fit by planners' count, under the assumptions that it makes: every micro-batch is full, no
stage takes less than its layers, every link is as slow as the slowest between its classes, and back
as it is there, and a replica sends all its messages over one link. It leaves out the all-reduce of
parameters that are tied across stages, and replicas that wait for their turn.

How close: over thousands of random chains on unlike devices and links, 95 of 100 simulate within
1.0 % of it under 1F1B, with as many in flight as round trips need, and none beyond 11 %; under
GPipe 15 % and 31 % (a test holds limits).

All that holds for GPipe and 1F1B. For the schedules interleaved and zero-bubble, whose stages hold
what their rules say, planners use the form of 1F1B by its rule (`holds_by_rule`), and it is a bound
of neither side: a micro-batch that only waits for a chunk, or for the part of a backward pass that
computes gradients of inputs, is back sooner than after `C_j`. With one stage on each device
interleaved is 1F1B. `heterps_envs.simulator.plan_bound` bounds any plan under any schedule from
below.

Stages are appended from the back to the front. Of what is built, two numbers matter: its step time
(`behind_s`) and its share of the fill (`fill_s`); the closed form only grows with either. The
devices used say how many micro-batches a stage must hold, so what memory it needs is known when it
is built.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.stage_formula import (
    in_flight,
    most_in_flight,
    stage_after_option_s,
    stage_bytes,
    stage_work_s,
)
from heterps_envs.compiled import (
    MINUS_ONE,
    ZERO,
    checked,
    compiled,
    merged,
    uncounted,
    uncounted_helper,
)

# One layer of a coded placement (int32): bits 0-7 stage option, bit 8 a cut behind this layer
# although the next one has the same option, bits 9-20 replicas - 1 of the stage. The replicas are
# read at the last layer of a stage; a change of option is always a cut.
OPTION_MASK, CUT_BIT, REPLICA_SHIFT = 255, 256, 9
MAX_REPLICAS = 4096

FITS, OUT_OF_DEVICES, OUT_OF_MEMORY = 0, 1, 2


class Built(NamedTuple):
    """The stages that are built, from the back.

    Attributes:
        kind: Option of the front one; -1 before the first.
        behind_s: Their closed-form step time.
        fill_s: Sum of `C_j + 2 X_j` over them.
    """

    kind: int
    behind_s: float
    fill_s: float


@compiled(inline="always")
def step_with_stage_s(
    forward_s: float,
    backward_s: float,
    after_s: float,
    built: Any,
    share: int,
    held: int,
    transfer_s: float,
    latency_s: float,
) -> float:
    """Closed-form step time of the pipeline that begins with this stage.

    Args:
        forward_s: Of one micro-batch on one replica of the stage.
        backward_s: The same.
        after_s: From `stage_after_s`.
        built: `Built`, the stages behind it.
        share: Micro-batches of the busiest replica.
        held: How many of them it has in flight at most.
        transfer_s: Bytes over bandwidth of one message over the cut behind the stage.
        latency_s: Of that link.
    """
    compute = forward_s + backward_s
    if built.kind < 0:
        return share * compute + after_s
    message = 2.0 * (latency_s + transfer_s)
    busy = stage_work_s(forward_s, backward_s, message + built.fill_s, share, held) + after_s
    longest = max(busy, compute + message + built.behind_s)
    return max(longest, compute + 2.0 * latency_s + (share + 1) * transfer_s)  # type: ignore[no-any-return]


@merged
def append_stage(
    k: Any, start: int, stop: int, kind: int, replicas: int, held: int, built: Any
) -> tuple[float, float]:
    """Puts a stage of layers `start .. stop - 1` in front of what is built.

    Args:
        k: `KernelTables`.
        start: Its first layer.
        stop: The layer behind it.
        kind: Its option.
        replicas: Its replicas.
        held: From `in_flight`; where that is open, as many as memory has room for.
        built: `Built`.

    Returns:
        Step time and fill with the stage.
    """
    share = (k.num_micro_batches + replicas - 1) // replicas
    held = max(held, most_in_flight(k, start, stop, kind, replicas, share))
    after = stage_after_option_s(k, start, stop, kind, replicas)
    return put_in_front(k, start, stop, kind, share, held, after, built)


@uncounted_helper
def put_in_front(
    k: Any, start: int, stop: int, kind: int, share: int, held: int, after_s: float, built: Any
) -> tuple[float, float]:
    """Step time and fill with a stage in front of what is built, see `append_stage`.

    Args:
        k: `KernelTables`.
        start: Its first layer.
        stop: The layer behind it.
        kind: Its option.
        share: Micro-batches of its busiest replica.
        held: How many of them it has in flight at most.
        after_s: Seconds that follow its last backward pass.
        built: `Built`.
    """
    forward = k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind]
    compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
    has_next = built.kind >= 0
    neighbour = built.kind if has_next else kind
    latency = k.latency_s[kind, neighbour]
    transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, neighbour]
    step = step_with_stage_s(
        forward, compute - forward, after_s, built, share, held, transfer, latency
    )
    return step, compute + (2.0 * (latency + transfer) + built.fill_s if has_next else 0.0)


@uncounted
def evaluate_one(code: Any, k: Any, used: Any) -> tuple[float, float, int]:
    """Closed form of one coded placement.

    Args:
        code: (L,) int32, see `OPTION_MASK`.
        k: `KernelTables`.
        used: (T,) int64 scratch; on return the devices used of each class.

    Returns:
        Step time in seconds (inf where it does not fit), price in US dollars per hour of the
        devices used, and `FITS`, `OUT_OF_DEVICES` or `OUT_OF_MEMORY`.
    """
    used[:] = 0
    stop = k.num_layers
    behind_s, fill_s, price, replicas_behind, next_class = 0.0, 0.0, 0.0, ZERO, MINUS_ONE
    verdict = FITS
    while stop > 0:
        last = code[stop - 1]
        kind = last & OPTION_MASK
        replicas = (last >> REPLICA_SHIFT) + 1
        start = stop - 1
        while (
            start > 0 and (code[start - 1] & OPTION_MASK) == kind and not code[start - 1] & CUT_BIT
        ):
            start -= 1
        device_class = k.class_of_option[kind]
        used[device_class] += replicas * k.devices_of_option[kind]
        if used[device_class] > k.device_count[device_class]:
            return math.inf, math.inf, OUT_OF_DEVICES
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, replicas_behind)
        if stage_bytes(k, start, stop, kind, replicas, held) > k.memory_bytes[kind]:
            verdict = OUT_OF_MEMORY
        behind_s, fill_s = append_stage(
            k, start, stop, kind, replicas, held, Built(next_class, behind_s, fill_s)
        )
        price += replicas * k.price_usd_per_hour[kind]
        replicas_behind += replicas
        next_class = kind
        stop = start
    return (behind_s if verdict == FITS else math.inf), price, verdict


@checked
def _evaluate_rows(codes: Any, k: Any, step_time_s: Any, price: Any, verdict: Any) -> None:
    used = np.zeros(k.num_classes, np.int64)
    for row in range(codes.shape[0]):
        step_time_s[row], price[row], verdict[row] = evaluate_one(codes[row], k, used)


def evaluate(
    codes: NDArray[np.int32], kernel: KernelTables
) -> tuple[Floats, Floats, NDArray[np.int8]]:
    """Closed form of many coded placements of one problem.

    Args:
        codes: (N, L) int32.
        kernel: From `kernel_tables`.

    Returns:
        Step times in seconds (N,), prices of the devices used in US dollars per hour (N,),
        verdicts (N,).
    """
    rows = len(codes)
    step_time_s, price, verdict = np.empty(rows), np.empty(rows), np.empty(rows, np.int8)
    _evaluate_rows(codes, kernel, step_time_s, price, verdict)
    return step_time_s, price, verdict


@uncounted
def is_dominated(num_micro_batches: int, is_gpipe: bool, replicas: int) -> bool:
    """One replica less is never worse: the same share of micro-batches and as many in flight.

    Under 1F1B it can be: a replica more lets the stages before it hold more in flight.
    """
    if replicas > min(num_micro_batches, MAX_REPLICAS):
        return True
    if replicas == 1 or not is_gpipe:
        return False
    share = (num_micro_batches + replicas - 1) // replicas
    return share == (num_micro_batches + replicas - 2) // (replicas - 1)


@uncounted
def never_helps(k: Any, option: int, replicas: int) -> bool:
    """`is_dominated` for an option: where replicas share state, each one more saves memory."""
    if k.shards_state[option]:
        return replicas > min(k.num_micro_batches, MAX_REPLICAS)  # type: ignore[no-any-return]
    return is_dominated(k.num_micro_batches, k.is_gpipe, replicas)


@uncounted_helper
def replicas_left(k: Any, option: int, used: Any) -> int:
    """Stages of an option that the devices left of its class suffice for, by (T,) devices used."""
    device_class = k.class_of_option[option]
    return (k.device_count[device_class] - used[device_class]) // k.devices_of_option[option]  # type: ignore[no-any-return]


# Searches look at every number of replicas up to this, and beyond at those an eighth apart.
ALL_REPLICAS = 16


@uncounted_helper
def next_replicas(replicas: int, most: int) -> int:
    """The next number of replicas that a search looks at, 0 at first; the last one is `most`."""
    step = 1 if replicas < ALL_REPLICAS else replicas // 8
    return min(replicas + step, most)
