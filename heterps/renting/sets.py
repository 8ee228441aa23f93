"""The sets of devices that a budget buys, or nearly buys, those first that promise most."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

from heterps.renting.bundles import Bundle, chains
from heterps.renting.offer import Offer
from heterps.renting.sizes import with_open_sizes
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.bounds import least_cost
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem

# Sets that cost so many times the budget are looked at, for plans that leave devices idle.
NEARLY = 1.5
# Prices are sums of numbers with rounding errors.
ROUNDED = 1 + 1e-9


class RentableSet(NamedTuple):
    """Devices that may be rented.

    Attributes:
        problem: On these alone.
        offered: On all that is on offer.
        is_affordable: All of them together, and not only what a plan may use of them.
        usd_per_hour: What they cost together.
        promise: No placement costs less by the closed form, in what the job minimises, with a
            middle size of micro-batches where that is open: to put sets in order.
    """

    problem: Problem
    offered: Problem
    is_affordable: bool
    usd_per_hour: float
    promise: float


def sets_of(problem: Problem, offer: Offer) -> list[RentableSet]:
    """Sets within a budget, those that promise most first, then those just above it.

    Without a budget all devices are the only set.
    """
    devices, limit = problem.cluster.devices, offer.usd_per_hour
    everything = Bundle(
        frozenset(device.name for device in devices),
        sum(device.price_usd_per_hour for device in devices),
    )
    if limit is None:
        return [RentableSet(problem, problem, True, everything.usd_per_hour, 0.0)]
    found = {bundle.names: bundle for chain in [[everything], *chains(problem)] for bundle in chain}
    sets = []
    for names, bundle in found.items():
        if bundle.usd_per_hour <= limit * NEARLY:
            own = without_devices(problem, problem.device_named.keys() - names)
            is_within = bundle.usd_per_hour <= limit * ROUNDED
            sets.append(RentableSet(own, problem, is_within, bundle.usd_per_hour, _promise(own)))
    return sorted(sets, key=lambda each: (not each.is_affordable, each.promise, each.usd_per_hour))


def _promise(problem: Problem) -> float:
    """The least cost by a bound; inf where devices lack links or groups that a strategy needs."""
    asked = with_open_sizes(problem)
    with suppress(HeterpsError):
        promise = least_cost(asked[len(asked) // 2])
        return promise if promise < math.inf else least_cost(asked[0])
    return math.inf
