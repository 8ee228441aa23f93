"""The compiled half of the planner for Sailor's cost: one sweep over the stages, back to front.

A stage is an option (GPU type and tensor-parallel degree) on a range of layers. Its seconds depend
on the options of both neighbours, so a state is: GPUs used (one integer), front layer of what is
built, option of the front stage, and option that the stage before it will have. Given a largest
bottleneck, optimizer step and all-reduce, the sweep finds the smallest sum of seconds over the
stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.systems.sailor.cost import SHORT_PIPELINE
from heterps_envs.arrays import Floats, Integers


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
        reached: (S, O) GPUs used after one more stage; -1: not that many are there.
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


@njit(cache=True)
def least_sum(
    tables: PipelineTables,
    coverable: Floats,
    load: Floats,
    limits: tuple[float, float, float],
    enough_s: float,
) -> tuple[float, Integers]:
    """The pipeline of two stages or more with the smallest sum of stage seconds.

    Args:
        tables: The problem.
        coverable: (S,) load that the GPUs left can carry at most under the bottleneck.
        load: (L + 1,) load of all layers before a cut.
        limits: No stage may have a longer bottleneck, optimizer step or all-reduce.
        enough_s: Sums from here on are of no use.

    Returns:
        The sum (inf: there is none below) and the stages, front to back: rows of option,
        first layer and end layer.
    """
    num_options, width = tables.compute_s.shape
    num_layers = width - 1
    num_states = tables.reached.shape[0]
    shape = (num_states, width, num_options, num_options)
    origin = np.zeros((tables.most_stages + 1, *shape), np.int16)
    built, grown = np.full(shape, np.inf), np.full(shape, np.inf)
    here, there = np.zeros(shape[:2], np.bool_), np.zeros(shape[:2], np.bool_)
    best = enough_s
    bottleneck_s = limits[0]
    found = (0, 0, 0, 0, 0)
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
                for behind in range(num_options):
                    for chosen in range(num_options):
                        value = built[used, cut, behind, chosen]
                        after = tables.reached[used, chosen]
                        if after < 0 or value + tables.least_s[cut] >= best:
                            continue
                        code = np.int16(cut * num_options + behind)
                        send_s = tables.to_next_s[chosen, behind, cut]
                        for first in range(cut - 1, -1, -1):
                            seconds = (
                                tables.compute_s[chosen, cut] - tables.compute_s[chosen, first]
                            )
                            seconds += send_s
                            if seconds > bottleneck_s or value + seconds >= best:
                                break
                            if not _fits(tables, chosen, first, cut, count + 1, limits):
                                break
                            if first == 0:
                                if count + 1 > SHORT_PIPELINE:
                                    seconds += send_s
                                if seconds <= bottleneck_s and value + seconds < best:
                                    best = value + seconds
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
    if found[0] == 0:
        return np.inf, np.zeros((0, 3), np.int64)
    return best, _stages(tables, origin, found)


@njit(cache=True)
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
            if not _fits(tables, chosen, first, end, 1, limits):
                break
            seconds = tables.compute_s[chosen, end] - tables.compute_s[chosen, first]
            for before in range(num_options):
                whole = seconds + 2 * tables.to_before_s[chosen, before, first]
                if whole <= limits[0]:
                    built[after, first, chosen, before] = whole
                    here[after, first] = True


@njit(cache=True)
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


@njit(cache=True)
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
