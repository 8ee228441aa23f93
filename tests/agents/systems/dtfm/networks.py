"""Small networks of devices, and their costs written down plainly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations

import numpy as np

from heterps_agents.systems.dtfm.network import Traffic
from heterps_envs.arrays import Floats

Groups = tuple[tuple[int, ...], ...]


def random_traffic(seed: int, num_devices: int) -> Traffic:
    """Seconds between every two devices drawn, so that no two are alike."""
    random = np.random.default_rng(seed)

    def drawn(most: float) -> Floats:
        upper = np.triu(random.uniform(0.1, most, (num_devices, num_devices)), 1)
        return np.asarray(upper + upper.T)

    return Traffic(drawn(1.0), drawn(2.0))


def matched_s(cost: Floats) -> float:
    """The least largest cost over all perfect matchings, by trying them."""
    rows = range(len(cost))
    return min(max(float(cost[row, way[row]]) for row in rows) for way in permutations(rows))


def total_s(traffic: Traffic, groups: Sequence[Sequence[int]]) -> float:
    """The published cost of groups in the order of their stages."""
    slowest_s = max(
        sum(traffic.gradient_s[device, other] for other in group)
        for group in groups
        for device in group
    )
    tour_s = sum(
        matched_s(traffic.activation_s[np.ix_(front, behind)]) for front, behind in pairwise(groups)
    )
    return float(slowest_s + 2 * tour_s)


def balanced_groups(devices: tuple[int, ...], size: int) -> Iterator[Groups]:
    """Every way to divide devices into groups of a size, whatever their order."""
    if not devices:
        yield ()
        return
    first, *others = devices
    for partners in combinations(others, size - 1):
        rest = tuple(device for device in others if device not in partners)
        for groups in balanced_groups(rest, size):
            yield ((first, *partners), *groups)


def least_total_s(traffic: Traffic, num_groups: int) -> float:
    """The least cost of all groups in all orders, by trying them."""
    size = traffic.num_devices // num_groups
    return min(
        total_s(traffic, order)
        for groups in balanced_groups(tuple(range(traffic.num_devices)), size)
        for order in permutations(groups)
    )
