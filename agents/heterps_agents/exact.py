"""The exact solver: a dynamic programme over (layer, class of the front stage, devices used).

Stages are appended back to front, as in `heterps_envs.closed_form`. The value of a state is the
least closed-form step time of the pipeline that covers the layers behind; the closed form only
grows with it, and the devices used say how many micro-batches the next stage holds in flight. So
one sweep over the layers finds the optimum, memory included. Devices used are counted for every
class, which makes the work polynomial in layers and devices and exponential in classes:
`predicted_seconds` says it before anything is allocated.

Every `price` objective is read from the same table: for each number of devices used, the table
holds the least step time, and the devices used fix the price per hour.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.objective import ROUNDING, Goal, write_code
from heterps_envs.closed_form import (
    MAX_REPLICAS,
    KernelTables,
    evaluate_one,
    in_flight,
    stage_busy_s,
)

Status = Literal["optimal", "infeasible", "over budget"]

# Seconds of one transition on one core of a current server CPU, rounded up (benchmarks/exact.py).
SECONDS_PER_TRANSITION = 2.5e-9
MAX_TABLE_BYTES, MAX_SECONDS = 400_000_000, 60.0
_UNLIMITED = 1 << 40


class ExactResult(NamedTuple):
    """What the dynamic programme found.

    Attributes:
        code: (L,) int16 of the best placement, see `heterps_envs.closed_form`; None unless optimal.
        step_time_s: Its closed-form step time; inf unless optimal.
        price_usd_per_hour: Of the devices that it uses; inf unless optimal.
        transitions: Stages that were appended to a state: the work that was done.
        status: `infeasible` is a proof too; `over budget`: nothing was computed.
    """

    code: NDArray[np.int16] | None
    step_time_s: float
    price_usd_per_hour: float
    transitions: int
    status: Status


def solve(
    kernel: KernelTables,
    goal: Goal | None = None,
    *,
    upper_s: float = math.inf,
    max_seconds: float = MAX_SECONDS,
    max_table_bytes: int = MAX_TABLE_BYTES,
) -> ExactResult:
    """The best placement of all, by the closed form.

    Args:
        kernel: From `heterps_envs.closed_form.kernel_tables`.
        goal: Objective and throughput floor; by default the least step time.
        upper_s: A step time that some placement is known to reach; only prunes. Not for the
            objective price, whose optimum may be slower.
        max_seconds: Give up before starting when `predicted_seconds` is more.
        max_table_bytes: The same for the table of values.
    """
    goal = goal or Goal()
    assert not goal.is_price or math.isinf(upper_s)
    if predicted_seconds(kernel) > max_seconds or table_bytes(kernel) > max_table_bytes:
        return ExactResult(None, math.inf, math.inf, 0, "over budget")
    limit_s = min(upper_s * (1 + ROUNDING), goal.floor_s)
    shape = kernel.device_count + 1
    strides = np.concatenate([[1], np.cumprod(shape[:-1])]).astype(np.int64)
    used = np.arange(int(np.prod(shape)))[:, None] // strides % shape  # (states, T) devices used
    totals = used.sum(axis=1)
    value = np.full((kernel.num_layers, kernel.num_classes, len(used)), np.inf)
    least_fill_s = _least_fill_s(kernel)
    order = np.argsort(totals, kind="stable")
    transitions = int(
        _sweep(kernel, used, strides, totals, order, least_fill_s, limit_s, value),
    )
    best = _best_state(value[0], used @ kernel.price_usd_per_hour, goal.is_price, limit_s)
    if best is None:
        return ExactResult(None, math.inf, math.inf, transitions, "infeasible")
    code = np.zeros(kernel.num_layers, np.int16)
    found = _trace_back(kernel, used, strides, totals, value, *best, code)
    assert found, "every value was reached by a transition"
    step_time_s, price, _ = evaluate_one(code, kernel, np.zeros(kernel.num_classes, np.int64))
    return ExactResult(code, float(step_time_s), float(price), transitions, "optimal")


def num_states(kernel: KernelTables) -> float:
    """Entries of the table of values; a float, because it overflows no integer."""
    return kernel.num_layers * kernel.num_classes * float(np.prod(kernel.device_count + 1.0))


def table_bytes(kernel: KernelTables) -> float:
    """Bytes that the sweep allocates: values, and for each count of devices some integers."""
    integers = (kernel.num_classes + 4) * float(np.prod(kernel.device_count + 1.0))
    return 8.0 * (num_states(kernel) + integers)


def predicted_work(kernel: KernelTables) -> float:
    """Transitions of the sweep at most: stages whose weights fit, times replicas, times states."""
    counts = kernel.device_count + 1.0
    states, work = float(np.prod(counts)), 0.0
    prefix, layers = kernel.state_prefix_bytes, np.arange(1, kernel.num_layers + 1)
    for kind in range(kernel.num_classes):
        first = np.searchsorted(prefix, prefix[1:] - kernel.memory_bytes[kind], side="left")
        ranges = float(np.maximum(layers - first, 0).sum())
        for replicas in range(1, int(kernel.device_count[kind]) + 1):
            if is_dominated(kernel.num_micro_batches, kernel.is_gpipe, replicas):
                continue
            share = states * (counts[kind] - replicas) / counts[kind]
            work += share * (ranges + kernel.num_layers * kernel.num_classes)
    return work


def predicted_seconds(kernel: KernelTables) -> float:
    """Seconds that `solve` takes at most, from `predicted_work`."""
    return predicted_work(kernel) * SECONDS_PER_TRANSITION


def _least_fill_s(kernel: KernelTables) -> NDArray[np.float64]:
    """(L + 1,) seconds that the layers before each cut add to a step time at least."""
    compute_s = np.diff(kernel.compute_prefix_s, axis=0).min(axis=1)
    return np.concatenate([[0.0], np.cumsum(compute_s)])


def _best_state(
    value: NDArray[np.float64], price: NDArray[np.float64], is_price: bool, limit_s: float
) -> tuple[int, int] | None:
    """(class of the front stage, devices used) of the optimum.

    Equally good ones: the cheaper, or the faster, one.
    """
    fastest = value.min(axis=0)
    states = np.flatnonzero(np.isfinite(fastest) & (fastest <= limit_s))
    if len(states) == 0:
        return None
    fastest, price = fastest[states], price[states]
    cost, second = (price * fastest, fastest) if is_price else (fastest, price)
    tied = np.flatnonzero(cost <= cost.min() * (1 + 1e-12))
    state = int(states[tied[np.argmin(second[tied])]])
    return int(np.argmin(value[:, state])), state


@njit(cache=True)
def is_dominated(num_micro_batches: int, is_gpipe: bool, replicas: int) -> bool:
    """One replica less is never worse: the same share of micro-batches and no more in flight.

    With shares of three and more, 1F1B can hold less in flight with one replica more.
    """
    if replicas > min(num_micro_batches, MAX_REPLICAS):
        return True
    share = (num_micro_batches + replicas - 1) // replicas
    if replicas == 1 or share != (num_micro_batches + replicas - 2) // (replicas - 1):
        return False
    return is_gpipe or share <= 2


@njit(cache=True)
def _largest_total_behind(
    k: Any, replicas: int, state_bytes: float, activation_bytes: float, memory_bytes: float
) -> int:
    """How many devices may stand behind a stage so that its memory suffices; -1: it never does."""
    share = (k.num_micro_batches + replicas - 1) // replicas
    if state_bytes + share * activation_bytes <= memory_bytes:
        return _UNLIMITED
    held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, 0)
    if state_bytes + held * activation_bytes > memory_bytes:
        return -1
    while state_bytes + (held + 1) * activation_bytes <= memory_bytes:
        held += 1
    return (held - 1) * replicas


@njit(cache=True, inline="always")
def _busy_s(k: Any, start: int, stop: int, kind: int, replicas: int) -> float:
    return stage_busy_s(
        k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind],
        k.gradient_prefix_bytes[stop] - k.gradient_prefix_bytes[start],
        k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind],
        replicas,
        k.num_micro_batches,
        k.latency_s[kind, kind],
        k.inverse_bandwidth_s_per_byte[kind, kind],
    )


@njit(cache=True, inline="always")
def _through_link_s(
    k: Any, stop: int, kind: int, neighbour: int, replicas: int, behind_s: float
) -> float:
    """`behind_stage_s` without the stage's own compute and busy seconds."""
    transfer = k.output_bytes[stop - 1] * k.inverse_bandwidth_s_per_byte[kind, neighbour]
    latency = 2.0 * k.latency_s[kind, neighbour]
    share = (k.num_micro_batches + replicas - 1) // replicas
    longest: float = max(latency + 2.0 * transfer + behind_s, latency + (share + 1) * transfer)
    return longest


@njit(cache=True)
def _collect(
    k: Any,
    used: Any,
    order: Any,
    stop: int,
    kind: int,
    replicas: int,
    limit_s: float,
    value: Any,
    reached: Any,
    reached_s: Any,
) -> int:
    """The states behind a cut that may get a stage of a class, fewest devices first.

    Writes them to `reached`, and to `reached_s` their value seen through the best link.
    """
    if stop == k.num_layers:
        reached[0], reached_s[0] = 0, 0.0
        return 1
    count = 0
    for state in order:
        if used[state, kind] + replicas > k.device_count[kind]:
            continue
        best = np.inf
        for neighbour in range(k.num_classes):
            behind_s = value[stop, neighbour, state]
            if behind_s < best:
                best = min(best, _through_link_s(k, stop, kind, neighbour, replicas, behind_s))
        if best <= limit_s:
            reached[count], reached_s[count] = state, best
            count += 1
    return count


@njit(cache=True)
def _extend(
    k: Any,
    totals: Any,
    stop: int,
    kind: int,
    replicas: int,
    shift: int,
    count: int,
    reached: Any,
    reached_s: Any,
    least_fill_s: Any,
    limit_s: float,
    value: Any,
) -> int:
    """Puts every stage of a class and replicas that ends at `stop` before the reached states."""
    transitions = 0
    for start in range(stop - 1, -1, -1):
        state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
        activation_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        largest = _largest_total_behind(
            k, replicas, state_bytes, activation_bytes, k.memory_bytes[kind]
        )
        while count > 0 and totals[reached[count - 1]] > largest:
            count -= 1
        busy = _busy_s(k, start, stop, kind, replicas)
        if count == 0 or busy + least_fill_s[start] > limit_s:
            break
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        row = value[start, kind]
        for index in range(count):
            behind_s = max(busy, compute + reached_s[index])
            state = reached[index] + shift
            if behind_s < row[state]:
                row[state] = behind_s
        transitions += count
    return transitions


@njit(cache=True)
def _sweep(
    k: Any,
    used: Any,
    strides: Any,
    totals: Any,
    order: Any,
    least_fill_s: Any,
    limit_s: float,
    value: Any,
) -> int:
    """Fills `value` (L, T, states) from the last layer to the first; returns the transitions."""
    reached, reached_s = np.empty(len(totals), np.int64), np.empty(len(totals))
    transitions = 0
    for stop in range(k.num_layers, 0, -1):
        for kind in range(k.num_classes):
            for replicas in range(1, k.device_count[kind] + 1):
                if is_dominated(k.num_micro_batches, k.is_gpipe, replicas):
                    continue
                count = _collect(
                    k, used, order, stop, kind, replicas, limit_s - least_fill_s[stop],
                    value, reached, reached_s,
                )  # fmt: skip
                transitions += _extend(
                    k, totals, stop, kind, replicas, replicas * strides[kind], count,
                    reached, reached_s, least_fill_s, limit_s, value,
                )  # fmt: skip
    return transitions


@njit(cache=True)
def _trace_back(
    k: Any,
    used: Any,
    strides: Any,
    totals: Any,
    value: Any,
    kind: int,
    state: int,
    code: Any,
) -> bool:
    """Writes the code of the placement that reaches a state of layer 0.

    Searching each stage again is cheaper than storing a choice for every state.
    """
    stages = np.empty((k.num_layers, 3), np.int64)
    start, count = 0, 0
    while start < k.num_layers:
        stop, replicas, neighbour = _front_stage(
            k, used, strides, totals, value, start, kind, state
        )
        if stop < 0:
            return False
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, kind, replicas
        count += 1
        state -= replicas * strides[kind]
        start, kind = stop, neighbour
    write_code(stages, count, code)
    return True


@njit(cache=True)
def _front_stage(
    k: Any, used: Any, strides: Any, totals: Any, value: Any, start: int, kind: int, state: int
) -> tuple[int, int, int]:
    """(stop, replicas, class behind) of a front stage that reaches the value of a state."""
    target_s = value[start, kind, state] * (1 + 1e-12)
    for stop in range(start + 1, k.num_layers + 1):
        state_bytes = k.state_prefix_bytes[stop] - k.state_prefix_bytes[start]
        activation_bytes = k.activation_prefix_bytes[stop] - k.activation_prefix_bytes[start]
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        for replicas in range(1, used[state, kind] + 1):
            behind = state - replicas * strides[kind]
            largest = _largest_total_behind(
                k, replicas, state_bytes, activation_bytes, k.memory_bytes[kind]
            )
            busy = _busy_s(k, start, stop, kind, replicas)
            if totals[behind] > largest or busy > target_s:
                continue
            if stop == k.num_layers:
                if behind == 0:
                    return stop, replicas, kind
                continue
            for neighbour in range(k.num_classes):
                link_s = _through_link_s(
                    k, stop, kind, neighbour, replicas, value[stop, neighbour, behind]
                )
                if compute + link_s <= target_s:
                    return stop, replicas, neighbour
    return -1, -1, -1
