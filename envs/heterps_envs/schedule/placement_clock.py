"""The step of a placement by a clock: all its passes one after the other, in tens of microseconds.

The closed form leaves out what depends on who waits for whom: replicas that wait for their turn,
where neighbouring stages have unlike numbers of them, and the all-reduce of parameters that layers
of several stages share. Both may be a third of a step on hundreds of devices. Here the passes run
as the list scheduler lets them (`heterps_envs.schedule.kernels`): micro-batch m on replica
`m mod k` of each stage, a forward pass where there is room, else a backward pass. What is simpler
than in the simulator: links are those between classes, as slow as the closed form has them; a
replica takes its forward passes in order, although a later micro-batch may be there first; and no
all-reduce begins before the last pass of its stage.

Of passes alone this is never less than the closed form, but for rounding. With sums it may be:
those of late stages hide behind the passes of the stages in front, which the closed form adds up.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.closed_form.round_trips import round_trip_in_flight
from heterps_envs.closed_form.stage_formula import in_flight, most_in_flight, stage_work_s
from heterps_envs.compiled import MINUS_ONE, ZERO, allocating, uncounted_helper
from heterps_envs.schedule.shared_sums import OPTIMIZER, OWN, SHARED, last_end_s, write_sums

# Columns of a stage: its replicas, its first one among all, micro-batches between two that the same
# pair of replicas sends to the stage behind, those in flight, and how many might be. Columns of its
# seconds: the sixth is from the end of a forward pass to the start of its backward pass, at least;
# the last from the end of its last pass to that of the step, at least.
REPLICAS, FIRST, PERIOD, HELD, MOST = 0, 1, 2, 3, 4
FORWARD_S, BACKWARD_S, TRANSFER_S, LATENCY_S, END_S, TRIP_S, AFTER_S = 0, 1, 2, 3, 4, 5, 6
_NUM_SECONDS = 7
# Columns of a replica: its stage, its next forward and backward pass, forward passes that may still
# wait for their backward pass, what it runs, and of which micro-batch its backward pass is.
STAGE, NEXT_FORWARD, NEXT_BACKWARD, ROOM, RUNS, RUNNING = 0, 1, 2, 3, 4, 5
# When a gradient came whose backward pass has been run.
DONE = -1.0
IDLE, RUNS_FORWARD, RUNS_BACKWARD = 0, 1, 2
# Arrivals that differ by rounding are at one time.
_SAME = 1 + 1e-10
# A run ends early where it takes more than is asked by more than sums are rounded.
_SURELY = 1 + 1e-9


@allocating
def clocked_step_time_s(stages: Any, count: int, k: Any, shared: Any) -> float:
    """Step time of stages, whether they fit or not.

    Unless the rule of their schedule decides, stages hold as many micro-batches as round trips
    need, as far as memory has room.

    Args:
        stages: (S, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        count: Stages in use.
        k: `KernelTables`.
        shared: `SharedParameters`.
    """
    return clocked_within_s(stages, count, k, shared, np.inf)


@allocating
def clocked_within_s(stages: Any, count: int, k: Any, shared: Any, most_s: float) -> float:
    """The same where it is less than `most_s`; else that or any more, as soon as it is known.

    A replica that has so much left to do, and gradients that have to come so far down to the front,
    tell long before the end.
    """
    rows, seconds = np.empty((count, 5), np.int64), np.zeros((count, _NUM_SECONDS))
    _describe(stages, count, k, rows, seconds)
    _hold_more(rows, seconds, k.num_micro_batches)
    sums_s = np.empty((count, 3))
    write_sums(stages, count, k, shared, sums_s)
    _write_after(seconds, sums_s)
    if not _run_all(rows, seconds, k, most_s * _SURELY):
        return np.inf
    return last_end_s(stages, count, shared, sums_s, seconds[:, END_S])


@allocating
def step_time_bound_s(stages: Any, count: int, k: Any, shared: Any) -> float:
    """No run of these stages is shorter by the clock; found in a hundredth of its time.

    The arguments are those of `clocked_step_time_s`. A stage waits for its first pass, does all of
    its passes and the waiting between them that no number in flight saves
    (`heterps_envs.closed_form.formula`), and is followed by others. And the last message over a
    link comes after all others there, and its micro-batch has to come back.
    """
    rows, seconds = np.empty((count, 5), np.int64), np.zeros((count, _NUM_SECONDS))
    _describe(stages, count, k, rows, seconds)
    sums_s = np.empty((count, 3))
    write_sums(stages, count, k, shared, sums_s)
    _write_after(seconds, sums_s)
    longest = before_s = 0.0
    for row in range(count):
        share = (k.num_micro_batches + rows[row, REPLICAS] - 1) // rows[row, REPLICAS]
        forward_s, backward_s = seconds[row, FORWARD_S], seconds[row, BACKWARD_S]
        transfer_s, trip_s = seconds[row, TRANSFER_S], seconds[row, TRIP_S]
        work_s = stage_work_s(forward_s, backward_s, trip_s, share, rows[row, MOST])
        if row + 1 < count:
            sent = (k.num_micro_batches + rows[row, PERIOD] - 1) // rows[row, PERIOD]
            work_s = max(work_s, forward_s + (sent - 1) * transfer_s + trip_s + backward_s)
        longest = max(longest, before_s + work_s + seconds[row, AFTER_S])
        before_s += forward_s + transfer_s + seconds[row, LATENCY_S]
    return longest


@allocating
def clocked_in_flight(stages: Any, count: int, k: Any) -> Any:
    """(S,) micro-batches that stages hold where that is open; see `clocked_step_time_s`."""
    rows, seconds = np.empty((count, 5), np.int64), np.zeros((count, _NUM_SECONDS))
    _describe(stages, count, k, rows, seconds)
    _hold_more(rows, seconds, k.num_micro_batches)
    return rows[:, HELD].copy()


@uncounted_helper
def _write_after(seconds: Any, sums_s: Any) -> None:
    """Writes what follows the last pass of each stage: its sums, and gradients to the front."""
    after_s = 0.0
    for row in range(len(seconds)):
        after_s = max(after_s, sums_s[row, OWN] + sums_s[row, SHARED] + sums_s[row, OPTIMIZER])
        seconds[row, AFTER_S] = after_s
        after_s += seconds[row, BACKWARD_S] + seconds[row, TRANSFER_S] + seconds[row, LATENCY_S]


@uncounted_helper
def _hold_more(rows: Any, seconds: Any, num_micro_batches: int) -> None:
    """Raises how many micro-batches stages hold to what round trips need, if memory has room."""
    busiest_s, last = 0.0, len(rows) - 1
    for row in range(last + 1):
        share = -(-num_micro_batches // rows[row, REPLICAS])
        busiest_s = max(busiest_s, share * (seconds[row, FORWARD_S] + seconds[row, BACKWARD_S]))
        if row < last:
            sent = -(-num_micro_batches // rows[row, PERIOD])
            busiest_s = max(busiest_s, sent * seconds[row, TRANSFER_S])
    for row in range(last, -1, -1):
        trip_s = seconds[row, FORWARD_S] + seconds[row, BACKWARD_S] + seconds[row, TRIP_S]
        share = -(-num_micro_batches // rows[row, REPLICAS])
        wanted = round_trip_in_flight(trip_s, share, busiest_s, row == last)
        rows[row, HELD] = max(rows[row, HELD], min(wanted, rows[row, MOST]))


@allocating
def _run_all(rows: Any, seconds: Any, k: Any, most_s: float) -> bool:
    """Runs all passes of a step; when each stage's last one ends is written to its seconds.

    Returns whether it came to the end, which it does not where the step takes more than `most_s`.
    """
    count = len(rows)
    num_replicas = rows[count - 1, FIRST] + rows[count - 1, REPLICAS]
    replicas, left_s = np.zeros((num_replicas, 6), np.int64), np.zeros(num_replicas)
    for row in range(count):
        pass_s = seconds[row, FORWARD_S] + seconds[row, BACKWARD_S]
        for number in range(rows[row, REPLICAS]):
            at = rows[row, FIRST] + number
            replicas[at, STAGE], replicas[at, ROOM] = row, rows[row, HELD]
            replicas[at, NEXT_FORWARD] = replicas[at, NEXT_BACKWARD] = number
            passes = max(-(-(k.num_micro_batches - number) // rows[row, REPLICAS]), 0)
            left_s[at] = passes * pass_s
    arrivals = np.full((4, count, k.num_micro_batches), np.inf)
    arrivals[0, 0, :], arrivals[2:] = 0.0, 0.0
    leaves = 1
    while leaves < num_replicas:
        leaves *= 2
    times, winners = np.full(leaves, np.inf), np.zeros(2 * leaves, np.int64)
    for leaf in range(leaves):
        winners[leaves + leaf] = leaf
    for node in range(leaves - 1, 0, -1):
        winners[node] = winners[2 * node]
    return _run_passes(
        rows, seconds, replicas, arrivals, (times, winners), k.is_gpipe, (left_s, most_s)
    )


@uncounted_helper
def _describe(stages: Any, count: int, k: Any, rows: Any, seconds: Any) -> None:
    """Writes the columns of stages."""
    start, first = ZERO, ZERO
    for row in range(count):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        forward_s = k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind]
        compute_s = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        rows[row, REPLICAS], rows[row, FIRST], rows[row, PERIOD] = replicas, first, 0
        seconds[row, FORWARD_S], seconds[row, BACKWARD_S] = forward_s, compute_s - forward_s
        if row + 1 < count:
            following, behind = stages[row + 1, 1], stages[row + 1, 2]
            num_bytes = k.output_bytes[stop - 1]
            seconds[row, TRANSFER_S] = num_bytes * k.inverse_bandwidth_s_per_byte[kind, following]
            seconds[row, LATENCY_S] = k.latency_s[kind, following]
            divisor, rest = replicas, behind
            while rest > 0:
                divisor, rest = rest, divisor % rest
            rows[row, PERIOD] = replicas * behind // divisor
        start, first = stop, first + replicas
    devices_behind, trip_s = ZERO, 0.0
    for row in range(count - 1, -1, -1):
        replicas, start = rows[row, REPLICAS], stages[row - 1, 0] if row > 0 else ZERO
        held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, devices_behind)
        share = (k.num_micro_batches + replicas - 1) // replicas
        most = most_in_flight(k, start, stages[row, 0], stages[row, 1], replicas, share)
        rows[row, HELD], rows[row, MOST] = held, max(held, most)
        trip_s += 2.0 * (seconds[row, TRANSFER_S] + seconds[row, LATENCY_S])
        seconds[row, TRIP_S] = trip_s
        trip_s += seconds[row, FORWARD_S] + seconds[row, BACKWARD_S]
        devices_behind += replicas


@uncounted_helper
def _run_passes(
    rows: Any, seconds: Any, replicas: Any, arrivals: Any, tree: Any, is_gpipe: bool, limit: Any
) -> bool:
    """Runs all passes; when the last of each stage ends is written to its seconds.

    Args:
        rows: (S, 5) of the stages.
        seconds: (S, 6) of the stages.
        replicas: (R, 6) of all stages.
        arrivals: (4, S, M) when each micro-batch is there for its forward and backward pass, and
            when the links behind each stage are free, there and back.
        tree: (R or more,) when something happens to each replica next, and who comes first of each
            two, from the root on.
        is_gpipe: Whether all forward passes come first.
        limit: (R,) seconds of passes that each replica has not begun; and seconds of the step: as
            soon as it surely takes more this ends, and returns False.
    """
    (times, winners), (left_s, most_s) = tree, limit
    last, num_micro_batches = len(rows) - 1, arrivals.shape[2]
    for at in range(rows[0, REPLICAS]):
        _set_time(times, winners, at, 0.0)
    while True:
        at = winners[1]
        now = times[at]
        if now == np.inf:
            return True
        row = replicas[at, STAGE]
        runs = replicas[at, RUNS]
        step = rows[row, REPLICAS]
        if runs == RUNS_FORWARD:
            m = replicas[at, NEXT_FORWARD]
            replicas[at, NEXT_FORWARD] = m + step
            if row == last:
                arrivals[1, row, m] = now
            else:
                _send(rows, seconds, replicas, arrivals, tree, (0, row, row + 1, m), now)
        elif runs == RUNS_BACKWARD:
            m = replicas[at, RUNNING]
            arrivals[1, row, m] = DONE
            while replicas[at, NEXT_BACKWARD] < replicas[at, NEXT_FORWARD] and (
                arrivals[1, row, replicas[at, NEXT_BACKWARD]] == DONE
            ):
                replicas[at, NEXT_BACKWARD] += step
            replicas[at, ROOM] += 1
            seconds[row, END_S] = now
            if row > 0:
                _send(rows, seconds, replicas, arrivals, tree, (1, row - 1, row - 1, m), now)
        # What comes next, and when.
        forward, forward_s = replicas[at, NEXT_FORWARD], np.inf
        backward, backward_s = MINUS_ONE, np.inf
        if replicas[at, ROOM] > 0 and forward < num_micro_batches:
            forward_s = arrivals[0, row, forward]
        if forward_s > now * _SAME and not (is_gpipe and forward < num_micro_batches):
            backward, backward_s = _next_backward(replicas, arrivals, at, step, now * _SAME)
        if min(forward_s, backward_s) <= now * _SAME:
            if now + left_s[at] + seconds[row, AFTER_S] > most_s:
                return False
            column = FORWARD_S if forward_s <= now * _SAME else BACKWARD_S
            left_s[at] -= seconds[row, column]
        if forward_s <= now * _SAME:
            replicas[at, RUNS] = RUNS_FORWARD
            replicas[at, ROOM] -= 1
            _set_time(times, winners, at, now + seconds[row, FORWARD_S])
        elif backward_s <= now * _SAME:
            replicas[at, RUNS], replicas[at, RUNNING] = RUNS_BACKWARD, backward
            _set_time(times, winners, at, now + seconds[row, BACKWARD_S])
        else:
            replicas[at, RUNS] = IDLE
            _set_time(times, winners, at, min(forward_s, backward_s))


@uncounted_helper
def _next_backward(
    replicas: Any, arrivals: Any, at: int, step: int, until_s: float
) -> tuple[int, float]:
    """The first micro-batch whose gradient is there, else the one that comes first, and when.

    Behind it replicas take unlike times: a later one may come before an earlier one.
    """
    row, first, first_s = replicas[at, STAGE], MINUS_ONE, np.inf
    for m in range(replicas[at, NEXT_BACKWARD], replicas[at, NEXT_FORWARD], step):
        arrival_s = arrivals[1, row, m]
        if arrival_s < first_s and arrival_s != DONE:
            first, first_s = m, arrival_s
            if arrival_s <= until_s:
                break
    return first, first_s


@uncounted_helper
def _send(
    rows: Any, seconds: Any, replicas: Any, arrivals: Any, tree: Any, message: Any, now: float
) -> None:
    """A message leaves as soon as its link is free, and wakes a replica that waits for it.

    Args:
        rows: See `_run_passes`.
        seconds: The same.
        replicas: The same.
        arrivals: The same.
        tree: The same.
        message: Whether it is a gradient; the stage in front of the cut; the stage that it goes to;
            and its micro-batch.
        now: When it is ready.
    """
    is_back, cut, to, m = message
    # Micro-batches of one remainder go from one replica to one other: it stands for their link.
    link = m % rows[cut, PERIOD]
    start_s = max(now, arrivals[2 + is_back, cut, link])
    arrivals[2 + is_back, cut, link] = start_s + seconds[cut, TRANSFER_S]
    arrival_s = start_s + seconds[cut, TRANSFER_S] + seconds[cut, LATENCY_S]
    arrivals[is_back, to, m] = arrival_s
    at = rows[to, FIRST] + m % rows[to, REPLICAS]
    if replicas[at, RUNS] != IDLE or arrival_s >= tree[0][at]:
        return
    if is_back == 1 or (m == replicas[at, NEXT_FORWARD] and replicas[at, ROOM] > 0):
        _set_time(tree[0], tree[1], at, arrival_s)


@uncounted_helper
def _set_time(times: Any, winners: Any, leaf: int, time_s: float) -> None:
    """Changes when something happens to a replica; `winners[1]` is who comes first."""
    times[leaf] = time_s
    node = (len(times) + leaf) >> 1
    while node > 0:
        first, second = winners[2 * node], winners[2 * node + 1]
        best = first if times[first] <= times[second] else second
        if winners[node] == best and best != leaf:
            return
        winners[node] = best
        node >>= 1
