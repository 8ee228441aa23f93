"""Small networks of devices, and their costs written down plainly."""

from __future__ import annotations

import math
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
    tour_s = sum(hop_s(traffic, front, behind) for front, behind in pairwise(groups))
    return slowest_s(traffic, groups) + 2 * tour_s


def slowest_s(traffic: Traffic, groups: Sequence[Sequence[int]]) -> float:
    """Sums of gradients of the group that takes longest."""
    return max(
        float(sum(traffic.gradient_s[device, other] for other in group))
        for group in groups
        for device in group
    )


def hop_s(traffic: Traffic, front: Sequence[int], behind: Sequence[int]) -> float:
    """Activations from one group to another, one way."""
    return matched_s(traffic.activation_s[np.ix_(front, behind)])


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
    best_s, hops_s = math.inf, dict[tuple[tuple[int, ...], tuple[int, ...]], float]()
    for groups in balanced_groups(tuple(range(traffic.num_devices)), size):
        for pair in permutations(groups, 2):
            if pair not in hops_s:
                hops_s[pair] = hop_s(traffic, *pair)
        tour_s = min(
            sum(hops_s[pair] for pair in pairwise(order)) for order in permutations(groups)
        )
        best_s = min(best_s, slowest_s(traffic, groups) + 2 * tour_s)
    return best_s
