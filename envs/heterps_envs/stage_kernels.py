"""The stage-by-stage decision process, compiled: which stages may come next, and the step.

A placement is built from the last stage to the first. Let `fill_s` be the seconds that the stages
built so far add to the fill of the pipeline (`sum of C_j + 2 X_j`, see `heterps_envs.closed_form`).
The step time of a finished placement is

    fill_s of all stages + max over s of (max(busy_s, link_s) - fill_s of s and what is behind it)

so a *target* for the second term, the bottleneck, bounds each stage as soon as it is built, and a
*fill limit* bounds the first term: what is built plus the rest on its fastest classes. A stage of a
class with k replicas grows to the front as far as target, fill limit, memory and the link to some
stage in front of it allow. Since 1F1B counts micro-batches in flight by the devices behind, memory
is exact.
Candidates are numbered `class * NUM_BUCKETS + bucket of the number of replicas`. A search may ask
for twice as many: the second half are the same stages, but stopped at an earlier cut, where there
is one that makes the fill shorter. (A slow class, or an expensive cut, delays all that is in
front.)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.closed_form import (
    CUT_BIT,
    REPLICA_SHIFT,
    behind_stage_s,
    in_flight,
    stage_after_s,
    stage_work_s,
)

REPLICA_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16)
NUM_BUCKETS = len(REPLICA_BUCKETS)
# The shorter way must still cover this share of the value of the longest.
LEAST_COVERED = 0.5
# Raise when any feature changes its meaning: policies carry the version that they were trained on.
FEATURE_VERSION = 2
NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES = 31, 13
LARGEST_RATIO = 4.0
# A candidate with more replicas than another that reaches as far must take so much less.
WORTHWHILE = 0.99

RUNNING, COMPLETE, STUCK = 0, 1, 2
_BUCKETS = np.array(REPLICA_BUCKETS)


class StageRows(NamedTuple):
    """The states of B episodes; all arrays have B rows.

    Attributes:
        problem: Row of the problem in `StageProblems`.
        target_s: The bottleneck aimed at.
        fill_limit_s: The most that the fill may become; inf for no limit.
        position: Layers before this one are not placed yet.
        front_class: Class of the front stage; -1 before the first one.
        num_stages, replicas_behind: Stages built, and their replicas.
        fill_s: What the stages add to the fill.
        behind_s: Closed-form step time of the stages built.
        used: (B, T) devices used.
        code: (B, L) int16 of the placement, see `heterps_envs.closed_form`.
        status: RUNNING, COMPLETE, or STUCK: no stage may come next.
    """

    problem: NDArray[np.int64]
    target_s: NDArray[np.float64]
    fill_limit_s: NDArray[np.float64]
    position: NDArray[np.int64]
    front_class: NDArray[np.int64]
    num_stages: NDArray[np.int64]
    replicas_behind: NDArray[np.int64]
    fill_s: NDArray[np.float64]
    behind_s: NDArray[np.float64]
    used: NDArray[np.int64]
    code: NDArray[np.int16]
    status: NDArray[np.int8]


class StageView(NamedTuple):
    """What `observe` writes: candidates for the next stage of B episodes, A = T * NUM_BUCKETS each.

    Attributes:
        candidates: (B, A, NUM_CANDIDATE_FEATURES), zero where the candidate is not allowed.
        state: (B, NUM_GLOBAL_FEATURES).
        allowed: (B, A).
        first_layer: (B, A) how far the stage grows.
        fill_s, behind_s: (B, A) those of `StageRows` with the stage appended.
    """

    candidates: NDArray[np.float32]
    state: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    first_layer: NDArray[np.int64]
    fill_s: NDArray[np.float64]
    behind_s: NDArray[np.float64]


def num_actions(max_classes: int) -> int:
    """Candidates of one decision: device class times replica bucket."""
    return max_classes * NUM_BUCKETS


@njit(cache=True, error_model="numpy", inline="always")
def stage_of(action: int, max_classes: int) -> tuple[int, int]:
    """Device class and replicas of a candidate."""
    stage = action % (max_classes * NUM_BUCKETS)
    return stage // NUM_BUCKETS, _BUCKETS[stage % NUM_BUCKETS]


def empty_rows(count: int, max_layers: int, max_classes: int) -> StageRows:
    """Room for `count` episodes; begin them with `start_rows`."""
    return StageRows(
        problem=np.zeros(count, np.int64),
        target_s=np.zeros(count),
        fill_limit_s=np.full(count, np.inf),
        position=np.zeros(count, np.int64),
        front_class=np.full(count, -1),
        num_stages=np.zeros(count, np.int64),
        replicas_behind=np.zeros(count, np.int64),
        fill_s=np.zeros(count),
        behind_s=np.zeros(count),
        used=np.zeros((count, max_classes), np.int64),
        code=np.zeros((count, max_layers), np.int16),
        status=np.zeros(count, np.int8),
    )


def empty_view(count: int, max_classes: int, with_shorter: bool = False) -> StageView:
    """Room for what `count` episodes see.

    Args:
        count: B.
        max_classes: T.
        with_shorter: Also for the stages that stop at an earlier cut: twice as many candidates.
    """
    actions = num_actions(max_classes) * (2 if with_shorter else 1)
    return StageView(
        candidates=np.zeros((count, actions, NUM_CANDIDATE_FEATURES), np.float32),
        state=np.zeros((count, NUM_GLOBAL_FEATURES), np.float32),
        allowed=np.zeros((count, actions), np.bool_),
        first_layer=np.zeros((count, actions), np.int64),
        fill_s=np.zeros((count, actions)),
        behind_s=np.zeros((count, actions)),
    )


def start_rows(
    p: Any, rows: StageRows, which: Any, problem: Any, target_s: Any, fill_limit_s: Any
) -> None:
    """Begins new episodes in the rows `which`.

    Args:
        p: `StageProblems`.
        rows: Written to.
        which: (K,) row indices.
        problem: (K,) or scalar, rows of the problems.
        target_s: (K,) or scalar.
        fill_limit_s: (K,) or scalar.
    """
    rows.problem[which], rows.target_s[which] = problem, target_s
    rows.fill_limit_s[which] = fill_limit_s
    rows.position[which] = p.num_layers[rows.problem[which]]
    rows.front_class[which] = -1
    for array in rows[5:]:
        array[which] = 0


@njit(cache=True, error_model="numpy")
def observe(p: Any, rows: Any, view: Any, which: Any) -> None:
    """Writes the candidates of running episodes; one without any becomes STUCK.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        view: `StageView`, written to.
        which: (K,) row indices.
    """
    for row in which:
        if rows.status[row] == RUNNING and not _observe_row(p, rows, view, row):
            rows.status[row] = STUCK


@njit(cache=True, error_model="numpy")
def advance(p: Any, rows: Any, view: Any, actions: Any) -> None:
    """Appends the chosen stage in every running episode.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        view: What `observe` wrote for these rows.
        actions: (B,) allowed candidates.
    """
    for row in range(len(rows.problem)):
        if rows.status[row] != RUNNING:
            continue
        action = actions[row]
        kind, replicas = stage_of(action, rows.used.shape[1])
        start, stop = view.first_layer[row, action], rows.position[row]
        for layer in range(start, stop):
            rows.code[row, layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if rows.front_class[row] == kind:
            rows.code[row, stop - 1] |= CUT_BIT
        rows.used[row, kind] += replicas
        rows.replicas_behind[row] += replicas
        rows.num_stages[row] += 1
        rows.front_class[row] = kind
        rows.fill_s[row] = view.fill_s[row, action]
        rows.behind_s[row] = view.behind_s[row, action]
        rows.position[row] = start
        if start == 0:
            rows.status[row] = COMPLETE
            _clear(view, row)


@njit(cache=True, error_model="numpy")
def _clear(view: Any, row: int) -> None:
    """Takes all candidates away. Those that are not allowed are zero already."""
    for action in range(view.allowed.shape[1]):
        if view.allowed[row, action]:
            view.allowed[row, action] = False
            view.candidates[row, action] = 0.0


@njit(cache=True, error_model="numpy", inline="always")
def _after_s(p: Any, z: int, start: int, stop: int, kind: int, replicas: int) -> float:
    return stage_after_s(
        p.gradient_prefix_bytes[z, stop] - p.gradient_prefix_bytes[z, start],
        p.optimizer_prefix_s[z, stop, kind] - p.optimizer_prefix_s[z, start, kind],
        replicas,
        p.latency_s[z, kind, kind],
        p.inverse_bandwidth_s_per_byte[z, kind, kind],
    )


@njit(cache=True, error_model="numpy", inline="always")
def _busy_s(
    p: Any, z: int, start: int, stop: int, kind: int, replicas: int, held: int, round_trip_s: float
) -> float:
    """Seconds of the busiest replica: passes, waiting for the round trip, all-reduce, optimizer."""
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    share = _share(p.num_micro_batches[z], replicas)
    work = stage_work_s(forward, compute - forward, round_trip_s, share, held)
    return work + _after_s(p, z, start, stop, kind, replicas)


@njit(cache=True, error_model="numpy", inline="always")
def _memory(p: Any, z: int, start: int, stop: int, held: int) -> float:
    """Bytes of a stage on one device, as `heterps_envs.closed_form.evaluate_one` counts them."""
    return (p.state_prefix_bytes[z, stop] - p.state_prefix_bytes[z, start]) + held * (  # type: ignore[no-any-return]
        p.activation_prefix_bytes[z, stop] - p.activation_prefix_bytes[z, start]
    )


@njit(cache=True, error_model="numpy", inline="always")
def _share(num_micro_batches: int, replicas: int) -> int:
    """Micro-batches of the busiest replica."""
    return (num_micro_batches + replicas - 1) // replicas


@njit(cache=True, error_model="numpy")
def _fits(
    p: Any,
    z: int,
    start: int,
    stop: int,
    kind: int,
    replicas: int,
    held: int,
    allowance_s: float,
    fill_left_s: float,
    round_trip_s: float,
) -> bool:
    """Memory, target and fill limit hold; all only get worse as the stage grows."""
    if _memory(p, z, start, stop, held) > p.memory_bytes[z, kind]:
        return False
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    if compute + p.fastest_prefix_s[z, start] > fill_left_s:
        return False
    busy = _busy_s(p, z, start, stop, kind, replicas, held, round_trip_s)
    return busy - compute <= allowance_s  # type: ignore[no-any-return]


@njit(cache=True, inline="always")
def _list_fronts(p: Any, rows: Any, row: int, kind: int, replicas: int, fronts: Any) -> None:
    """Writes what a stage in front of a candidate does at best, on all devices that are left.

    Into `fronts` (T, 3): micro-batches of its busiest replica (0: no device is left), those in
    flight, and the round trips that follow each other beyond the first.
    """
    z = rows.problem[row]
    micro_batches, behind = p.num_micro_batches[z], rows.replicas_behind[row] + replicas
    for front in range(p.num_classes[z]):
        left = p.device_count[z, front] - rows.used[row, front]
        if front == kind:
            left -= replicas
        fronts[front, 0] = 0
        if left > 0:
            most = min(left, micro_batches)
            share = _share(micro_batches, most)
            held = in_flight(micro_batches, p.is_gpipe[z], most, behind)
            fronts[front, 0], fronts[front, 1] = share, held
            fronts[front, 2] = (share + held - 1) // held - 1


@njit(cache=True, error_model="numpy")
def _best_front_link(
    p: Any,
    z: int,
    start: int,
    kind: int,
    fronts: Any,
    target_s: float,
    fill_s: float,
    fill_left_s: float,
) -> tuple[float, float, float]:
    """Share of the allowance that the best link to the front takes; above 1: there is none.

    The stage in front must also hold at least the layer before `start`, its link must leave enough
    of the fill limit for the layers before `start`, and the round trips that follow each other
    (ceil(share / held) of them) must fit into the target.

    Returns the share, the seconds of the shortest message there and back, and the least share of
    the target that those further round trips take.
    """
    best, least_message, least_rounds = 2 * LARGEST_RATIO, np.inf, np.inf
    for front in range(p.num_classes[z]):
        share, held = fronts[front, 0], fronts[front, 1]
        if share == 0 or _memory(p, z, start - 1, start, held) > p.memory_bytes[z, front]:
            continue
        transfer = p.output_bytes[z, start - 1] * p.inverse_bandwidth_s_per_byte[z, front, kind]
        message = 2.0 * (p.latency_s[z, front, kind] + transfer)
        rounds = fronts[front, 2] * (message + fill_s) / target_s
        if message > fill_left_s or rounds > 1.0:
            continue
        best = min(best, (share - 1) * transfer / (target_s + fill_s))
        least_message, least_rounds = min(least_message, message), min(least_rounds, rounds)
    return best, least_message, least_rounds


@njit(cache=True, inline="always")
def _grow(
    p: Any,
    rows: Any,
    row: int,
    kind: int,
    replicas: int,
    held: int,
    through_s: float,
    allowance_s: float,
    fronts: Any,
) -> int:
    """First layer of the longest stage that is allowed; -1: there is none."""
    z, stop = rows.problem[row], rows.position[row]
    own_allowance = allowance_s + through_s
    fill_left = rows.fill_limit_s[row] - rows.fill_s[row] - through_s
    trip = rows.fill_s[row] + through_s
    if not _fits(p, z, stop - 1, stop, kind, replicas, held, own_allowance, fill_left, trip):
        return -1
    low, high = -1, stop - 1  # `high` fits, `low` does not
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(p, z, middle, stop, kind, replicas, held, own_allowance, fill_left, trip):
            high = middle
        else:
            low = middle
    start = high
    while 0 < start < stop:
        compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
        slack = fill_left - compute - p.fastest_prefix_s[z, start]
        link, _, _ = _best_front_link(
            p, z, start, kind, fronts, rows.target_s[row], trip + compute, slack
        )
        if link <= 1.0:
            return start  # type: ignore[no-any-return]
        start += 1
    return 0 if start == 0 else -1


@njit(cache=True, inline="always")
def _shrink(
    p: Any, rows: Any, row: int, kind: int, through_s: float, longest: int, fronts: Any
) -> int:
    """First layer behind `longest` with the least fill; -1: none has less."""
    z, stop = rows.problem[row], rows.position[row]
    trip = rows.fill_s[row] + through_s
    fill_left = rows.fill_limit_s[row] - trip
    best = -1
    value = p.value_prefix_s[z]
    last = value[stop] - LEAST_COVERED * (value[stop] - value[longest])
    least, latency, inverse_bandwidth = np.inf, np.inf, np.inf
    for front in range(p.num_classes[z]):
        latency = min(latency, p.latency_s[z, front, kind])
        inverse_bandwidth = min(inverse_bandwidth, p.inverse_bandwidth_s_per_byte[z, front, kind])
    for start in range(longest, stop):
        if value[start] > last:
            break
        compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
        fill = compute + p.fastest_prefix_s[z, start]
        link = 0.0
        if start > 0:
            # The exact look at the links is dear; skip it where no link could make up for it.
            message = 2.0 * (latency + p.output_bytes[z, start - 1] * inverse_bandwidth)
            if fill + message >= WORTHWHILE * least:
                continue
            link, message, _ = _best_front_link(
                p, z, start, kind, fronts, rows.target_s[row], trip + compute, fill_left - fill
            )
            fill += message
        if link <= 1.0 and fill < WORTHWHILE * least:
            best, least = start, fill
    return best if best > longest else -1


@njit(cache=True, error_model="numpy", inline="always")
def _ratio(numerator: float, denominator: float) -> float:
    """The quotient of two non-negative numbers, at most LARGEST_RATIO."""
    if numerator >= LARGEST_RATIO * denominator:
        return LARGEST_RATIO if numerator > 0.0 else 0.0
    return numerator / denominator


@njit(cache=True, error_model="numpy", inline="always")
def _log_ratio(numerator: float, denominator: float) -> float:
    value = np.log(max(numerator, 1e-30) / max(denominator, 1e-30))
    return min(LARGEST_RATIO, max(-LARGEST_RATIO, value))  # type: ignore[no-any-return]


@njit(cache=True, inline="always")
def _observe_row(p: Any, rows: Any, view: Any, row: int) -> bool:
    z, stop = rows.problem[row], rows.position[row]
    allowance_s = rows.target_s[row] + rows.fill_s[row]
    free_price, free_bytes = 0.0, 0.0
    fronts = np.empty((p.num_classes[z], 3), np.int64)
    for kind in range(p.num_classes[z]):
        free = p.device_count[z, kind] - rows.used[row, kind]
        free_price += free * p.class_price[z, kind]
        free_bytes += free * p.memory_bytes[z, kind]
    _clear(view, row)
    _observe_state(p, rows, view, row, free_price, free_bytes, allowance_s)
    found = False
    for kind in range(p.num_classes[z]):
        free = p.device_count[z, kind] - rows.used[row, kind]
        # More replicas that neither reach further nor shorten the step time are a waste.
        reached, shortest_s = stop, np.inf
        for bucket in range(NUM_BUCKETS):
            replicas = _BUCKETS[bucket]
            if replicas > free or replicas > p.num_micro_batches[z]:
                break
            start, behind_s = _observe_bucket(
                p, rows, view, row, kind, bucket, reached, WORTHWHILE * shortest_s,
                free_price, free_bytes, allowance_s, fronts,
            )  # fmt: skip
            if start >= 0:
                found = True
                reached, shortest_s = min(reached, start), min(shortest_s, behind_s)
    return found


@njit(cache=True, inline="always")
def _observe_state(
    p: Any,
    rows: Any,
    view: Any,
    row: int,
    free_price: float,
    free_bytes: float,
    allowance_s: float,
) -> None:
    z, stop = rows.problem[row], rows.position[row]
    layers, micro_batches = p.num_layers[z], p.num_micro_batches[z]
    held = micro_batches if p.is_gpipe[z] else min(micro_batches, rows.replicas_behind[row] + 1)
    out = view.state[row]
    out[0] = _ratio(p.value_prefix_s[z, stop], p.value_prefix_s[z, layers])
    out[1] = stop / layers
    out[2] = min(rows.num_stages[row] / 8.0, LARGEST_RATIO)
    out[3] = _ratio(p.value_prefix_s[z, stop], free_price * allowance_s)
    out[4] = _log_ratio(rows.target_s[row], p.lower_bound_s[z])
    out[5] = p.num_classes[z] / 8.0
    out[6] = _ratio(rows.replicas_behind[row], micro_batches)
    out[7] = _ratio(rows.fill_s[row], rows.target_s[row])
    out[8] = _ratio(_memory(p, z, 0, stop, held), free_bytes)
    out[9] = _ratio(p.fastest_prefix_s[z, stop], allowance_s)
    out[10] = min(np.log2(micro_batches) / 8.0, LARGEST_RATIO)
    out[11] = 1.0 if p.is_gpipe[z] else 0.0
    out[12] = _ratio(p.fastest_prefix_s[z, stop], rows.fill_limit_s[row] - rows.fill_s[row])


@njit(cache=True, inline="always")
def _observe_bucket(
    p: Any,
    rows: Any,
    view: Any,
    row: int,
    kind: int,
    bucket: int,
    reached: int,
    shortest_s: float,
    free_price: float,
    free_bytes: float,
    allowance_s: float,
    fronts: Any,
) -> tuple[int, float]:
    """Writes the stage of a class and number of replicas, if it is worth it.

    It must grow beyond `reached` or take less than `shortest_s`. Returns its first layer,
    or -1, and the step time from it on.
    """
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    replicas, micro_batches = _BUCKETS[bucket], p.num_micro_batches[z]
    held = in_flight(micro_batches, p.is_gpipe[z], replicas, rows.replicas_behind[row])
    link, through_s = 0.0, 0.0
    if neighbour >= 0:
        transfer = p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, neighbour]
        link = (_share(micro_batches, replicas) - 1) * transfer / allowance_s
        through_s = 2.0 * (p.latency_s[z, kind, neighbour] + transfer)
    if link > 1.0:
        return -1, 0.0
    _list_fronts(p, rows, row, kind, replicas, fronts)
    start = _grow(p, rows, row, kind, replicas, held, through_s, allowance_s, fronts)
    if start < 0:
        return -1, 0.0
    behind_s = _behind_s(p, rows, row, kind, replicas, held, start)
    if start >= reached and behind_s >= shortest_s:
        return -1, 0.0
    actions = rows.used.shape[1] * NUM_BUCKETS
    shorter = -1
    if view.allowed.shape[1] > actions:
        shorter = _shrink(p, rows, row, kind, through_s, start, fronts)
    for cut in range(2 if shorter >= 0 else 1):
        _observe_candidate(
            p, rows, view, row, cut * actions + kind * NUM_BUCKETS + bucket,
            shorter if cut else start, held, link, through_s, free_price, free_bytes, allowance_s,
            fronts,
        )  # fmt: skip
    return start, behind_s


@njit(cache=True, error_model="numpy")
def _behind_s(
    p: Any, rows: Any, row: int, kind: int, replicas: int, held: int, start: int
) -> float:
    """Step time with a stage that begins at `start`."""
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    transfer, latency = 0.0, 0.0
    if neighbour >= 0:
        transfer = p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, neighbour]
        latency = p.latency_s[z, kind, neighbour]
    return behind_stage_s(
        forward, compute - forward, _after_s(p, z, start, stop, kind, replicas),
        rows.behind_s[row], rows.fill_s[row], neighbour >= 0,
        _share(p.num_micro_batches[z], replicas), held, transfer, latency,
    )  # fmt: skip


@njit(cache=True, inline="always")
def _observe_candidate(
    p: Any,
    rows: Any,
    view: Any,
    row: int,
    action: int,
    start: int,
    held: int,
    link: float,
    through_s: float,
    free_price: float,
    free_bytes: float,
    allowance_s: float,
    fronts: Any,
) -> None:
    """Writes one candidate."""
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    kind, replicas = stage_of(action, rows.used.shape[1])
    layers, micro_batches = p.num_layers[z], p.num_micro_batches[z]
    share = _share(micro_batches, replicas)
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    after = _after_s(p, z, start, stop, kind, replicas)
    trip = through_s + rows.fill_s[row]  # 0 for the last stage
    busy = after + stage_work_s(forward, compute - forward, trip, share, held)
    behind_s = _behind_s(p, rows, row, kind, replicas, held, start)
    view.allowed[row, action] = True
    view.first_layer[row, action] = start
    view.fill_s[row, action] = trip + compute
    view.behind_s[row, action] = behind_s

    price, count = p.class_price[z, kind], p.device_count[z, kind]
    free = count - rows.used[row, kind]
    covered = p.value_prefix_s[z, stop] - p.value_prefix_s[z, start]
    remaining = p.value_prefix_s[z, start]
    next_allowance = allowance_s + compute + through_s
    memory = _memory(p, z, start, stop, held)
    next_behind = rows.replicas_behind[row] + replicas
    next_held = micro_batches if p.is_gpipe[z] else min(micro_batches, next_behind + 1)
    fastest = p.fastest_prefix_s[z, stop] - p.fastest_prefix_s[z, start]
    out = view.candidates[row, action]
    out[0] = 1.0
    out[1] = _ratio(covered, p.value_prefix_s[z, layers])
    out[2] = _ratio(covered, price * replicas * allowance_s)
    out[3] = _ratio(price * replicas, free_price)
    out[4] = (free - replicas) / count
    out[5] = min(replicas / 8.0, LARGEST_RATIO)
    out[6] = max(0.0, busy - compute - through_s) / allowance_s
    out[7] = memory / p.memory_bytes[z, kind]
    out[8] = link
    out[9] = (stop - start) / layers
    out[10] = 1.0 if start == 0 else 0.0
    if start > 0:
        _observe_front(p, rows, row, kind, start, trip + compute, fronts, out)
    out[12] = _ratio(remaining, max(0.0, free_price - price * replicas) * next_allowance)
    out[13] = min(np.log1p(count) / 3.0, LARGEST_RATIO)
    out[14] = 1.0 if kind == neighbour else 0.0
    own_value = price * (
        compute * micro_batches
        + p.optimizer_prefix_s[z, stop, kind]
        - p.optimizer_prefix_s[z, start, kind]
    )
    out[15] = _ratio(max(0.0, own_value - covered), covered)
    out[16] = share * replicas / micro_batches - 1.0
    out[17] = _ratio(after, busy)
    out[18] = _ratio(compute + through_s, allowance_s)
    out[19] = _ratio(max(0.0, compute - fastest), fastest)
    grown = start > 0 and _memory(p, z, start - 1, stop, held) > p.memory_bytes[z, kind]
    out[20] = 1.0 if grown else 0.0
    taken = replicas * p.memory_bytes[z, kind]
    out[21] = _ratio(_memory(p, z, 0, start, next_held), max(0.0, free_bytes - taken))
    out[22] = taken / free_bytes
    out[23] = memory / taken
    out[24] = _ratio(p.fastest_prefix_s[z, start], next_allowance)
    out[25] = _log_ratio(behind_s + p.fastest_prefix_s[z, start], p.lower_bound_s[z])
    fill_left = rows.fill_limit_s[row] - rows.fill_s[row] - compute - through_s
    out[26] = _ratio(p.fastest_prefix_s[z, start], fill_left)
    out[27] = _ratio(max(0.0, busy - after - share * compute), busy)
    out[28] = _ratio(next_behind, micro_batches)


@njit(cache=True, inline="always")
def _observe_front(
    p: Any, rows: Any, row: int, kind: int, start: int, fill_s: float, fronts: Any, out: Any
) -> None:
    """Writes the features of the cut in front of a stage that begins at `start`."""
    z = rows.problem[row]
    slack = rows.fill_limit_s[row] - fill_s - p.fastest_prefix_s[z, start]
    link, message, rounds = _best_front_link(
        p, z, start, kind, fronts, rows.target_s[row], fill_s, slack
    )
    out[11] = link
    out[29] = _ratio(message, rows.target_s[row] + fill_s)
    out[30] = rounds
