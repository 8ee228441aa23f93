"""How far a stage may grow, and what it costs then: compiled parts of `candidates`.

Arguments that all of them share: `p` is `StageProblems` and `z` a row of it, `rows` is `StageRows`
and `row` a row of it; a stage has the layers `start .. stop - 1` by option `kind`. `round_trip_s`
is what `heterps_envs.closed_form.formula` calls R (0 for the last stage), `through_s` the message
over the cut behind the stage, there and back.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.closed_form.formula import Built, step_with_stage_s
from heterps_envs.closed_form.stage_formula import in_flight, most_held, stage_after_s, stage_work_s
from heterps_envs.compiled import inlined, uncounted_helper
from heterps_envs.environments.base.state import LARGEST_RATIO

# The shorter way must still cover this share of the value of the longest.
LEAST_COVERED = 0.5
# A candidate with more replicas than another that reaches as far must take so much less.
WORTHWHILE = 0.99


class Growing(NamedTuple):
    """What stays of a stage while it grows to the front.

    Attributes:
        kind: Option.
        replicas: Devices, or groups of devices.
        held: Micro-batches in flight on each, `heterps_envs.closed_form.stage_formula.in_flight`.
        share: Micro-batches of the busiest replica.
    """

    kind: int
    replicas: int
    held: int
    share: int


class Room(NamedTuple):
    """What a stage may take.

    Attributes:
        allowance_s: Seconds that it may be busy beyond its own compute.
        fill_left_s: What is left of the fill limit.
        round_trip_s: From its forward to its backward pass.
    """

    allowance_s: float
    fill_left_s: float
    round_trip_s: float


@inlined
def largest_share(num_micro_batches: int, replicas: int) -> int:
    """Micro-batches of the busiest replica."""
    return (num_micro_batches + replicas - 1) // replicas


@inlined
def all_reduce_and_optimizer_s(
    p: Any, z: int, start: int, stop: int, kind: int, replicas: int
) -> float:
    """What follows the last backward pass of a stage."""
    far = 1 if replicas > p.node_size[z, kind] else 0
    optimizer_s = p.optimizer_prefix_s[z, stop, kind] - p.optimizer_prefix_s[z, start, kind]
    return stage_after_s(
        p.gradient_prefix_bytes[z, stop, kind] - p.gradient_prefix_bytes[z, start, kind],
        optimizer_s / replicas if p.shards_state[z, kind] else optimizer_s,
        replicas,
        p.ring_latency_s[z, kind, far],
        p.ring_inverse_bandwidth[z, kind, far],
    )


@inlined
def state_and_kept_bytes(
    p: Any, z: int, start: int, stop: int, kind: int, replicas: int
) -> tuple[float, float]:
    """Bytes of a stage on one device: at all times, and of each micro-batch in flight."""
    state = p.state_prefix_bytes[z, stop, kind] - p.state_prefix_bytes[z, start, kind]
    if p.shards_state[z, kind]:
        shared = p.sharded_prefix_bytes[z, stop, kind] - p.sharded_prefix_bytes[z, start, kind]
        state += shared / replicas
    kept = p.activation_prefix_bytes[z, stop, kind] - p.activation_prefix_bytes[z, start, kind]
    return state, kept


@inlined
def stage_bytes(
    p: Any, z: int, start: int, stop: int, kind: int, replicas: int, held: int
) -> float:
    """Bytes of a stage on one device, as `stage_formula.stage_bytes` counts them."""
    state, kept = state_and_kept_bytes(p, z, start, stop, kind, replicas)
    return state + held * kept


@inlined
def open_in_flight(
    p: Any, z: int, start: int, stop: int, kind: int, replicas: int, held: int
) -> int:
    """Micro-batches that a replica has in flight where it must hold some, as the closed form does.

    See `heterps_envs.closed_form.stage_formula.most_in_flight`.
    """
    if p.holds_by_rule[z]:
        return held
    state, kept = state_and_kept_bytes(p, z, start, stop, kind, replicas)
    share = largest_share(p.num_micro_batches[z], replicas)
    return max(held, most_held(share, p.memory_bytes[z, kind] - state, kept))


@inlined
def bytes_in_front(p: Any, z: int, start: int, replicas_behind: int) -> float:
    """The least that the layers before `start` take together.

    A stage of k replicas holds its weights k times, and k micro-batches' activations for each that
    a single replica would hold, or more.
    """
    micro_batches = p.num_micro_batches[z]
    held = micro_batches if p.is_gpipe[z] else min(micro_batches, replicas_behind + 1)
    kept = held * p.least_activation_prefix_bytes[z, start]
    least_bytes: float = p.least_state_prefix_bytes[z, start] + kept
    return least_bytes


@uncounted_helper
def behind_with_stage_s(
    p: Any, rows: Any, row: int, kind: int, replicas: int, held: int, start: int
) -> float:
    """Step time with a stage that begins at `start`."""
    z, stop, neighbour = rows.problem[row], rows.position[row], rows.front_class[row]
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    held = open_in_flight(p, z, start, stop, kind, replicas, held)
    transfer, latency = 0.0, 0.0
    if neighbour >= 0:
        transfer = p.output_bytes[z, stop - 1] * p.inverse_bandwidth_s_per_byte[z, kind, neighbour]
        latency = p.latency_s[z, kind, neighbour]
    return step_with_stage_s(
        forward, compute - forward, all_reduce_and_optimizer_s(p, z, start, stop, kind, replicas),
        Built(neighbour, rows.behind_s[row], rows.fill_s[row]),
        largest_share(p.num_micro_batches[z], replicas), held, transfer, latency,
    )  # fmt: skip


@inlined
def stage_fits(p: Any, z: int, start: int, stop: int, stage: Any, room: Any) -> bool:
    """Memory, target and fill limit hold; all only get worse as the stage grows.

    Args:
        p: `StageProblems`.
        z: Row of the problem.
        start: First layer.
        stop: The layer behind the stage.
        stage: `Growing`.
        room: `Room`.
    """
    kind, replicas, held, share = stage
    state, kept = state_and_kept_bytes(p, z, start, stop, kind, replicas)
    if state + held * kept > p.memory_bytes[z, kind]:
        return False
    compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
    if compute + p.fastest_prefix_s[z, start] > room.fill_left_s:
        return False
    forward = p.forward_prefix_s[z, stop, kind] - p.forward_prefix_s[z, start, kind]
    if not p.holds_by_rule[z]:
        held = max(held, most_held(share, p.memory_bytes[z, kind] - state, kept))
    busy = stage_work_s(forward, compute - forward, room.round_trip_s, share, held)
    busy += all_reduce_and_optimizer_s(p, z, start, stop, kind, replicas)
    return busy - compute <= room.allowance_s  # type: ignore[no-any-return]


@inlined
def list_fronts(p: Any, rows: Any, row: int, kind: int, replicas: int, fronts: Any) -> None:
    """Writes what a stage in front of a candidate does at best, on all devices that are left.

    Into `fronts` (C, 3): micro-batches of its busiest replica (0: no device is left), those that it
    must hold, and its replicas.
    """
    z = rows.problem[row]
    micro_batches, behind = p.num_micro_batches[z], rows.replicas_behind[row] + replicas
    for front in range(p.num_options[z]):
        device_class = p.class_of_option[z, front]
        left = p.device_count[z, device_class] - rows.used[row, device_class]
        if device_class == p.class_of_option[z, kind]:
            left -= replicas * p.devices_of_option[z, kind]
        left //= p.devices_of_option[z, front]
        fronts[front, 0] = 0
        if left > 0:
            most = min(left, micro_batches)
            share = largest_share(micro_batches, most)
            held = in_flight(micro_batches, p.is_gpipe[z], most, behind)
            fronts[front, 0], fronts[front, 1], fronts[front, 2] = share, held, most


@uncounted_helper
def best_front_link(
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
    for front in range(p.num_options[z]):
        share, held, most = fronts[front, 0], fronts[front, 1], fronts[front, 2]
        if share == 0:
            continue
        state, kept = state_and_kept_bytes(p, z, start - 1, start, front, most)
        room = p.memory_bytes[z, front] - state
        if held * kept > room:
            continue
        if not p.holds_by_rule[z]:
            held = max(held, most_held(share, room, kept))
        transfer = p.output_bytes[z, start - 1] * p.inverse_bandwidth_s_per_byte[z, front, kind]
        message = 2.0 * (p.latency_s[z, front, kind] + transfer)
        further = (share + held - 1) // held - 1
        rounds = further * (message + fill_s) / target_s
        if message > fill_left_s or rounds > 1.0:
            continue
        best = min(best, (share - 1) * transfer / (target_s + fill_s))
        least_message, least_rounds = min(least_message, message), min(least_rounds, rounds)
    return best, least_message, least_rounds


@inlined
def tightest_layer(p: Any, z: int, first: int, start: int, fronts: Any, known: float) -> float:
    """The layer before `start` that is hardest to place: share of the memory where it fits best.

    Above 1 it fits on no device that is left, not even alone on all of a class: a dead end.
    For the layers before `first` that is known already.
    """
    worst = known
    for layer in range(first, start):
        best = 2 * LARGEST_RATIO
        for front in range(p.num_options[z]):
            if fronts[front, 0] > 0:
                held, most = fronts[front, 1], fronts[front, 2]
                num_bytes = stage_bytes(p, z, layer, layer + 1, front, most, held)
                best = min(best, num_bytes / p.memory_bytes[z, front])
                if best <= worst:
                    break
        worst = max(worst, best)
    return worst


@inlined
def least_price_in_front(p: Any, rows: Any, row: int, start: int, fronts: Any) -> float:
    """The least US dollars per hour of what must stand in front of `start`.

    One device at least; and within the step time that target and fill limit allow, no devices do
    the work of the layers before `start` for less than each layer costs where it is cheapest.
    """
    z, cheapest = rows.problem[row], np.inf
    if rows.price_limit_usd_per_hour[row] == np.inf:
        return 0.0
    for front in range(p.num_options[z]):
        if fronts[front, 0] > 0:
            cheapest = min(cheapest, p.price_usd_per_hour[z, front])
    longest_s = rows.target_s[row] + rows.fill_limit_s[row]
    return max(cheapest, p.dollars_prefix[z, start] / longest_s)  # type: ignore[no-any-return]


@inlined
def longest_stage(
    p: Any, rows: Any, row: int, stage: Any, through_s: float, allowance_s: float, scratch: Any
) -> int:
    """First layer of the longest stage that is allowed; -1: there is none.

    Unless that is layer 0, writes `scratch.fronts` (see `list_fronts`) and into `scratch.front`
    what `best_front_link` returns.
    """
    fronts, front = scratch
    z, stop, kind = rows.problem[row], rows.position[row], stage.kind
    fill_left = rows.fill_limit_s[row] - rows.fill_s[row] - through_s
    trip = rows.fill_s[row] + through_s
    room = Room(allowance_s + through_s, fill_left, trip)
    low, high = -1, stop  # `high` fits or is `stop`, `low` does not fit
    middle = stop - 1
    while high - low > 1:
        if stage_fits(p, z, middle, stop, stage, room):
            high = middle
        elif high == stop:
            return -1
        else:
            low = middle
        middle = (low + high) >> 1
    start = high
    if start > 0:
        list_fronts(p, rows, row, kind, stage.replicas, fronts)
    while 0 < start < stop:
        compute = p.compute_prefix_s[z, stop, kind] - p.compute_prefix_s[z, start, kind]
        slack = fill_left - compute - p.fastest_prefix_s[z, start]
        front[0], front[1], front[2] = best_front_link(
            p, z, start, kind, fronts, rows.target_s[row], trip + compute, slack
        )
        if front[0] <= 1.0:
            return start  # type: ignore[no-any-return]
        start += 1
    return 0 if start == 0 else -1


@inlined
def least_fill_stage(
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
    for front in range(p.num_options[z]):
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
            link, message, _ = best_front_link(
                p, z, start, kind, fronts, rows.target_s[row], trip + compute, fill_left - fill
            )
            fill += message
        if link <= 1.0 and fill < WORTHWHILE * least:
            best, least = start, fill
    return best if best > longest else -1
