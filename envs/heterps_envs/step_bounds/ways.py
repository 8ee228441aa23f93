"""The least seconds in front of a stage, behind it, and on the way around what is behind it.

A micro-batch comes to a stage through a chain of other stages, which have all layers in front of it
in a row. So each of these layers takes at least what the fastest group of some class takes, and
where the next layer is of another class, the message between them takes at least the fastest link
between the two. The stage's own devices are not on the way: a device has one stage. A group of its
class has room on the rest of them only, and there is none where no device is left. What is least is
a shortest path over (layer, class).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import allocating, uncounted_helper
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.near_links import NearLinks, class_messages


class Ways(NamedTuple):
    """As in `Needs`: row 0 of any way, row 1 of one that comes from, or goes to, another node."""

    in_s: Floats
    out_s: Floats
    around_s: Floats


class Groups(NamedTuple):
    """O kinds of groups: their class and devices; and the devices of T classes."""

    class_of: Integers
    degree: Integers
    num_devices: Integers


def ways_of(
    problem: Problem,
    links: NearLinks,
    groups: Groups,
    forward_s: Floats,
    backward_s: Floats,
    unit: float,
) -> Ways:
    """Of the smallest micro-batch.

    A way over another node reaches the stage's node at its own cut, or at one before and then
    passes the stage's own cut besides.

    Args:
        problem: Its messages.
        links: Of its classes.
        groups: That there may be.
        forward_s: (L, O) of the smallest micro-batch.
        backward_s: (L, O) of that what is waited for.
        unit: The smallest micro-batch.
    """
    waits = 0.0 if problem.job.schedule == "zero-bubble" else 1.0
    message_s, num_bytes = _messages(problem, unit)
    far_s = links.latency_s[1] + num_bytes[:, None] * links.s_per_byte[1]
    in_s = _least_s(groups, forward_s, message_s, far_s)
    out_s = _least_s(groups, backward_s, waits * message_s, waits * far_s)
    # From the back, there and back again.
    twice = 1 + waits
    there_s = (forward_s + backward_s)[::-1].copy()
    around_s = _least_s(groups, there_s, twice * message_s[::-1], twice * far_s[::-1])
    return Ways(in_s[:, :-1], out_s[:, :-1], around_s[:, ::-1])


def unit_messages(problem: Problem, unit: float) -> Floats:
    """(L + 1, T, T) of the smallest micro-batch over the cut in front of a layer."""
    return _messages(problem, unit)[0]


def _messages(problem: Problem, unit: float) -> tuple[Floats, Floats]:
    """Seconds between two classes, and bytes."""
    # Over the cut in front of a layer; no message enters the model, or leaves it.
    num_bytes = unit * np.concatenate([[0.0], problem.tables.output_bytes[:-1], [0.0]])
    latency_s, s_per_byte = class_messages(problem)
    return latency_s + num_bytes[:, None, None] * s_per_byte, num_bytes


@allocating
def _least_s(groups: Any, layers_s: Any, message_s: Any, far_s: Any) -> Floats:
    """(2, L + 1, O) the least seconds to the cut in front of each layer, and over it."""
    num_layers, num_options = layers_s.shape
    num_classes = len(groups.num_devices)
    least_s = np.zeros((2, num_layers + 1, num_options))
    reached_s, next_s = np.empty(num_classes), np.empty(num_classes)
    for option in range(num_options):
        own = groups.class_of[option]
        # To the class's last layer, and to one of the own node after one of another.
        crossed_s = np.inf
        for stop in range(1, num_layers + 1):
            _seconds(groups, layers_s[stop - 1], option, next_s)
            back_s = _from_others(reached_s, message_s, stop - 1, own) if stop > 1 else np.inf
            if stop > 1:
                back_s = min(back_s, reached_s[own] + far_s[stop - 1, own])
            crossed_s = min(crossed_s, back_s) + next_s[own]
            for kind in range(num_classes):
                if stop > 1:
                    before_s = _from_others(reached_s, message_s, stop - 1, kind)
                    next_s[kind] += min(reached_s[kind], before_s)
            for kind in range(num_classes):
                reached_s[kind] = next_s[kind]
            others_s = _from_others(reached_s, message_s, stop, own)
            near_s, far = message_s[stop, own, own], far_s[stop, own]
            least_s[0, stop, option] = min(others_s, reached_s[own] + near_s)
            least_s[1, stop, option] = min(others_s, reached_s[own] + far, crossed_s + near_s)
    return least_s


@uncounted_helper
def _from_others(reached_s: Any, message_s: Any, cut: int, kind: int) -> float:
    """The least over a cut to a class from any other."""
    least_s = np.inf
    for other in range(len(reached_s)):
        if other != kind:
            least_s = min(least_s, reached_s[other] + message_s[cut, other, kind])
    return least_s


@uncounted_helper
def _seconds(groups: Any, layer_s: Any, option: int, found_s: Any) -> None:
    """Writes what a layer takes on each class, beside a group that has devices of one."""
    found_s[:] = np.inf
    for other in range(len(groups.class_of)):
        kind = groups.class_of[other]
        left = groups.num_devices[kind]
        if kind == groups.class_of[option]:
            left -= groups.degree[option]
        if groups.degree[other] <= left:
            found_s[kind] = min(found_s[kind], layer_s[other])
