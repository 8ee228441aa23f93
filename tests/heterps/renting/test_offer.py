"""What is on offer: types, nodes, devices, regions and limits, and names that nothing has."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heterps.cli.devices import offer_of
from heterps.planning.problems import load_problem
from heterps.renting.offer import Offer, nodes_first, offers
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.problem import Problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("gpt2", "spot-two-regions")


def names(problem: Problem) -> set[str]:
    return {device.name for device in problem.cluster.devices}


def test_types_nodes_and_devices_are_excluded(problem: Problem) -> None:
    first = problem.cluster.devices[0]
    for name in (first.type.name, first.node, first.name):
        (left,) = offers(problem, Offer(exclude=(name,)))
        kept = {
            e.name for e in problem.cluster.devices if name not in (e.type.name, e.node, e.name)
        }
        assert names(left) == kept


def test_only_devices_of_a_region_are_left(problem: Problem) -> None:
    regions = {device.region for device in problem.cluster.devices}
    assert len(regions) == 2
    for region in regions:
        (left,) = offers(problem, Offer(regions=(region,)))
        assert {device.region for device in left.cluster.devices} == {region}


def test_a_limit_keeps_as_many_of_a_type_and_begins_in_each_region(problem: Problem) -> None:
    kind = problem.cluster.devices[0].type.name
    homes = {device.region for device in problem.cluster.devices if device.type.name == kind}
    found = offers(problem, Offer(most={kind: 2}))
    assert len(found) == len(homes)
    for left in found:
        own = [device for device in left.cluster.devices if device.type.name == kind]
        assert len(own) == 2
        assert len({device.region for device in own}) == 1
        others = {e.name for e in problem.cluster.devices if e.type.name != kind}
        assert others <= names(left)


def test_whole_nodes_come_first_the_fullest_before_others(problem: Problem) -> None:
    order = nodes_first(problem.cluster.devices)
    nodes = [device.node for device in order]
    changes = sum(a != b for a, b in pairwise(nodes))
    assert changes == len(set(nodes)) - 1
    sizes = [nodes.count(node) for node in dict.fromkeys(nodes)]
    by_region = [order[nodes.index(node)].region for node in dict.fromkeys(nodes)]
    assert sorted(sizes, reverse=True) == sizes or len(set(by_region)) > 1


@pytest.mark.parametrize(
    "offer", [Offer(exclude=("T5",)), Offer(regions=("mars",)), Offer(most={"T5": 1})]
)
def test_names_that_nothing_has_are_refused(problem: Problem, offer: Offer) -> None:
    with pytest.raises(UnknownNameError):
        offers(problem, offer)


def test_negative_limits_are_refused() -> None:
    with pytest.raises(HeterpsError, match="expected 0 or more"):
        Offer(most={"T4": -1})
    with pytest.raises(HeterpsError, match="expected 0 or more"):
        Offer(usd_per_hour=-1.0)
    with pytest.raises(HeterpsError, match="expected 0 or more"):
        Offer(usd_per_hour=float("nan"))


def test_nothing_left_is_an_error(problem: Problem) -> None:
    kinds = tuple({device.type.name for device in problem.cluster.devices})
    with pytest.raises(HeterpsError, match="no device is left"):
        offers(problem, Offer(exclude=kinds))


def test_a_type_has_one_limit() -> None:
    with pytest.raises(HeterpsError, match="T4 has two limits, 4 and 2"):
        offer_of(None, ["T4=4", "A10G=1", "T4=2"], None, None)
    assert offer_of(None, ["T4=4", "A10G=1"], None, None).most == {"T4": 4, "A10G": 1}
