"""The dynamic programme over chains of ideals: a device for each difference of two neighbours.

`value[ideal, state]` is the least possible largest load of the devices that hold the ideal, where
the state counts the accelerators and CPUs that are used up. Every pair of ideals is looked at once,
whatever the state. What cannot end below `upper_s`, a load that is already had, is left out: loads
of `upper_s` or more, and ideals whose rest is too much for the devices that are left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.ideals import IdealTables
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper


@checked
def sweep(
    tables: IdealTables,
    num_accelerators: int,
    num_cpus: int,
    memory_bytes: float,
    cpu_speed: float,
    upper_s: float,
) -> tuple[Floats, Integers]:
    """Least largest loads below `upper_s`.

    Args:
        tables: Ideals, the empty one first and the full one last.
        num_accelerators: Equal accelerators.
        num_cpus: Equal CPUs.
        memory_bytes: Of one accelerator.
        cpu_speed: Accelerator seconds of work that a CPU does in a second, at most.
        upper_s: Only loads below matter.

    Returns:
        value (I, S), inf where no split is below `upper_s`, and the ideal that a value came from
        (I, S), `i` over an accelerator and `-1 - i` over a CPU.
    """
    count = len(tables.accelerator_s)
    stride = num_accelerators + 1
    num_states = stride * (num_cpus + 1)
    value = np.full((count, num_states), np.inf)
    origin = np.zeros((count, num_states), dtype=np.int64)
    value[0, 0] = 0
    total_s = tables.accelerator_s[-1]
    pins = np.zeros(len(tables.net_s), dtype=np.int64)
    states = np.empty(num_states, dtype=np.int64)
    widest = upper_s * max(1.0, cpu_speed)
    for index in range(count - 1):
        used, lowest_s, any_accelerator, any_cpu = 0, np.inf, False, False
        for state in range(num_states):
            if value[index, state] >= upper_s:
                continue
            left = num_accelerators - state % stride
            cpus_left = num_cpus - state // stride
            rest_s = total_s - tables.accelerator_s[index]
            if cpus_left == 0:
                rest_s += tables.cut_s[index]
            most_s = (left + cpus_left * cpu_speed) * upper_s
            if rest_s > most_s or left + cpus_left == 0:
                continue
            states[used] = state
            used += 1
            if left:
                any_accelerator = True
                lowest_s = min(lowest_s, total_s - most_s + upper_s)
            if cpus_left:
                any_cpu = True
                lowest_s = min(lowest_s, total_s - most_s + cpu_speed * upper_s)
        if not used:
            continue
        for position in range(tables.cut_start[index], tables.cut_end[index]):
            pins[tables.cut_net[position]] = tables.cut_pins[position]
        behind = max(index + 1, int(np.searchsorted(tables.accelerator_s, lowest_s)))
        for other in range(behind, count):
            work_s = tables.accelerator_s[other] - tables.accelerator_s[index]
            if work_s >= widest:
                break
            cpu_s = tables.cpu_s[other] - tables.cpu_s[index]
            cut_s = tables.cut_s[other] + tables.cut_s[index]
            on_accelerator = (
                any_accelerator
                and work_s + abs(tables.cut_s[other] - tables.cut_s[index]) < upper_s
                and tables.only_cpu[other] == tables.only_cpu[index]
                and tables.memory_bytes[other] - tables.memory_bytes[index] <= memory_bytes
            )
            on_cpu = (
                any_cpu
                and cpu_s < upper_s
                and tables.only_accelerator[other] == tables.only_accelerator[index]
            )
            if not (on_accelerator or on_cpu) or not contains(tables.words, other, index):
                continue
            if on_accelerator:
                load_s = work_s + cut_s - _shared(tables, pins, other)
                if load_s < upper_s:
                    for place in range(used):
                        state = states[place]
                        after = max(value[index, state], load_s)
                        if state % stride < num_accelerators and after < value[other, state + 1]:
                            value[other, state + 1] = after
                            origin[other, state + 1] = index
            if on_cpu:
                for place in range(used):
                    state = states[place]
                    after = max(value[index, state], cpu_s)
                    if state // stride < num_cpus and after < value[other, state + stride]:
                        value[other, state + stride] = after
                        origin[other, state + stride] = -1 - index
        for position in range(tables.cut_start[index], tables.cut_end[index]):
            pins[tables.cut_net[position]] = 0
    return value, origin


@checked_helper
def contains(words: NDArray[np.uint64], larger: int, smaller: int) -> bool:
    """Whether one ideal holds all groups of the other."""
    for word in range(words.shape[1]):  # noqa: SIM110 (numba compiles no generator)
        if words[smaller, word] & ~words[larger, word]:
            return False
    return True


@checked_helper
def _shared(tables: IdealTables, pins: Integers, other: int) -> float:
    """What the cut nets of both ideals count too much, for the groups between them.

    A net that both cut was counted twice and is paid once; not at all where none of its groups
    lies between.
    """
    seconds = 0.0
    for position in range(tables.cut_start[other], tables.cut_end[other]):
        net = tables.cut_net[position]
        if pins[net]:
            once = tables.net_s[net]
            seconds += once if pins[net] != tables.cut_pins[position] else 2 * once
    return seconds
