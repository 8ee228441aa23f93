"""DT-FM's search: the best of all groupings where these can be tried, and its parts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.dtfm.descent import descend
from heterps_agents.systems.dtfm.network import Traffic, traffic_of
from heterps_agents.systems.dtfm.search import (
    Effort,
    close_ones_in_line,
    like_numbered,
    search_groups,
)
from tests.agents.systems.dtfm.networks import least_total_s, random_traffic, total_s

SEEDS = st.integers(0, 10_000)
QUICK = Effort(population=12, trials=30)


@pytest.mark.slow
@given(SEEDS, st.sampled_from([(6, 1), (6, 2), (6, 3), (6, 6), (8, 2), (8, 4)]))
@settings(max_examples=25)
def test_the_groups_are_the_best_of_all(seed: int, shape: tuple[int, int]) -> None:
    num_devices, num_groups = shape
    traffic = random_traffic(seed, num_devices)
    found = search_groups(traffic, num_groups, seed=0, effort=QUICK)
    assert found.total_s == pytest.approx(least_total_s(traffic, num_groups))
    assert found.total_s == pytest.approx(total_s(traffic, found.groups))
    assert sorted(device for group in found.groups for device in group) == list(range(num_devices))


@given(SEEDS, st.sampled_from([(12, 3), (12, 4), (24, 12), (26, 13)]))
@settings(max_examples=20)
def test_partners_stand_at_equal_places_and_their_slowest_pair_makes_the_hop(
    seed: int, shape: tuple[int, int]
) -> None:
    num_devices, num_groups = shape
    traffic = random_traffic(seed, num_devices)
    found = search_groups(traffic, num_groups, seed, QUICK._replace(most_swaps=300))
    rows = np.array(found.groups)
    assert rows.shape == (num_groups, num_devices // num_groups)
    hops_s = traffic.activation_s[rows[:-1], rows[1:]].max(1)
    assert found.tour_s == pytest.approx(hops_s.sum())


def two_sites(num_devices: int, between: tuple[float, float]) -> Traffic:
    """Every second device is at the other site; fast links inside, others between."""
    site = np.arange(num_devices) % 2
    is_near = site[:, None] == site
    latency_s = np.where(is_near, 1e-4, between[0])
    bandwidth = np.where(is_near, 1e9, between[1])
    return traffic_of(latency_s, bandwidth, gradient_bytes=1e9, activation_bytes=1e7, group_size=4)


def test_with_slow_links_between_sites_and_large_gradients_groups_stay_at_their_site() -> None:
    found = search_groups(two_sites(16, (0.01, 1e8)), 4, seed=0, effort=QUICK)
    assert all(len({device % 2 for device in group}) == 1 for group in found.groups)
    sites = [group[0] % 2 for group in found.groups]
    assert sites == sorted(sites) or sites == sorted(sites, reverse=True)


def test_equal_seeds_give_equal_groups_and_a_longer_search_is_never_worse() -> None:
    traffic = random_traffic(1, 24)
    short = search_groups(traffic, 6, 5, QUICK)
    assert search_groups(traffic, 6, 5, QUICK) == short
    assert search_groups(traffic, 6, 5, QUICK._replace(trials=90)).total_s <= short.total_s


def test_swaps_that_may_be_tried_end_the_search() -> None:
    traffic = random_traffic(1, 24)
    none = search_groups(traffic, 6, 5, QUICK._replace(most_swaps=0))
    assert search_groups(traffic, 6, 5, QUICK).total_s < none.total_s


def test_swaps_lead_to_groups_that_no_swap_improves() -> None:
    traffic, order = random_traffic(3, 9), np.arange(3)
    members = np.arange(9).reshape(3, 3)
    score, order, _ = descend(traffic, traffic.kinds(), members, order, 10_000)
    assert score.total_s == pytest.approx(total_s(traffic, members[order].tolist()))
    for one in range(9):
        for other in range(9):
            swapped = members.copy().ravel()
            swapped[[one, other]] = swapped[[other, one]]
            again = descend(traffic, traffic.kinds(), swapped.reshape(3, 3), order, 0)[0]
            assert again.total_s >= score.total_s - 1e-9


def test_a_member_sends_an_equal_part_of_the_gradient_there_and_back() -> None:
    latency_s = np.array([[0.0, 1.0], [3.0, 0.0]])
    traffic = traffic_of(
        latency_s, np.full((2, 2), 10.0), gradient_bytes=80, activation_bytes=50, group_size=4
    )
    # The mean of both directions: 2 s, and 2 s for 20 bytes.
    assert traffic.gradient_s.tolist() == [[0, 8], [8, 0]]
    assert traffic.activation_s.tolist() == [[0, 7], [7, 0]]


def test_devices_that_could_change_places_are_of_one_kind() -> None:
    assert two_sites(6, (0.01, 1e8)).kinds().tolist() == [0, 1, 0, 1, 0, 1]
    assert random_traffic(0, 5).kinds().tolist() == [0, 1, 2, 3, 4]


def test_close_devices_are_neighbours_in_the_line() -> None:
    traffic = two_sites(8, (0.01, 1e8))
    line = close_ones_in_line(traffic.activation_s)
    assert sorted(line.tolist()) == list(range(8))
    assert len({device % 2 for device in line[:4].tolist()}) == 1


def test_groups_take_the_numbers_of_those_that_they_share_most_with() -> None:
    one, other = np.array([0, 0, 1, 1, 2, 2]), np.array([2, 2, 0, 0, 1, 0])
    assert like_numbered(one, other).tolist() == [0, 0, 1, 1, 2, 1]
