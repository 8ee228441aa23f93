"""What is still possible in front of a cut: a sweep front to back, over the states of the solver.

A state is a cut, the class of the stage behind it, and the devices used behind it. The stages that
are still to be put in front delay everything behind them by their fill, the sum of `C_j + 2 X_j`;
and each of them keeps the limit on the step time only where its round trip, and so the fill behind
the cut, is short enough. Both have a best value for each state, over all stages that the devices
left allow: the least delay, and the largest fill. They belong to different placements, so they are
bounds; but a state says how many devices stand behind it, hence how many micro-batches each stage
in front must hold, so memory and waiting are exact in them. What is behind is known only by
bounds: the seconds of its layers on their fastest class, and the devices that they need at least.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.kernels import link_s, total_and_held
from heterps_agents.exact.state import Ports, can_be_reached
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import never_helps
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.stage_formula import in_flight, stage_after_option_s
from heterps_envs.compiled import ZERO, checked, checked_helper, uncounted, uncounted_helper


class Needs(NamedTuple):
    """What the layers behind each cut take at least, and what the states offer.

    Attributes:
        earliest_cut: (S,) smallest cut whose layers behind it the devices used can carry.
        fill_s: (L + 1,) compute of the layers behind a cut, each on its fastest class.
        priced_work: (L + 1,) their work, each layer where it is cheapest.
        worth: (S,) price of a second of the devices used, by the same prices.
    """

    earliest_cut: Integers
    fill_s: Floats
    priced_work: Floats
    worth: Floats


class _States(NamedTuple):
    """The states, and what a placement through them must keep.

    Attributes:
        used: (S, T) devices used of each class.
        shift, port_of_option, option_of_port: See `heterps_agents.exact.state.Space`.
        totals: (S,) the same.
        order: (P, K) states that stages can reach, by replicas, then by devices of the port's
            class, most first.
        latest_s: (L, S) largest step time that is of use, by the cut and the devices behind it.
        limit_s: The largest of them.
        needs: Of the layers behind each cut.
        rules: (R + 1, N + 1) micro-batches in flight by a stage's replicas and those behind it.
    """

    used: Integers
    shift: Integers
    port_of_option: Integers
    option_of_port: Integers
    totals: Integers
    order: Integers
    latest_s: Floats
    limit_s: float
    needs: Needs
    rules: Integers


class _Stage(NamedTuple):
    """A stage that is tried behind many states.

    Attributes:
        first: Where the states in front of it begin, by their replicas, see `_Pool`.
        replicas, devices: Its own.
        shift: What they add to the integer of a state.
        forward_s, compute_s: Of one micro-batch.
        work_s: Of all micro-batches of a replica.
        after_s: All-reduce and optimizer.
        share: Micro-batches of the busiest replica.
        most_held: How many of them it has room for; 0 where the rule decides.
        least_total, largest_total: Replicas that may stand behind it.
        least_round_trip_s: What the message behind it and the rest take at least.
        latest_end_s: From the front to the end of the stage at most.
    """

    first: Integers
    replicas: int
    devices: int
    shift: int
    forward_s: float
    compute_s: float
    work_s: float
    after_s: float
    share: int
    most_held: int
    least_total: int
    largest_total: int
    least_round_trip_s: float
    latest_end_s: float


class _Ends(NamedTuple):
    """(S,) of all stages of an option that end at a cut, by the state behind.

    Attributes:
        before_s: Least seconds from the front to the end of the stage.
        round_trip_s: Longest round trip that it allows behind itself.
    """

    before_s: Floats
    round_trip_s: Floats


class _Pool(NamedTuple):
    """States that can still be completed, by cut and port behind, fewest replicas first.

    Attributes:
        first: (L, P, N + R + 3) where the states with so many replicas begin.
        state: (L P S,) the state.
        used: (L P S,) its devices of the port's class, most first among equal totals.
        delay_s: (L P S,) its least delay.
        room_s: (L P S,) its latest step time less that delay.
        fill_s: (L P S,) its largest fill.
    """

    first: Integers
    state: NDArray[np.int32]
    used: NDArray[np.int32]
    delay_s: Floats
    room_s: Floats
    fill_s: Floats


def completions(
    kernel: KernelTables,
    used: Integers,
    ports: Ports,
    latest_s: Floats,
    needs: Needs,
    limit_s: float,
) -> tuple[Floats, Floats, int]:
    """Least delay by the stages in front, message over the cut included, and largest fill behind.

    Args:
        kernel: Cost tables.
        used: (S, T) devices used behind the cut in each state, see `Space`.
        ports: Of the options, and what they add to a state.
        latest_s: (L, S) largest step time that is of use, by the cut and the devices behind it.
        needs: Of the layers behind each cut.
        limit_s: The largest of `latest_s`.

    Returns:
        (L, P, S) seconds each, inf and -inf where the devices left cannot keep the limit; and how
        many stages were put behind a state.
    """
    layers, states, num_ports = kernel.num_layers, len(used), len(ports.option_of_port)
    totals, size = ports.totals(used), layers * num_ports * states
    most, replicas = int(kernel.device_count.sum()), int(kernel.device_count.max())
    pool = _Pool(
        np.zeros((layers, num_ports, most + replicas + 3), np.int64),
        *np.empty((2, size), np.int32),
        *np.empty((3, size)),
    )
    # By replicas, then by devices of the class, most first.
    of_port = used[:, kernel.class_of_option[ports.option_of_port]]
    order = np.argsort(totals * (most + 1) - of_port.T, axis=1, kind="stable")
    order = order[can_be_reached(kernel, used)[order]].reshape(num_ports, -1)
    delay_s, fill_s = np.empty((2, layers, num_ports, states))
    delay_s[0], fill_s[0] = 0.0, np.inf
    rules = _rules(kernel, most, replicas)
    space = _States(
        used, ports.shift, ports.port_of_option, ports.option_of_port, totals, order, latest_s,
        float(limit_s), needs, rules,
    )  # fmt: skip
    work = _sweep(kernel, space, pool, delay_s, fill_s)
    return delay_s, fill_s, work


def _rules(kernel: KernelTables, devices: int, replicas: int) -> Integers:
    rules = np.zeros((replicas + 1, devices + 1), np.int64)
    _write_rules(kernel.num_micro_batches, kernel.is_gpipe, rules)
    return rules


@uncounted
def _write_rules(num_micro_batches: int, is_gpipe: bool, rules: Any) -> None:
    for replicas in range(1, rules.shape[0]):
        for behind in range(rules.shape[1]):
            rules[replicas, behind] = in_flight(num_micro_batches, is_gpipe, replicas, behind)


@checked
def _sweep(k: Any, space: Any, pool: Any, delay_s: Any, fill_s: Any) -> int:
    """Fills `delay_s` and `fill_s`, front to back; returns the stages tried."""
    least_total = _least_total(space.totals, space.needs.earliest_cut, k.num_layers)
    scratch = np.empty((2, len(space.totals)))
    return _fill(k, space, pool, delay_s, fill_s, least_total, _Ends(scratch[0], scratch[1]))


@uncounted_helper
def _fill(
    k: Any, space: Any, pool: Any, delay_s: Any, fill_s: Any, least_total: Any, ends: Any
) -> int:
    work = 0
    count = _keep(k, space, ZERO, pool, ZERO, delay_s[0], fill_s[0])
    for stop in range(1, k.num_layers):
        delay_s[stop], fill_s[stop] = np.inf, -np.inf
        for kind in range(k.num_options):
            ends.before_s[:], ends.round_trip_s[:] = np.inf, -np.inf
            share, tried = _put_stages(k, space, stop, kind, least_total[stop], pool, ends)
            work += tried
            _over_the_cut(k, space, stop, kind, share, ends, delay_s[stop], fill_s[stop])
        count = _keep(k, space, stop, pool, count, delay_s[stop], fill_s[stop])
    return work


@checked_helper
def _least_total(totals: Any, earliest_cut: Any, num_layers: int) -> Any:
    """(L,) fewest devices that can carry what is behind each cut."""
    least = np.full(num_layers, totals.max() + 1)
    for state in range(len(totals)):
        if totals[state] > 0 and earliest_cut[state] < num_layers:
            least[earliest_cut[state]] = min(least[earliest_cut[state]], totals[state])
    for cut in range(1, num_layers):
        least[cut] = min(least[cut], least[cut - 1])
    return least


@uncounted_helper
def _put_stages(
    k: Any, space: Any, stop: int, kind: int, least_total: int, pool: Any, ends: Any
) -> tuple[int, int]:
    """Every stage of an option that ends at `stop`, behind all that can be in front of it.

    Returns:
        The fewest micro-batches of a replica, and how many stages were tried.
    """
    tried, limit_s = 0, space.limit_s
    least_latency, least_transfer, least_message = np.inf, np.inf, np.inf
    for port in range(len(space.option_of_port)):
        latency, transfer = link_s(k, stop, kind, space.option_of_port[port])
        least_latency, least_transfer = min(least_latency, latency), min(least_transfer, transfer)
        least_message = min(least_message, 2.0 * (latency + transfer))
    share: int = k.num_micro_batches
    size, port = k.devices_of_option[kind], space.port_of_option[kind]
    for replicas in range(1, k.device_count[k.class_of_option[kind]] // size + 1):
        if never_helps(k, kind, replicas):
            continue
        share = (k.num_micro_batches + replicas - 1) // replicas
        latest_end_s = limit_s - 2.0 * least_latency - (share + 1) * least_transfer
        most_total = space.rules.shape[1] - 1 - replicas
        for start in range(stop - 1, -1, -1):
            largest, held = total_and_held(k, start, stop, kind, replicas)
            largest = min(most_total, largest)
            forward = k.forward_prefix_s[stop, kind] - k.forward_prefix_s[start, kind]
            compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
            after = stage_after_option_s(k, start, stop, kind, replicas)
            if largest < least_total or share * compute + after > limit_s:
                break
            stage = _Stage(
                pool.first[start, port], replicas, replicas * size,
                replicas * space.shift[kind], forward, compute, share * compute, after, share,
                held, least_total, largest, least_message + space.needs.fill_s[stop], latest_end_s,
            )  # fmt: skip
            tried += _put_stage(pool, space.rules, stage, ends)
    return share, tried


@uncounted_helper
def _put_stage(pool: Any, rules: Any, stage: Any, ends: Any) -> int:
    """One stage: `closed_form.stage_work_s` solved for the round trip."""
    tried, replicas, compute_s = 0, stage.replicas, stage.compute_s
    backward_s = compute_s - stage.forward_s
    shorter, longer = min(stage.forward_s, backward_s), max(stage.forward_s, backward_s)
    held, per_round, hidden, both_hidden = 0, 0.0, 0.0, 0.0
    for total in range(stage.least_total, stage.largest_total + 1):
        begin, end = stage.first[total + replicas], stage.first[total + replicas + 1]
        if begin == end:
            continue
        if held == 0 or rules[replicas, total] > held:  # the rule grows with what stands behind
            held = max(stage.most_held, rules[replicas, total])
            per_round = 1.0 / ((stage.share + held - 1) // held)
            hidden = (held - 1) * shorter
            both_hidden = (held - 1) * longer + hidden
        twice = stage.share > held
        for row in range(begin, end):
            if pool.used[row] < stage.devices:
                break
            tried += 1
            room = pool.room_s[row] - stage.after_s
            wait = room - stage.work_s
            if wait < 0.0:
                continue
            longest = min(room * per_round, pool.fill_s[row]) - compute_s
            longest = min(longest, hidden + wait)
            if twice:
                longest = min(longest, 0.5 * (both_hidden + wait))
            before = pool.delay_s[row] + compute_s
            if longest < stage.least_round_trip_s or before > stage.latest_end_s:
                continue
            state = pool.state[row] - stage.shift
            if before < ends.before_s[state]:
                ends.before_s[state] = before
            if longest > ends.round_trip_s[state]:
                ends.round_trip_s[state] = longest
    return tried


@uncounted_helper
def _over_the_cut(
    k: Any,
    space: Any,
    stop: int,
    kind: int,
    share: int,
    ends: Any,
    delay_s: Any,
    fill_s: Any,
) -> None:
    """Adds the message over the cut, by the port behind it."""
    for behind in range(len(space.option_of_port)):
        latency, transfer = link_s(k, stop, kind, space.option_of_port[behind])
        message = 2.0 * (latency + transfer)
        latest_end_s = space.limit_s - 2.0 * latency - (share + 1) * transfer
        for state in range(len(ends.before_s)):
            before = ends.before_s[state]
            if before <= latest_end_s:
                delay_s[behind, state] = min(delay_s[behind, state], before + message)
                longest = ends.round_trip_s[state] - message
                fill_s[behind, state] = max(fill_s[behind, state], longest)


@uncounted_helper
def _keep(k: Any, space: Any, cut: int, pool: Any, count: int, delay_s: Any, fill_s: Any) -> int:
    """Drops the states whose layers behind the cut cannot keep the limit, and lists the others."""
    needs, totals = space.needs, space.totals
    for kind in range(len(space.option_of_port)):
        total, device_class = 0, k.class_of_option[space.option_of_port[kind]]
        for state in space.order[kind]:
            delay = delay_s[kind, state]
            if delay == np.inf:
                continue
            room = space.latest_s[cut, state] - delay
            # At the first cut the layers are all behind it: what they need is tried, not guessed.
            if cut > 0 and (
                cut < needs.earliest_cut[state]
                or fill_s[kind, state] < needs.fill_s[cut]
                or room < needs.fill_s[cut]
                or room * needs.worth[state] < needs.priced_work[cut]
            ):
                delay_s[kind, state], fill_s[kind, state] = np.inf, -np.inf
                continue
            while total <= totals[state]:
                pool.first[cut, kind, total] = count
                total += 1
            pool.state[count], pool.used[count] = state, space.used[state, device_class]
            pool.delay_s[count], pool.room_s[count] = delay, room
            pool.fill_s[count] = fill_s[kind, state]
            count += 1
        pool.first[cut, kind, total:] = count
    return count
