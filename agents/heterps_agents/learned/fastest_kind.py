"""The fastest kind of device alone, where there are hundreds of devices of several kinds.

A search over all of them has little time for each kind. Where slower devices hardly help, as in
small batches of small models, it misses what the same search finds on the fastest ones.
"""

from __future__ import annotations

from heterps_envs.online.fewer_devices import without_devices
from heterps_envs.problem import Problem

# With fewer devices, or of fewer kinds, the search over all of them sees these plans, too.
LEAST_DEVICES, LEAST_KINDS = 128, 3


def is_worth_asking(problem: Problem) -> bool:
    """Whether a search over all devices may miss what the fastest kind alone does."""
    kinds = {device.type.name for device in problem.cluster.devices}
    return len(problem.cluster.devices) >= LEAST_DEVICES and len(kinds) >= LEAST_KINDS


def on_fastest_kind(problem: Problem) -> Problem:
    """The problem without all other devices."""
    seconds = problem.tables.compute_s.sum(axis=0)
    fastest = min(problem.class_of, key=lambda name: float(seconds[problem.class_of[name]]))
    kind = problem.device_named[fastest].type.name
    others = [name for name, each in problem.device_named.items() if each.type.name != kind]
    return without_devices(problem, others)
