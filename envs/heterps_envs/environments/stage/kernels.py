"""One decision, compiled: the candidates for the next stage with their features, and the step.

The process itself is described in `heterps_envs.environments.stage.state`, the features in
`heterps_envs.environments.stage.env`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from heterps_envs.closed_form.formula import CUT_BIT, REPLICA_SHIFT, in_flight, stage_work_s
from heterps_envs.compiled import BORROWING
from heterps_envs.environments.base.state import (
    COMPLETE,
    LARGEST_RATIO,
    RUNNING,
    STUCK,
    log_ratio,
    ratio,
    take_candidates,
)
from heterps_envs.environments.stage.growth import (
    WORTHWHILE,
    Growing,
    all_reduce_and_optimizer_s,
    behind_with_stage_s,
    best_front_link,
    bytes_in_front,
    largest_share,
    least_fill_stage,
    least_price_in_front,
    list_fronts,
    longest_stage,
    stage_bytes,
    tightest_layer,
)
from heterps_envs.environments.stage.state import (
    NUM_CANDIDATE_FEATURES,
    NUM_GLOBAL_FEATURES,
    NUM_RUNGS,
    new_scratch,
    option_of,
    rung_of,
)


class _Left(NamedTuple):
    """What a row has left for the stages to come.

    Attributes:
        free_price: LP-dual price of the free devices.
        free_bytes: Their memory.
        dollars: US dollars per hour up to the price limit.
        allowance_s: Target plus fill so far.
    """

    free_price: float
    free_bytes: float
    dollars: float
    allowance_s: float


class _Wanted(NamedTuple):
    """A stage, and when it is worth it: if it reaches further, or the step time is shorter.

    Attributes:
        kind: Its class.
        rung: Of its number of replicas.
        replicas: Its replicas, at most.
        below: Those of the rung before.
        reached: First layer of the stages of fewer replicas.
        shortest_s: Limit of the step time from it on.
    """

    kind: int
    rung: int
    replicas: int
    below: int
    reached: int
    shortest_s: float


class _Found(NamedTuple):
    """A stage that may come next.

    Attributes:
        action: Its candidate.
        replicas: Its replicas.
        start: Its first layer.
        held: Micro-batches in flight on a replica.
        behind_s: Step time from it on.
        link: Share of the allowance that the link behind it takes.
        through_s: A message over that link, there and back.
        tightest: See `heterps_envs.environments.stage.growth.tightest_layer`.
    """

    action: int
    replicas: int
    start: int
    held: int
    behind_s: float
    link: float
    through_s: float
    tightest: float


@njit(cache=True, error_model="numpy")
def observe(p: Any, rows: Any, view: Any, which: Any) -> None:
    """Writes the candidates of running episodes; one without any becomes STUCK.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        view: `StageView`, written to.
        which: (K,) row indices.
    """
    scratch = new_scratch(rows.used.shape[1])
    for row in which:
        if rows.status[row] == RUNNING and not observe_row(p, rows, row, view, row, scratch):
            rows.status[row] = STUCK


@njit(**BORROWING)
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
        kind, replicas = option_of(action, rows.used.shape[1]), view.replicas[row, action]
        start, stop = view.first_layer[row, action], rows.position[row]
        for layer in range(start, stop):
            rows.code[row, layer] = kind | ((replicas - 1) << REPLICA_SHIFT)
        if rows.front_class[row] == kind:
            rows.code[row, stop - 1] |= CUT_BIT
        z = rows.problem[row]
        rows.used[row, p.class_of_option[z, kind]] += replicas * p.devices_of_option[z, kind]
        rows.replicas_behind[row] += replicas
        rows.num_stages[row] += 1
        rows.front_class[row] = kind
        rows.fill_s[row] = view.fill_s[row, action]
        rows.behind_s[row] = view.behind_s[row, action]
        rows.position[row] = start
        if start == 0:
            rows.status[row] = COMPLETE
            take_candidates(view, row)


@njit(**BORROWING)
def observe_row(p: Any, rows: Any, row: int, view: Any, line: int, scratch: Any) -> bool:
    """Writes the candidates of one running episode; returns whether there is one.

    Args:
        p: `StageProblems`.
        rows: `StageRows`.
        row: The episode.
        view: `StageView`, written to.
        line: Which of its rows.
        scratch: From `new_scratch`.
    """
    z, stop = rows.problem[row], rows.position[row]
    allowance_s = rows.target_s[row] + rows.fill_s[row]
    free_price, free_bytes, dollars_left = 0.0, 0.0, rows.price_limit_usd_per_hour[row]
    for kind in range(p.num_classes[z]):
        free = p.device_count[z, kind] - rows.used[row, kind]
        free_price += free * p.class_price[z, kind]
        free_bytes += free * p.class_memory_bytes[z, kind]
        dollars_left -= rows.used[row, kind] * p.class_usd_per_hour[z, kind]
    left = _Left(free_price, free_bytes, dollars_left, allowance_s)
    take_candidates(view, line)
    _observe_state(p, rows, row, view, line, left)
    if view.state.shape[1] > NUM_GLOBAL_FEATURES:
        _observe_budget(p, rows, row, view, line, left)
    found = False
    for kind in range(p.num_options[z]):
        device_class = p.class_of_option[z, kind]
        free = p.device_count[z, device_class] - rows.used[row, device_class]
        free //= p.devices_of_option[z, kind]
        # More replicas that neither reach further nor shorten the step time are a waste.
        reached, shortest_s, replicas = stop, np.inf, 0
        most = min(free, p.num_micro_batches[z])
        if dollars_left < most * p.price_usd_per_hour[z, kind]:
            most = int(dollars_left / p.price_usd_per_hour[z, kind])
        for rung in range(NUM_RUNGS):
            below, replicas = replicas, rung_of(most, rung, replicas)
            if replicas > most:
                break
            wanted = _Wanted(kind, rung, replicas, below, reached, WORTHWHILE * shortest_s)
            start, behind_s = _observe_rung(p, rows, row, view, line, wanted, left, scratch)
            if start >= 0:
                found = True
                reached, shortest_s = min(reached, start), min(shortest_s, behind_s)
    return found


@njit(**BORROWING, inline="always")
def _observe_state(p: Any, rows: Any, row: int, view: Any, line: int, left: Any) -> None:
    free_price, free_bytes, _, allowance_s = left
    z, stop = rows.problem[row], rows.position[row]
    layers, micro_batches = p.num_layers[z], p.num_micro_batches[z]
    least_bytes = bytes_in_front(p, z, stop, rows.replicas_behind[row])
    out = view.state[line]
    out[0] = ratio(p.value_prefix_s[z, stop], p.value_prefix_s[z, layers])
    out[1] = stop / layers
    out[2] = np.log2(1.0 + rows.num_stages[row]) / 4.0
    out[3] = ratio(p.value_prefix_s[z, stop], free_price * allowance_s)
    out[4] = log_ratio(rows.target_s[row], p.lower_bound_s[z])
    out[5] = p.num_classes[z] / 8.0
    out[6] = ratio(rows.replicas_behind[row], micro_batches)
    out[7] = ratio(rows.fill_s[row], rows.target_s[row])
    out[8] = ratio(least_bytes, free_bytes)
    out[9] = ratio(p.fastest_prefix_s[z, stop], allowance_s)
    out[10] = min(np.log2(micro_batches) / 8.0, LARGEST_RATIO)
    out[11] = 1.0 if p.is_gpipe[z] else 0.0
    out[12] = ratio(p.fastest_prefix_s[z, stop], rows.fill_limit_s[row] - rows.fill_s[row])


@njit(**BORROWING, inline="always")
def _observe_budget(p: Any, rows: Any, row: int, view: Any, line: int, left: Any) -> None:
    """Writes the features of the state that tell of the price limit; zero without one."""
    _, _, dollars_left, allowance_s = left
    z, limit, out = rows.problem[row], rows.price_limit_usd_per_hour[row], view.state[line]
    out[NUM_GLOBAL_FEATURES:] = 0.0
    if limit < np.inf:
        out[13] = 1.0
        out[14] = ratio(p.dollars_prefix[z, rows.position[row]], dollars_left * allowance_s)
        out[15] = ratio(dollars_left, limit)
        longest_s = max(rows.target_s[row], p.lower_bound_s[z])
        out[16] = log_ratio(limit * longest_s, p.dollars_prefix[z, p.num_layers[z]])


@njit(**BORROWING)
def _reach(
    p: Any, rows: Any, row: int, kind: int, replicas: int, allowance_s: float, scratch: Any
) -> int:
    """First layer of the longest stage of so many replicas; -1: there is none.

    Writes what `heterps_envs.environments.stage.growth.longest_stage` does.
    """
    z, neighbour = rows.problem[row], rows.front_class[row]
    micro_batches = p.num_micro_batches[z]
    held = in_flight(micro_batches, p.is_gpipe[z], replicas, rows.replicas_behind[row])
    share, through_s = largest_share(micro_batches, replicas), 0.0
    if neighbour >= 0:
        transfer = _transfer_s(p, z, rows.position[row], kind, neighbour)
        if (share - 1) * transfer > allowance_s:
            return -1
        through_s = 2.0 * (p.latency_s[z, kind, neighbour] + transfer)
    stage = Growing(kind, replicas, held, share, (share + held - 1) // held)
    return longest_stage(p, rows, row, stage, through_s, allowance_s, scratch)  # type: ignore[no-any-return]


@njit(**BORROWING, inline="always")
def _transfer_s(p: Any, z: int, stop: int, kind: int, neighbour: int) -> float:
    """Bytes over bandwidth of a message over the cut behind a stage."""
    return p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, neighbour]  # type: ignore[no-any-return]


@njit(**BORROWING)
def _fewest(
    p: Any, rows: Any, row: int, wanted: Any, start: int, allowance_s: float, scratch: Any
) -> int:
    """The least number of replicas, above those of the rung before, that reaches as far."""
    low, high = wanted.below, wanted.replicas
    while high - low > 1:
        middle = (low + high) >> 1
        if _reach(p, rows, row, wanted.kind, middle, allowance_s, scratch) == start:
            high = middle
        else:
            low = middle
    return high  # type: ignore[no-any-return]


@njit(**BORROWING, inline="always")
def _observe_rung(
    p: Any, rows: Any, row: int, view: Any, line: int, wanted: Any, left: Any, scratch: Any
) -> tuple[int, float]:
    """Writes the wanted stage, if it is worth it.

    Returns its first layer, or -1, and the step time from it on.
    """
    fronts, front = scratch
    kind, rung, replicas, below, reached, shortest_s = wanted
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    start = _reach(p, rows, row, kind, replicas, left.allowance_s, scratch)
    if start < 0:
        return -1, 0.0
    if start < reached and replicas - below > 1 and rung < NUM_RUNGS - 1:
        replicas = _fewest(p, rows, row, wanted, start, left.allowance_s, scratch)
        _reach(p, rows, row, kind, replicas, left.allowance_s, scratch)
    micro_batches = p.num_micro_batches[z]
    held = in_flight(micro_batches, p.is_gpipe[z], replicas, rows.replicas_behind[row])
    share = largest_share(micro_batches, replicas)
    link, through_s = 0.0, 0.0
    if neighbour >= 0:
        transfer = _transfer_s(p, z, stop, kind, neighbour)
        link = (share - 1) * transfer / left.allowance_s
        through_s = 2.0 * (p.latency_s[z, kind, neighbour] + transfer)
    behind_s = behind_with_stage_s(p, rows, row, kind, replicas, held, start)
    if start >= reached and behind_s >= shortest_s:
        return -1, 0.0
    tightest, next_behind = 0.0, rows.replicas_behind[row] + replicas
    taken = (
        replicas
        * p.devices_of_option[z, kind]
        * p.class_memory_bytes[z, p.class_of_option[z, kind]]
    )
    bytes_left = left.free_bytes - taken
    dollars_left = left.dollars - replicas * p.price_usd_per_hour[z, kind]
    if start > 0:
        tightest = tightest_layer(p, z, 0, start, fronts, 0.0)
        if tightest > 1.0 or bytes_in_front(p, z, start, next_behind) > bytes_left:
            return -1, 0.0
        if least_price_in_front(p, rows, row, start, fronts) > dollars_left:
            return -1, 0.0
    actions = rows.used.shape[1] * NUM_RUNGS
    shorter = -1
    if view.allowed.shape[1] > actions:
        if start == 0:
            list_fronts(p, rows, row, kind, replicas, fronts)
        shorter = least_fill_stage(p, rows, row, kind, through_s, start, fronts)
    action = kind * NUM_RUNGS + rung
    for cut in range(2 if shorter >= 0 else 1):
        first, reached_s = start, behind_s
        if cut == 1:
            first = shorter
            tightest = tightest_layer(p, z, start, first, fronts, tightest)
            if tightest > 1.0 or bytes_in_front(p, z, first, next_behind) > bytes_left:
                break
            if least_price_in_front(p, rows, row, first, fronts) > dollars_left:
                break
            reached_s = behind_with_stage_s(p, rows, row, kind, replicas, held, first)
            fill = rows.fill_s[row] + through_s
            fill += p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, first, kind]
            front[0], front[1], front[2] = best_front_link(
                p, z, first, kind, fronts, rows.target_s[row], fill,
                rows.fill_limit_s[row] - fill - p.fastest_prefix_s[z, first],
            )  # fmt: skip
        found = _Found(
            cut * actions + action, replicas, first, held, reached_s, link, through_s, tightest
        )
        _observe_candidate(p, rows, row, view, line, found, left, front)
    return start, behind_s


@njit(**BORROWING, inline="always")
def _observe_candidate(
    p: Any, rows: Any, row: int, view: Any, line: int, found: Any, left: Any, front: Any
) -> None:
    """Writes one candidate."""
    action, replicas, start, held, behind_s, link, through_s, tightest = found
    free_price, free_bytes, dollars_left, allowance_s = left
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    kind = option_of(action, rows.used.shape[1])
    layers, micro_batches = p.num_layers[z], p.num_micro_batches[z]
    share = largest_share(micro_batches, replicas)
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    after = all_reduce_and_optimizer_s(p, z, start, stop, kind, replicas)
    trip = through_s + rows.fill_s[row]  # 0 for the last stage
    busy = after + stage_work_s(forward, compute - forward, trip, share, held)
    view.allowed[line, action] = True
    view.first_layer[line, action] = start
    view.replicas[line, action] = replicas
    view.fill_s[line, action] = trip + compute
    view.behind_s[line, action] = behind_s

    # What is one device of a class is the group of an option.
    size, device_class = p.devices_of_option[z, kind], p.class_of_option[z, kind]
    price, count = p.class_price[z, device_class] * size, p.device_count[z, device_class] // size
    free = (p.device_count[z, device_class] - rows.used[row, device_class]) // size
    covered = p.value_prefix_s[z, stop] - p.value_prefix_s[z, start]
    remaining = p.value_prefix_s[z, start]
    next_allowance = allowance_s + compute + through_s
    memory = stage_bytes(p, z, start, stop, kind, replicas, held)
    next_behind = rows.replicas_behind[row] + replicas
    fastest = p.fastest_prefix_s[z, stop] - p.fastest_prefix_s[z, start]
    out = view.candidates[line, action]
    out[0] = 1.0
    out[1] = ratio(covered, p.value_prefix_s[z, layers])
    out[2] = ratio(covered, price * replicas * allowance_s)
    out[3] = ratio(price * replicas, free_price)
    out[4] = (free - replicas) / count
    out[5] = np.log2(replicas) / 4.0
    out[6] = max(0.0, busy - compute - through_s) / allowance_s
    out[7] = memory / p.memory_bytes[z, kind]
    out[8] = link
    out[9] = (stop - start) / layers
    out[10] = 1.0 if start == 0 else 0.0
    if start > 0:
        out[11] = front[0]
        out[29] = ratio(front[1], rows.target_s[row] + trip + compute)
        out[30] = front[2]
    out[12] = ratio(remaining, max(0.0, free_price - price * replicas) * next_allowance)
    out[13] = np.log1p(count) / 3.0
    out[14] = 1.0 if kind == neighbour else 0.0
    own_value = price * (
        compute * micro_batches
        + p.optimizer_prefix_s[z, stop, kind]
        - p.optimizer_prefix_s[z, start, kind]
    )
    out[15] = ratio(max(0.0, own_value - covered), covered)
    out[16] = share * replicas / micro_batches - 1.0
    out[17] = ratio(after, busy)
    out[18] = ratio(compute + through_s, allowance_s)
    out[19] = ratio(max(0.0, compute - fastest), fastest)
    room = p.memory_bytes[z, kind]
    grown = start > 0 and stage_bytes(p, z, start - 1, stop, kind, replicas, held) > room
    out[20] = 1.0 if grown else 0.0
    taken = replicas * size * p.class_memory_bytes[z, device_class]
    out[21] = ratio(bytes_in_front(p, z, start, next_behind), max(0.0, free_bytes - taken))
    out[22] = taken / free_bytes
    out[23] = size * memory / taken
    out[24] = ratio(p.fastest_prefix_s[z, start], next_allowance)
    out[25] = log_ratio(behind_s + p.fastest_prefix_s[z, start], p.lower_bound_s[z])
    fill_left = rows.fill_limit_s[row] - rows.fill_s[row] - compute - through_s
    out[26] = ratio(p.fastest_prefix_s[z, start], fill_left)
    out[27] = ratio(max(0.0, busy - after - share * compute), busy)
    out[28] = ratio(next_behind, micro_batches)
    out[31] = 1.0 if action >= rows.used.shape[1] * NUM_RUNGS else 0.0
    out[32] = tightest
    if view.candidates.shape[2] > NUM_CANDIDATE_FEATURES and dollars_left < np.inf:
        dollars = replicas * p.price_usd_per_hour[z, kind]
        cheapest = p.dollars_prefix[z, stop] - p.dollars_prefix[z, start]
        own = p.price_usd_per_hour[z, kind] * (
            compute * micro_batches
            + p.optimizer_prefix_s[z, stop, kind]
            - p.optimizer_prefix_s[z, start, kind]
        )
        out[33] = ratio(dollars, dollars_left)
        out[34] = ratio(p.dollars_prefix[z, start], (dollars_left - dollars) * next_allowance)
        out[35] = ratio(cheapest, dollars * allowance_s)
        out[36] = ratio(max(0.0, own - cheapest), cheapest)
