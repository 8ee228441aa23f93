"""The compiled half of the planner for Sailor's cost: one sweep over the stages, back to front.

A stage is an option (GPU type and tensor-parallel degree) on a range of layers. Its seconds depend
on the options of both neighbours, so a state is: GPUs used (one integer), front layer of what is
built, option of the front stage, and option that the stage before it will have. Given a largest
bottleneck, optimizer step and all-reduce, the sweep finds the smallest sum of seconds over the
stages; or, because what is used decides the price, the cheapest product of both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.systems.sailor.cost import SHORT_PIPELINE
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import ONE, checked, checked_helper


class PipelineTables(NamedTuple):
    """One micro-batch size and number of replicas; O options, L layers, S states of GPUs used.

    Attributes:
        compute_s: (O, L + 1) forward and backward seconds of all layers before a cut.
        to_next_s: (O, O, L + 1) activations of an option to the one behind a cut; inf: no link.
        to_before_s: (O, O, L + 1) gradients of an option to the one before a cut.
        update_s: (O, L + 1, L + 1) slowest optimizer step by first and end layer.
        reduce_s: The same for the gradient all-reduce; inf: no link.
        state_bytes: (O, L + 1) of all layers before a cut.
        flight_bytes: (O, L + 1) the same for the activations of one micro-batch.
        room_bytes: (O,) memory of one GPU beside the runtime's.
        reached: (S, O) GPUs used after one more stage; -1: not that many may be used.
        step: (O,) what a stage adds to the integer of the GPUs used.
        least_s: (L + 1,) compute of all layers before a cut on the fastest options.
        most_stages: Largest number of stages.
    """

    compute_s: Floats
    to_next_s: Floats
    to_before_s: Floats
    update_s: Floats
    reduce_s: Floats
    state_bytes: Floats
    flight_bytes: Floats
    room_bytes: Floats
    reached: Integers
    step: Integers
    least_s: Floats
    most_stages: int


class Work(NamedTuple):
    """What sweeps write to; each leaves it clean for the next.

    Attributes:
        origin: (stages + 1, S, L + 1, O, O) where a state came from.
        built: (S, L + 1, O, O) seconds of the stages so far.
        grown: The same with one more stage.
        here: (S, L + 1) whether `built` has something there.
        there: The same of `grown`.
    """

    origin: NDArray[np.int16]
    built: Floats
    grown: Floats
    here: NDArray[np.bool_]
    there: NDArray[np.bool_]

    @classmethod
    def of(cls, tables: PipelineTables) -> Work:
        """For all sweeps over some tables."""
        (num_options, width), num_states = tables.compute_s.shape, len(tables.reached)
        shape = num_states, width, num_options, num_options
        return cls(
            np.zeros((tables.most_stages + 1, *shape), np.int16),
            np.full(shape, np.inf),
            np.full(shape, np.inf),
            np.zeros(shape[:2], np.bool_),
            np.zeros(shape[:2], np.bool_),
        )


class Sweep(NamedTuple):
    """What a sweep looks for.

    Attributes:
        limits: No stage may have a longer bottleneck, optimizer step or all-reduce.
        rest_s: What an iteration takes at least beside the sum of its stages.
        usd_per_load: What GPUs for one more second of load cost at least, per second.
        most_s: Iterations that take as long, or longer, are of no use.
        most_usd: Iterations that cost as much, or more, are of no use.
        is_by_usd: The cheaper of two iterations is the better one; else the shorter.
    """

    limits: tuple[float, float, float]
    rest_s: float
    usd_per_load: float
    most_s: float
    most_usd: float
    is_by_usd: bool


@checked
def best_stages(
    tables: PipelineTables,
    work: Work,
    usd_per_s: Floats,
    coverable: Floats,
    load: Floats,
    sweep: Sweep,
) -> tuple[float, Integers, int]:
    """The best pipeline of two stages or more, as if the rest of its iteration took the least.

    Args:
        tables: The problem.
        work: Of these tables.
        usd_per_s: (S,) what the GPUs used cost.
        coverable: (S,) load that the GPUs left can carry at most under the bottleneck.
        load: (L + 1,) load of all layers before a cut.
        sweep: What is looked for.

    Returns:
        Its iteration's seconds or dollars (inf: there is none below); the stages, front to back:
        rows of option, first layer and end layer; how many stages were tried.
    """
    num_options, width = tables.compute_s.shape
    num_layers = width - 1
    num_states = tables.reached.shape[0]
    origin, built, grown, here, there = work
    limits, most_s, most_usd = sweep.limits, sweep.most_s, sweep.most_usd
    bottleneck_s = limits[0]
    found, tried = (0, 0, 0, 0, 0), 0
    _last_stages(tables, limits, built, here)
    for count in range(1, tables.most_stages):
        for used in range(num_states):
            for cut in range(1, num_layers):
                if not here[used, cut]:
                    continue
                here[used, cut] = False
                if load[cut] > coverable[used]:
                    built[used, cut] = np.inf
                    continue
                least_s = sweep.rest_s + tables.least_s[cut]
                price = usd_per_s[used] + load[cut] * sweep.usd_per_load
                dear_s = min(most_s, most_usd / price)
                for behind in range(num_options):
                    for chosen in range(num_options):
                        value = built[used, cut, behind, chosen]
                        after = tables.reached[used, chosen]
                        if after < 0 or value + least_s >= dear_s:
                            continue
                        value_s = value + sweep.rest_s
                        code = np.int16(cut * num_options + behind)
                        send_s = tables.to_next_s[chosen, behind, cut]
                        for first in range(cut - 1, -1, -1):
                            tried += 1
                            seconds = (
                                tables.compute_s[chosen, cut] - tables.compute_s[chosen, first]
                            )
                            seconds += send_s
                            if seconds > bottleneck_s or value_s + seconds >= most_s:
                                break
                            if not _fits(tables, chosen, first, cut, count + 1, limits):
                                break
                            if first == 0:
                                if count + 1 > SHORT_PIPELINE:
                                    seconds += send_s
                                whole_s = value_s + seconds
                                usd = usd_per_s[after] * whole_s
                                if seconds <= bottleneck_s and whole_s < most_s and usd < most_usd:
                                    if sweep.is_by_usd:
                                        most_usd = usd
                                    else:
                                        most_s = whole_s
                                    found = (count, used, cut, behind, chosen)
                                break
                            for before in range(num_options):
                                whole = seconds + tables.to_before_s[chosen, before, first]
                                if whole > bottleneck_s:
                                    continue
                                if value + whole < grown[after, first, chosen, before]:
                                    grown[after, first, chosen, before] = value + whole
                                    origin[count + 1, after, first, chosen, before] = code
                                    there[after, first] = True
                built[used, cut] = np.inf
        # What was read is clean again: only what was reached costs time.
        built, grown = grown, built
        here, there = there, here
    for used in range(num_states):
        for cut in range(num_layers):
            if here[used, cut]:
                here[used, cut] = False
                built[used, cut] = np.inf
    if found[0] == 0:
        return np.inf, np.zeros((0, 3), np.int64), tried
    best = most_usd if sweep.is_by_usd else most_s
    return best, _stages(tables, origin, found), tried


@checked_helper
def _last_stages(
    tables: PipelineTables,
    limits: tuple[float, float, float],
    built: Floats,
    here: NDArray[np.bool_],
) -> None:
    """Every last stage that keeps the limits."""
    num_options, width = tables.compute_s.shape
    end = width - 1
    for chosen in range(num_options):
        after = tables.reached[0, chosen]
        if after < 0:
            continue
        for first in range(end - 1, 0, -1):
            if not _fits(tables, chosen, first, end, ONE, limits):
                break
            seconds = tables.compute_s[chosen, end] - tables.compute_s[chosen, first]
            for before in range(num_options):
                whole = seconds + 2 * tables.to_before_s[chosen, before, first]
                if whole <= limits[0]:
                    built[after, first, chosen, before] = whole
                    here[after, first] = True


@checked_helper
def _fits(
    tables: PipelineTables,
    option: int,
    first: int,
    end: int,
    in_flight: int,
    limits: tuple[float, float, float],
) -> bool:
    """Whether a stage keeps memory and limits; with more layers in front it only gets harder."""
    if tables.update_s[option, first, end] > limits[1]:
        return False
    if tables.reduce_s[option, first, end] > limits[2]:
        return False
    needed = tables.state_bytes[option, end] - tables.state_bytes[option, first]
    flight = tables.flight_bytes[option, end] - tables.flight_bytes[option, first]
    return bool(needed + in_flight * flight <= tables.room_bytes[option])


@checked_helper
def _stages(
    tables: PipelineTables, origin: NDArray[np.int16], found: tuple[int, int, int, int, int]
) -> Integers:
    """The way back from the front stage to the last one."""
    num_options, width = tables.compute_s.shape
    count, used, cut, behind, chosen = found
    stages = np.empty((count + 1, 3), np.int64)
    stages[0] = (chosen, 0, cut)
    for row in range(1, count + 1):
        if row == count:
            stages[row] = (behind, cut, width - 1)
            break
        code = origin[count + 1 - row, used, cut, behind, chosen]
        end, option = code // num_options, code % num_options
        stages[row] = (behind, cut, end)
        used -= tables.step[behind]
        cut, chosen, behind = end, behind, option
    return stages
