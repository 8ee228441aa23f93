"""The fastest kind of device alone, where there are hundreds of devices of several kinds.

A search over all of them has little time for each kind. Where slower devices hardly help, as in
small batches of small models, it misses what the same search finds on the fastest ones.
"""

from __future__ import annotations

import math

from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem

# With fewer devices, or of fewer kinds, the search over all of them sees these plans, too.
LEAST_DEVICES, LEAST_KINDS = 128, 3


def is_worth_asking(problem: Problem) -> bool:
    """Whether a search over all devices may miss what the fastest kind alone does."""
    kinds = {device.type.name for device in problem.cluster.devices}
    return len(problem.cluster.devices) >= LEAST_DEVICES and len(kinds) >= LEAST_KINDS


def on_fastest_kind(problem: Problem) -> Problem:
    """The problem without all other devices."""
    return on_fastest_kinds(problem, 1)[0]


def on_fastest_kinds(problem: Problem, most: int) -> list[Problem]:
    """The problem on the fastest kind alone, on the two fastest ones, and so on.

    Args:
        problem: With devices of several kinds.
        most: Kinds of the last one; it is never all of them.
    """
    seconds = problem.tables.compute_s.sum(axis=0)
    least_s: dict[str, float] = {}
    for name, number in problem.class_of.items():
        kind = problem.device_named[name].type.name
        least_s[kind] = min(least_s.get(kind, math.inf), float(seconds[number]))
    kinds = sorted(least_s, key=lambda kind: least_s[kind])
    return [_without_kinds(problem, set(kinds[count:])) for count in range(1, len(kinds))[:most]]


def _without_kinds(problem: Problem, kinds: set[str]) -> Problem:
    devices = problem.device_named.items()
    return without_devices(problem, [name for name, each in devices if each.type.name in kinds])
