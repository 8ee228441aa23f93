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
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact_kernels import is_dominated as is_dominated
from heterps_agents.exact_kernels import sweep, trace_back
from heterps_agents.objective import ROUNDING, Goal
from heterps_envs.closed_form import MAX_REPLICAS, KernelTables, evaluate_one

Status = Literal["optimal", "infeasible", "over budget"]

# Seconds of one transition on one core of a current server CPU, rounded up (benchmarks/exact.py):
# where the states of one cut stay in the nearest caches, and where they do not.
SECONDS_PER_TRANSITION, SECONDS_PER_FAR_TRANSITION = 2.5e-9, 8e-9
NEAR_STATES = 10_000
MAX_TABLE_BYTES, MAX_SECONDS = 400_000_000, 60.0


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
    max_replicas: int = MAX_REPLICAS,
) -> ExactResult:
    """The best placement of all, by the closed form.

    Args:
        kernel: From `heterps_envs.closed_form.kernel_tables`.
        goal: Objective and throughput floor; by default the least step time.
        upper_s: A step time that some placement is known to reach; only prunes. Not for the
            objective price, whose optimum may be slower.
        max_seconds: Give up before starting when `predicted_seconds` is more.
        max_table_bytes: The same for the table of values.
        max_replicas: Replicas of one stage at most; 1 for plain pipelines.
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
        sweep(kernel, used, strides, totals, order, least_fill_s, limit_s, max_replicas, value),
    )
    best = _best_state(value[0], used @ kernel.price_usd_per_hour, goal.is_price, limit_s)
    if best is None:
        return ExactResult(None, math.inf, math.inf, transitions, "infeasible")
    code = np.zeros(kernel.num_layers, np.int16)
    found = trace_back(kernel, used, strides, totals, value, *best, code)
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
    is_near = float(np.prod(kernel.device_count + 1.0)) <= NEAR_STATES
    each_s = SECONDS_PER_TRANSITION if is_near else SECONDS_PER_FAR_TRANSITION
    return predicted_work(kernel) * each_s


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
