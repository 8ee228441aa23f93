"""DT-FM's search: groupings are crossed, mended to equal groups, and improved by swaps.

Of the paper: balanced groupings, crossover at five points, a local search on each child, and that a
better child takes the place of the worst. Decided here:

- The local search swaps members of two groups by the cost itself; the published one moves devices
  around cycles of groups by weights of edges.
- A child's groups are numbered like those of its first parent that they have most members of.
- Half of the children get some groups dealt anew: along an order in which close devices are
  neighbours, in blocks (close ones together) or in turns (close ones apart).
- Swaps that are tried are counted, and end the search; no clock does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from heterps_agents.systems.dtfm.descent import Score, descend
from heterps_agents.systems.dtfm.kernels import bottleneck_matching
from heterps_agents.systems.dtfm.network import Traffic
from heterps_envs.arrays import Floats, Integers

_POINTS = 5


class Grouping(NamedTuple):
    """Groups in the order of their stages.

    Attributes:
        groups: Devices of each, by index; those at the same place of neighbours are partners.
        gradient_s: Sums of gradients.
        tour_s: Activations from the first group to the last, one way.
    """

    groups: tuple[tuple[int, ...], ...]
    gradient_s: float
    tour_s: float

    @property
    def total_s(self) -> float:
        """Sums of gradients, activations there, and their gradients back."""
        return self.gradient_s + 2 * self.tour_s


class Effort(NamedTuple):
    """How long it is searched.

    Attributes:
        population: Groupings that are kept.
        trials: Children.
        most_swaps: That are tried in all.
    """

    population: int = 24
    trials: int = 400
    most_swaps: int = 10_000_000


class _Member(NamedTuple):
    score: Score
    members: Integers


def search_groups(
    traffic: Traffic, num_groups: int, seed: int, effort: Effort = Effort()
) -> Grouping:
    """The best grouping found.

    Args:
        traffic: Seconds between devices.
        num_groups: That the devices are divided into evenly.
        seed: Of random numbers; equal seeds give equal groupings.
        effort: How long.
    """
    assert traffic.num_devices % num_groups == 0, "groups are of equal size"
    return _Search(traffic, num_groups, seed, effort).run()


class _Search:
    def __init__(self, traffic: Traffic, num_groups: int, seed: int, effort: Effort) -> None:
        self.traffic, self.num_groups, self.effort = traffic, num_groups, effort
        self.size = traffic.num_devices // num_groups
        self.random = np.random.default_rng(seed)
        self.kinds = traffic.kinds()
        self.line = close_ones_in_line(traffic.activation_s + traffic.gradient_s)
        self.swaps_left = effort.most_swaps

    def run(self) -> Grouping:
        starts = [self._dealt(True), self._dealt(False)]
        if self.num_groups == 1 or not self.kinds.any():
            return self._grouping(starts[0])
        starts += [self._shuffled() for _ in range(self.effort.population - len(starts))]
        people = [self._improved(members) for members in starts]
        for _ in range(self.effort.trials if self.size > 1 else 0):
            if self.swaps_left <= 0:
                break
            self._replace_worst(people, self._improved(self._child(people)))
        return self._grouping(min(people, key=lambda one: one.score).members)

    def _improved(self, members: Integers) -> _Member:
        order = np.arange(self.num_groups)
        score, order, tried = descend(self.traffic, self.kinds, members, order, self.swaps_left)
        self.swaps_left -= tried
        return _Member(score, members[order])

    def _replace_worst(self, people: list[_Member], child: _Member) -> None:
        """A child that is like somebody takes no place."""
        if any(np.allclose(child.score, one.score, 1e-9, 1e-9) for one in people):
            return
        worst = max(range(len(people)), key=lambda index: people[index].score)
        if child.score < people[worst].score:
            people[worst] = child

    def _child(self, people: Sequence[_Member]) -> Integers:
        first, second = self.random.choice(len(people), 2, replace=False)
        members = self._crossed(people[first].members, people[second].members)
        if self.random.random() < 0.5:
            count = self.random.integers(2, self.num_groups + 1)
            groups = self.random.permutation(self.num_groups)[:count]
            self._deal(members, groups, in_turns=self.random.random() < 0.5)
        return members

    def _crossed(self, first: Integers, second: Integers) -> Integers:
        """Parts of both parents in turn; who is too many in a group fills up the others."""
        one, other = _numbers(first), like_numbered(_numbers(first), _numbers(second))
        places = np.arange(1, len(one))
        cuts = np.sort(self.random.choice(places, min(_POINTS, len(places)), replace=False))
        is_other = np.searchsorted(cuts, np.arange(len(one)), side="right") % 2 == 1
        number = np.where(is_other, other, one)
        free: list[int] = []
        for group in range(self.num_groups):
            own = self.random.permutation(np.flatnonzero(number == group))
            free += own[self.size :].tolist()
        number[free] = -1
        counts = np.bincount(number[number >= 0], minlength=self.num_groups)
        missing = np.repeat(np.arange(self.num_groups), self.size - counts)
        number[self.random.permutation(np.flatnonzero(number < 0))] = missing
        return np.argsort(number, kind="stable").reshape(first.shape)

    def _shuffled(self) -> Integers:
        drawn = self.random.permutation(self.traffic.num_devices)
        return drawn.reshape(self.num_groups, self.size)

    def _dealt(self, in_turns: bool) -> Integers:
        members = self.line.reshape(self.num_groups, self.size).copy()
        self._deal(members, np.arange(self.num_groups), in_turns)
        return members

    def _deal(self, members: Integers, groups: Integers, in_turns: bool) -> None:
        """Divides the devices of some groups among them anew, in place."""
        devices = self.line[np.isin(self.line, members[groups])]
        if in_turns:
            members[groups] = devices.reshape(self.size, len(groups)).T
        else:
            members[groups] = devices.reshape(len(groups), self.size)

    def _grouping(self, members: Integers) -> Grouping:
        """With partners at the same place."""
        gradient_s, activation_s = self.traffic
        rows, tour_s = [members[0]], 0.0
        for group in members[1:]:
            largest_s, partner = bottleneck_matching(activation_s[np.ix_(rows[-1], group)])
            rows.append(group[np.argsort(partner)])
            tour_s += float(largest_s)
        slowest_s = max(float(gradient_s[np.ix_(row, row)].sum(1).max()) for row in rows)
        groups = tuple(tuple(int(device) for device in row) for row in rows)
        return Grouping(groups, slowest_s, tour_s)


def close_ones_in_line(distance: Floats) -> Integers:
    """(N,) devices in an order in which close ones are neighbours."""
    if len(distance) < 3:
        return np.arange(len(distance))
    tree = linkage(squareform(distance, checks=False), "average")
    return np.asarray(leaves_list(tree), np.int64)


def _numbers(members: Integers) -> Integers:
    """(N,) the group of each device."""
    number = np.empty(members.size, np.int64)
    number[members.ravel()] = np.repeat(np.arange(len(members)), members.shape[1])
    return number


def like_numbered(one: Integers, other: Integers) -> Integers:
    """(N,) the other numbers of groups renamed, so that most devices have those of the first."""
    count = int(one.max()) + 1
    shared = np.zeros((count, count))
    np.add.at(shared, (other, one), 1)
    old, new = linear_sum_assignment(shared, maximize=True)
    renamed = np.empty(count, np.int64)
    renamed[old] = new
    return renamed[other]
