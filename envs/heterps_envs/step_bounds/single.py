"""The least seconds of a step that has one micro-batch: a shortest chain of stages.

It passes every stage of one chain there and back, and nothing else runs meanwhile but optimizer
steps of stages behind. So with F, B, X a stage's seconds and those of a message, from the back to
the front, E seconds from the begin of a stage's forward pass to the end of its backward pass, and
D to the last optimizer step of this stage and all behind it:

    E' = F + X + E + X + B,   D' = max(F + X + D, E' + optimizer)

The least E and the least D of all chains that begin with a layer, on a device of a class, having
used so many devices of rare classes, are found one by one; each is a limit by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import ZERO, allocating, allocating_helper
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.near_links import class_messages
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.shares import ALONE, in_time_and_memory

# Sets of used devices that are told apart; of more, devices of common classes are not counted.
MOST_SETS = 300
# Longer than any step: only memory counts.
LONG_S = 1e12


def least_single_s(problem: Problem, needs: Needs) -> float:
    """The least seconds; inf where no chain of stages fits.

    Args:
        problem: With one micro-batch.
        needs: Of the problem.
    """
    latency_s, s_per_byte = class_messages(problem)
    message_s = latency_s + problem.tables.output_bytes[:, None, None] * s_per_byte
    return float(_least_s(needs, message_s, _strides(needs.num_devices)))


def _strides(num_devices: Integers) -> Integers:
    """(T + 1,) what one more used device adds to a set's number, 0 where they are not counted."""
    strides, num_sets = np.zeros(len(num_devices) + 1, np.int64), 1
    for kind in np.argsort(num_devices, kind="stable"):
        if num_sets * (num_devices[kind] + 1) > MOST_SETS:
            break
        strides[kind] = num_sets
        num_sets *= int(num_devices[kind]) + 1
    strides[-1] = num_sets
    return strides


@allocating
def _least_s(n: Any, message_s: Floats, strides: Any) -> float:
    num_layers, num_classes, num_sets = len(message_s), len(n.num_devices), strides[-1]
    there_s = np.full((num_layers + 1, num_classes, num_sets), np.inf)
    done_s = np.full((num_layers + 1, num_classes, num_sets), np.inf)
    for stop in range(num_layers, 0, -1):
        for first in range(stop):
            for option in range(len(n.class_of)):
                span = (option, first, stop, ZERO, ZERO)
                if in_time_and_memory(n, LONG_S, span, ALONE) >= n.total:
                    _put_in_front(n, span, message_s, strides, there_s, done_s)
    least_s = np.inf
    for kind in range(num_classes):
        for used in range(num_sets):
            least_s = min(least_s, done_s[0, kind, used])
    return least_s


@allocating_helper
def _put_in_front(
    n: Any, span: Any, message_s: Any, strides: Any, there_s: Any, done_s: Any
) -> None:
    """A stage in front of all chains that begin with the layer behind it."""
    option, first, stop, _, _ = span
    kind, degree = n.class_of[option], n.degree[option]
    forward = n.forward_s[stop, option] - n.forward_s[first, option]
    backward = n.backward_s[stop, option] - n.backward_s[first, option]
    optimizer = n.optimizer_s[ALONE, stop, option] - n.optimizer_s[ALONE, first, option]
    more = degree * strides[kind]
    if stop == len(message_s):
        there = forward + backward
        there_s[first, kind, more] = min(there_s[first, kind, more], there)
        done_s[first, kind, more] = min(done_s[first, kind, more], there + optimizer)
        return
    for behind in range(len(n.num_devices)):
        across = message_s[stop - 1, kind, behind]
        for used in range(strides[-1]):
            if there_s[stop, behind, used] == np.inf:
                continue
            most = n.num_devices[kind]
            if strides[kind] > 0 and used // strides[kind] % (most + 1) + degree > most:
                continue
            there = forward + across + there_s[stop, behind, used] + across + backward
            done = max(forward + across + done_s[stop, behind, used], there + optimizer)
            there_s[first, kind, used + more] = min(there_s[first, kind, used + more], there)
            done_s[first, kind, used + more] = min(done_s[first, kind, used + more], done)
