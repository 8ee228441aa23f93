"""Draws spot traces: losses, returns and prices that are made up, the same for the same seed.

Each device is up and down by turns, both for exponential times. Each node does the same with rates
of its own, and takes all its devices along (correlated losses). The logarithm of a node's price is
a random walk that is drawn back to the cluster's price. None of it is a measurement of a provider;
it is for comparing strategies under conditions that are stated.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Cluster, Device
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.spot.trace import SpotEvent, SpotTrace

# Seconds of a day.
DAY_S = 86_400.0
# Share of the way back to the cluster's price that the price's logarithm goes between two changes.
PRICE_RETURN = 0.1
MOST_PRICE_SPREAD = 3.0
# Of a trace: more than a year of a large cluster has.
MOST_ROWS = 500_000


class SpotRates(NamedTuple):
    """How often devices are lost, and for how long.

    Attributes:
        interruptions_per_hour: Of one device (or node) while it is there.
        mean_absence_s: Until it is back.
    """

    interruptions_per_hour: float
    mean_absence_s: float

    def interruptions_in(self, duration_s: float) -> float:
        """How often something is lost in so many seconds, on average, were it never away long."""
        return duration_s * self.interruptions_per_hour / 3600


DEVICE_RATES, NODE_RATES = SpotRates(0.1, 1_800.0), SpotRates(0.02, 3_600.0)


@dataclass(frozen=True)
class SpotDraw:
    """What a drawn trace looks like. The defaults are made up.

    Attributes:
        duration_s: Length of the trace.
        device: Rates of one device.
        by_type: Rates of device types that differ from that.
        node: Rates of a whole node.
        price_spread: Standard deviation of one change of a price's logarithm.
        price_every_s: Seconds between two changes of prices.
    """

    duration_s: float = DAY_S
    device: SpotRates = DEVICE_RATES
    by_type: Mapping[str, SpotRates] = field(default_factory=dict)
    node: SpotRates = NODE_RATES
    price_spread: float = 0.03
    price_every_s: float = 3_600.0

    def num_rows(self, cluster: Cluster) -> float:
        """About how many rows a trace of a cluster has, at most."""
        nodes = len(cluster.nodes)
        interruptions = nodes * self.node.interruptions_in(self.duration_s)
        for device in cluster.devices:
            rates = self.by_type.get(device.type.name, self.device)
            interruptions += rates.interruptions_in(self.duration_s)
        changes = self.duration_s / self.price_every_s if self.price_spread else 0.0
        return 2 * interruptions + len(cluster.devices) * changes

    def __post_init__(self) -> None:
        rates = [self.device, self.node, *self.by_type.values()]
        positive = (self.duration_s, self.price_every_s, *(r.mean_absence_s for r in rates))
        others = (self.price_spread, *(r.interruptions_per_hour for r in rates))
        if not all(math.isfinite(value) for value in (*positive, *others)):
            raise HeterpsError("a spot trace: all rates and times must be finite")
        if self.price_spread > MOST_PRICE_SPREAD:
            raise HeterpsError(f"a spot trace: the spread of prices is at most {MOST_PRICE_SPREAD}")
        if min(positive) <= 0 or min(others) < 0:
            raise HeterpsError("a spot trace: times must be above 0, rates and spread at least 0")


Span = tuple[float, float]


def draw_spot_trace(cluster: Cluster, draw: SpotDraw, seed: int = 0) -> SpotTrace:
    """A trace for a cluster. Every device and node has random numbers of its own.

    Raises:
        UnknownNameError: `by_type` names a type that no device has.
        HeterpsError: The trace would have more than `MOST_ROWS` rows.
    """
    types = {device.type.name for device in cluster.devices}
    for name in draw.by_type:
        if name not in types:
            raise UnknownNameError("device type", name, types)
    num_rows = draw.num_rows(cluster)
    if num_rows > MOST_ROWS:
        raise HeterpsError(
            f"a spot trace of {draw.duration_s / 3600:g} hours would have about {num_rows:.3g} "
            f"rows; at most {MOST_ROWS} are drawn"
        )
    events: list[SpotEvent] = []
    devices: dict[str, list[tuple[int, Device]]] = {}
    for index, device in enumerate(cluster.devices):
        devices.setdefault(device.node, []).append((index, device))
    for number, (node, own) in enumerate(devices.items()):
        away = list(_absences(draw.node, draw.duration_s, np.random.default_rng([seed, 0, number])))
        events.extend(_node_rows(node, away))
        for index, device in own:
            rates = draw.by_type.get(device.type.name, draw.device)
            rng = np.random.default_rng([seed, 1, index])
            spans = list(_absences(rates, draw.duration_s, rng))
            events.extend(_device_rows(device.name, spans, away))
        rng = np.random.default_rng([seed, 2, number])
        events.extend(_prices(node, [device for _, device in own], draw, rng))
    # Nodes come back before the devices that stay away are lost again, all at one time.
    events.sort(key=lambda event: (event.time_s, event.scope != "node", event.event))
    within = tuple(event for event in events if event.time_s < draw.duration_s)
    return SpotTrace(within, draw.duration_s, f"drawn with seed {seed}")


def _absences(rates: SpotRates, duration_s: float, rng: np.random.Generator) -> Iterator[Span]:
    """When something is away, in whole milliseconds, until the end of the trace."""
    time_s = 0.0
    while rates.interruptions_per_hour > 0:
        lost_s = time_s + rng.exponential(3600 / rates.interruptions_per_hour)
        time_s = lost_s + rng.exponential(rates.mean_absence_s)
        if lost_s >= duration_s:
            return
        if round(lost_s, 3) < round(time_s, 3):
            yield round(lost_s, 3), round(time_s, 3)


def _node_rows(node: str, away: Sequence[Span]) -> Iterator[SpotEvent]:
    for lost_s, back_s in away:
        yield SpotEvent(lost_s, "node", node, "lost")
        yield SpotEvent(back_s, "node", node, "back")


def _device_rows(
    device: str, spans: Sequence[Span], node_away: Sequence[Span]
) -> Iterator[SpotEvent]:
    """Absences of a device while its node is there; a node that comes back brings all devices."""
    returns = [back_s for _, back_s in node_away]
    for lost_s, back_s in spans:
        start_s = lost_s
        for away_s, returns_s in node_away[bisect_right(returns, start_s) :]:
            if away_s >= back_s:
                break
            if start_s < away_s:
                yield SpotEvent(start_s, "device", device, "lost")
            start_s = returns_s
        if start_s < back_s:
            yield SpotEvent(start_s, "device", device, "lost")
            yield SpotEvent(back_s, "device", device, "back")


def _prices(
    node: str, devices: Sequence[Device], draw: SpotDraw, rng: np.random.Generator
) -> Iterator[SpotEvent]:
    """One row for a node whose devices cost the same, else one for each device."""
    if draw.price_spread == 0:
        return
    listed = {device.price_usd_per_hour for device in devices}
    logarithm = 0.0
    for step in range(1, math.ceil(draw.duration_s / draw.price_every_s)):
        logarithm = (1 - PRICE_RETURN) * logarithm + draw.price_spread * rng.standard_normal()
        time_s, factor = step * draw.price_every_s, math.exp(logarithm)
        if len(listed) == 1:
            price = round(min(listed) * factor, 6)
            yield SpotEvent(time_s, "node", node, "price", price_usd_per_hour=price)
            continue
        for device in devices:
            price = round(device.price_usd_per_hour * factor, 6)
            yield SpotEvent(time_s, "device", device.name, "price", price_usd_per_hour=price)
