"""Metis' stages: data parallel first, with shares of a round by speed."""

from __future__ import annotations

import pytest

from heterps_agents.systems.metis.groups import Devices
from tests.agents.systems.malleus.grouped_problems import FORWARD_S, LAYERS, grouped_problem
from tests.envs.small_problems import chain_problem


def test_a_round_is_dealt_by_speed() -> None:
    """The fixture of Metis' data balance: speeds 1/10, 1/10 and 1/4, a batch of 18."""
    problem = chain_problem([4.0], [6.0], speeds=(1.0, 0.4), counts=(2, 1), num_micro_batches=18)
    devices = Devices(problem, (1,))
    found = devices.first_group(("d0-0", "d0-1", "d1"), 18)
    assert found is not None
    assert found.shares == (4, 4, 10)
    assert dict(found.busiest) == {problem.class_of["d0-0"]: 4, problem.class_of["d1"]: 10}
    assert found.whole_s == pytest.approx(40.0)


def test_a_replica_that_is_too_slow_for_any_share_is_left_out() -> None:
    problem = chain_problem([1.0], [1.0], speeds=(1.0, 10.0), counts=(2, 1), num_micro_batches=3)
    found = Devices(problem, (1,)).first_group(("d0-0", "d0-1", "d1"), 3)
    assert found is not None
    assert found.replicas == (("d0-0",), ("d0-1",))
    assert sum(found.shares) == 3


def test_replicas_are_halved_where_groups_are_allowed() -> None:
    devices = Devices(grouped_problem(), (1, 2, 4))
    names = tuple(f"d0-{index}" for index in range(4))
    found = devices.first_group(names, 8)
    assert found is not None
    assert (found.degree, found.shares) == (1, (2, 2, 2, 2))
    assert found.whole_s == pytest.approx(2 * LAYERS * 3 * FORWARD_S[1])
    halved = devices.halved(found, 8)
    assert halved is not None
    assert (halved.degree, halved.shares) == (2, (4, 4))
    assert halved.replicas == (names[:2], names[2:])
    assert halved.whole_s == pytest.approx(4 * LAYERS * 3 * FORWARD_S[2])
    whole = devices.halved(halved, 8)
    assert whole is not None
    assert devices.halved(whole, 8) is None


def test_more_replicas_than_micro_batches_of_a_round_are_not_made() -> None:
    names = tuple(f"d0-{index}" for index in range(4))
    assert Devices(grouped_problem(), (1,)).first_group(names, 2) is None
    found = Devices(grouped_problem(), (1, 2)).first_group(names, 2)
    assert found is not None
    assert found.degree == 2


def test_devices_of_two_classes_are_no_group() -> None:
    problem = grouped_problem(counts=[4, 2], speeds=[1.0, 1.0])
    devices = Devices(problem, (1, 2))
    assert devices.group(("d0-3", "d1-0"), 2, 8) is None
    assert devices.group(("d1-0", "d1-1"), 2, 8) is not None
