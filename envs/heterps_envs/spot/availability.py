"""A spot trace on a cluster: which devices there are, and at which price, from when to when."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

from heterps_configs.documents.cluster import Cluster, Device
from heterps_configs.errors import DocumentError
from heterps_envs.spot.trace import SpotEvent, SpotTrace


class SpotMoment(NamedTuple):
    """What holds from a time on.

    Attributes:
        available: Names of devices, in the cluster's order.
        price_usd_per_hour: Of every device of the cluster.
    """

    time_s: float
    available: tuple[str, ...]
    price_usd_per_hour: Mapping[str, float]


def spot_moments(trace: SpotTrace, cluster: Cluster) -> tuple[SpotMoment, ...]:
    """The moments at which something changes, the first at 0; events of one time are one moment.

    Before the first event all devices of the cluster are there, at its prices.

    Raises:
        DocumentError: The trace names what the cluster does not have, or counts more devices than
            there are.
    """
    devices = {device.name: device for device in cluster.devices}
    there = dict.fromkeys(devices, True)
    prices = {name: device.price_usd_per_hour for name, device in devices.items()}
    moments = [SpotMoment(0.0, tuple(devices), dict(prices))]
    problems: list[str] = []
    for event in trace.events:
        problem = _apply(event, devices, there, prices)
        if problem:
            problems.append(f"line {event.line}, {problem}" if event.line else problem)
        available = tuple(name for name in devices if there[name])
        moment = SpotMoment(event.time_s, available, dict(prices))
        if moment.time_s == moments[-1].time_s:
            moments.pop()
        if not moments or moment[1:] != moments[-1][1:]:
            moments.append(moment)
    if problems:
        raise DocumentError(trace.source, problems)
    return tuple(moments)


def _apply(
    event: SpotEvent,
    devices: Mapping[str, Device],
    there: dict[str, bool],
    prices: dict[str, float],
) -> str:
    """Changes what is there; returns what is wrong with the event, or an empty text."""
    named = _devices_of(event, devices)
    if not named:
        known = sorted({_name_in(event, device) for device in devices.values()})
        near = difflib.get_close_matches(event.name, known, n=2, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known)}"
        return f"name: the cluster has no {event.scope} {event.name!r}; {hint}"
    if event.price_usd_per_hour is not None:
        prices.update(dict.fromkeys(named, event.price_usd_per_hour))
    if event.event == "price":
        return ""
    here, gone = [n for n in named if there[n]], [n for n in named if not there[n]]
    if event.event == "available":
        assert event.count is not None
        change = event.count - len(here)
    elif event.event == "lost":
        change = -(len(here) if event.count is None else event.count)
    else:
        change = len(gone) if event.count is None else event.count
    if change > len(gone) or -change > len(here):
        return (
            f"count: {event.count} devices of {event.name!r} {event.event}, but {len(here)} of "
            f"{len(named)} are there"
        )
    # The last ones of the cluster's order go first, and the first ones come back first.
    there.update(dict.fromkeys(here[len(here) + change :], False) if change < 0 else {})
    there.update(dict.fromkeys(gone[:change], True) if change > 0 else {})
    return ""


def _devices_of(event: SpotEvent, devices: Mapping[str, Device]) -> list[str]:
    return [name for name, device in devices.items() if _name_in(event, device) == event.name]


def _name_in(event: SpotEvent, device: Device) -> str:
    """What a device is called in the scope of an event."""
    return {"device": device.name, "node": device.node, "type": device.type.name}[event.scope]


def mean_available_devices(moments: tuple[SpotMoment, ...], duration_s: float) -> float:
    """Devices that are there, on average over a time."""
    ends = [*(moment.time_s for moment in moments[1:]), duration_s]
    spans = [
        (min(end, duration_s) - min(moment.time_s, duration_s)) * len(moment.available)
        for moment, end in zip(moments, ends, strict=True)
    ]
    return sum(spans) / duration_s if duration_s > 0 else float(len(moments[-1].available))


def num_changes(moments: tuple[SpotMoment, ...]) -> tuple[int, int]:
    """(losses, returns): moments at which devices vanish, and at which some come back."""
    pairs = [(set(a.available), set(b.available)) for a, b in pairwise(moments)]
    return sum(bool(a - b) for a, b in pairs), sum(bool(b - a) for a, b in pairs)


def hastened(
    moments: tuple[SpotMoment, ...], factor: float, start_s: float = 0.0
) -> tuple[SpotMoment, ...]:
    """The same changes, so many times faster.

    Args:
        moments: Of a trace.
        factor: Seconds of the trace that pass in one second.
        start_s: A device that comes back is there so many seconds later: its process has to start.
    """
    changes: list[tuple[float, str, bool]] = []
    lost_s: defaultdict[str, list[float]] = defaultdict(list)
    for before, after in pairwise(moments):
        gone, come = set(before.available), set(after.available)
        at_s = after.time_s / factor
        changes += [(at_s, name, False) for name in gone - come]
        changes += [(at_s + start_s, name, True) for name in come - gone]
        for name in gone - come:
            lost_s[name].append(at_s)
    names, times_s = list(moments[0].price_usd_per_hour), [m.time_s / factor for m in moments]
    there = dict.fromkeys(names, False) | dict.fromkeys(moments[0].available, True)
    found = [moments[0]]
    for at_s, name, is_there in sorted(changes):
        # Who is lost again before its process has started was not there in between.
        if is_there and _is_any_within(lost_s[name], at_s - start_s, at_s):
            continue
        there[name] = is_there
        prices = moments[bisect_right(times_s, at_s) - 1].price_usd_per_hour
        moment = SpotMoment(at_s, tuple(name for name in names if there[name]), prices)
        if found[-1].time_s == at_s:
            found.pop()
        found.append(moment)
    return tuple(found)


def _is_any_within(times_s: list[float], after_s: float, until_s: float) -> bool:
    """Whether one of some times, in their order, is after the first and no later than the last."""
    return bisect_right(times_s, after_s) < bisect_right(times_s, until_s)
