"""Swaps between groups until none helps: DT-FM's local search, with kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_agents.systems.dtfm.kernels import (
    best_tour,
    group_sums,
    hop_between,
    path_length,
    spanning_tree,
)
from heterps_agents.systems.dtfm.network import Traffic
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import ONE, ZERO, checked, checked_helper

# Seconds that are no difference.
_SAME_S = 1e-9


class Costs(NamedTuple):
    """Of G groups.

    Attributes:
        slowest_s: (G,) sums of gradients of the slowest member.
        mean_s: (G,) of the mean member.
        hop_s: (G, G) the largest of the matching between two groups.
        mean_hop_s: (G, G) the mean of it.
    """

    slowest_s: Floats
    mean_s: Floats
    hop_s: Floats
    mean_hop_s: Floats


class Score(NamedTuple):
    """How good a grouping is: fewer seconds; of as many, fewer in the mean.

    The cost is made of maxima, which most swaps do not change; the mean leads on from there.

    Attributes:
        total_s: Sums of gradients, and twice the tour.
        mean_s: The same of means.
    """

    total_s: float
    mean_s: float


@checked_helper
def costs_of(traffic: Traffic, members: Integers) -> Costs:
    """The costs of groups, whose members are (G, k)."""
    size = len(members)
    costs = Costs(np.zeros(size), np.zeros(size), np.zeros((size, size)), np.zeros((size, size)))
    for group in range(size):
        _measure_group(traffic, members, group, costs)
        _measure_hops(traffic, members, group, group, costs)
    return costs


@checked_helper
def scored(costs: Costs, order: Integers) -> tuple[Score, Integers]:
    """The score of groups, and the order of their tour; that of many is mended from an order on."""
    length_s, order = best_tour(costs.hop_s, order)
    mean_s = costs.mean_s.mean() + 2 * path_length(costs.mean_hop_s, order)
    return Score(costs.slowest_s.max() + 2 * length_s, mean_s), order


@checked
def descend(
    traffic: Traffic, kinds: Integers, members: Integers, order: Integers, most_swaps: int
) -> tuple[Score, Integers, int]:
    """Swaps members of every two groups in turn, as long as one helps.

    Args:
        traffic: Seconds between devices.
        kinds: (N,) equal devices have equal numbers: it makes no difference which of them moves.
        members: (G, k), changed in place.
        order: (G,) of a tour to begin with.
        most_swaps: That are tried.

    Returns:
        The score, the order of the groups, and how many swaps were tried.
    """
    costs, trial = costs_of(traffic, members), costs_of(traffic, members)
    best, order = scored(costs, order)
    num_groups = len(members)
    tried, idle, one, other = 0, 0, ZERO, ONE
    while idle < num_groups * (num_groups - 1) // 2 and tried < most_swaps:
        found, best, order, own = _swap_one(
            traffic, kinds, members, order, costs, trial, best, (one, other)
        )
        tried += own
        idle = 0 if found else idle + 1
        if not found:
            other += 1
            if other == num_groups:
                one += 1
                other = one + 1
            if other == num_groups:
                one, other = ZERO, ONE
    return best, order, tried


@checked_helper
def _swap_one(
    traffic: Traffic,
    kinds: Integers,
    members: Integers,
    order: Integers,
    costs: Costs,
    trial: Costs,
    best: Score,
    pair: tuple[int, int],
) -> tuple[bool, Score, Integers, int]:
    """Carries out the first swap between two groups that helps."""
    one, other = pair
    tried = 0
    for place in range(members.shape[1]):
        device = members[one, place]
        if _was_there(kinds, members[one], place):
            continue
        for far in range(members.shape[1]):
            partner = members[other, far]
            if kinds[device] == kinds[partner] or _was_there(kinds, members[other], far):
                continue
            tried += 1
            members[one, place], members[other, far] = partner, device
            score, new_order = _after_swap(traffic, members, order, trial, best, pair)
            less_s = best.total_s - score.total_s
            if less_s > _SAME_S or (less_s >= -_SAME_S and score.mean_s < best.mean_s - _SAME_S):
                _copy(trial, costs)
                return True, score, new_order, tried
            members[one, place], members[other, far] = device, partner
            _copy(costs, trial)
    return False, best, order, tried


@checked_helper
def _after_swap(
    traffic: Traffic,
    members: Integers,
    order: Integers,
    trial: Costs,
    best: Score,
    pair: tuple[int, int],
) -> tuple[Score, Integers]:
    """The score with two groups anew, as far as it can be the best."""
    one, other = pair
    _measure_group(traffic, members, one, trial)
    _measure_group(traffic, members, other, trial)
    slowest_s = trial.slowest_s.max()
    if slowest_s > best.total_s + _SAME_S:
        return Score(np.inf, np.inf), order
    _measure_hops(traffic, members, one, ZERO, trial)
    _measure_hops(traffic, members, other, ZERO, trial)
    if slowest_s + 2 * spanning_tree(trial.hop_s) > best.total_s + _SAME_S:
        return Score(np.inf, np.inf), order
    return scored(trial, order)


@checked_helper
def _was_there(kinds: Integers, group: Integers, place: int) -> bool:
    """Whether a member in front is of the same kind."""
    return bool((kinds[group[:place]] == kinds[group[place]]).any())


@checked_helper
def _measure_group(traffic: Traffic, members: Integers, group: int, costs: Costs) -> None:
    costs.slowest_s[group], costs.mean_s[group] = group_sums(traffic.gradient_s, members[group])


@checked_helper
def _measure_hops(
    traffic: Traffic, members: Integers, group: int, first: int, costs: Costs
) -> None:
    """Hops between a group and all others from the first one on."""
    for other in range(first, len(members)):
        if other != group:
            front, behind = min(group, other), max(group, other)
            hop_s, mean_s = hop_between(traffic.activation_s, members[front], members[behind])
            costs.hop_s[front, behind] = costs.hop_s[behind, front] = hop_s
            costs.mean_hop_s[front, behind] = costs.mean_hop_s[behind, front] = mean_s


@checked_helper
def _copy(source: Costs, target: Costs) -> None:
    # Number by number: numba compiles that in a fraction of what it takes for whole arrays.
    for group in range(len(source.slowest_s)):
        target.slowest_s[group] = source.slowest_s[group]
        target.mean_s[group] = source.mean_s[group]
        for other in range(len(source.slowest_s)):
            target.hop_s[group, other] = source.hop_s[group, other]
            target.mean_hop_s[group, other] = source.mean_hop_s[group, other]
