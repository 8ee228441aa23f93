"""Features of a decision, compiled: those of the state, of a price limit, and of each candidate.

What they mean is said in `heterps_envs.environments.stage.env`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.closed_form.stage_formula import stage_work_s
from heterps_envs.compiled import uncounted_helper
from heterps_envs.environments.base.state import LARGEST_RATIO, log_ratio, ratio
from heterps_envs.environments.stage.growth import (
    all_reduce_and_optimizer_s,
    bytes_in_front,
    largest_share,
    open_in_flight,
    stage_bytes,
)
from heterps_envs.environments.stage.state import (
    NUM_CANDIDATE_FEATURES,
    NUM_GLOBAL_FEATURES,
    NUM_RUNGS,
    option_of,
)


class Left(NamedTuple):
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


class Found(NamedTuple):
    """A stage that may come next.

    Attributes:
        action: Its candidate.
        replicas: Its replicas.
        start: Its first layer.
        held: Micro-batches that a replica must have room for.
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


@uncounted_helper
def observe_state(p: Any, rows: Any, row: int, view: Any, line: int, left: Any) -> None:
    """Writes the features of the state that every policy knows."""
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


@uncounted_helper
def observe_budget(p: Any, rows: Any, row: int, view: Any, line: int, left: Any) -> None:
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


@uncounted_helper
def observe_candidate(
    p: Any, rows: Any, row: int, view: Any, line: int, found: Any, left: Any, front: Any
) -> None:
    """Writes one candidate: what choosing it leads to, and its features."""
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
    most = open_in_flight(p, z, start, stop, kind, replicas, held)
    busy = after + stage_work_s(forward, compute - forward, trip, share, most)
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
