"""Who searches beside a planner."""

from __future__ import annotations

import os
import warnings

import pytest

from heterps.portfolio.members import BESIDE_AUTO, Member, members
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.efforts import with_effort
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as anyone asks for."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(1000)), raising=False)


def test_beside_auto_search_unlike_planners_and_then_auto_with_other_seeds() -> None:
    found = members(planner_named("auto", seed=5), 12)
    assert [member.name for member in found[: len(BESIDE_AUTO)]] == [
        name for name, _ in BESIDE_AUTO
    ]
    later = found[len(BESIDE_AUTO) :]
    assert {member.name for member in later} == {"auto"}
    of_auto = [member.seed for member in found if member.name == "auto"]
    assert of_auto == [6, 7, 8, 9, 10]
    assert len(set(found)) == len(found) == 11


def test_beside_another_search_it_is_the_same_one_with_other_seeds() -> None:
    found = members(planner_named("genetic", seed=2), 4)
    assert found == [Member("genetic", seed, None) for seed in (3, 4, 5)]


def test_all_try_as_hard_as_the_planner() -> None:
    found = members(with_effort(planner_named("auto"), "high"), 4)
    efforts = {member.name: getattr(member.planner(), "effort", None) for member in found}
    assert efforts == {"asymmetric": None, "genetic": None, "auto": "high"}


def test_one_process_needs_nobody() -> None:
    assert members(planner_named("greedy"), 1) == []


@pytest.mark.parametrize("name", ["greedy", "exact", "whale", "uniform-3d"])
def test_a_planner_with_one_answer_stays_alone_and_says_so(name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has one answer"):
        assert members(planner_named(name), 3) == []


class Own:
    """A planner that no other process knows."""

    name, seed, hands_over_finds = "own", 0, True

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Never asked."""
        raise AssertionError


def test_a_planner_of_ones_own_stays_alone() -> None:
    with pytest.warns(UserWarning, match="own has one answer, .* or no other process knows it"):
        assert members(Own(), 2) == []


def test_more_processes_than_cores_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    with pytest.warns(UserWarning, match="3 processes share 2 cores"):
        members(planner_named("auto"), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        members(planner_named("auto"), 2)


@pytest.mark.parametrize("number", [0, -1, 257])
def test_a_number_that_cannot_be_is_refused(number: int) -> None:
    with pytest.raises(
        HeterpsError, match=f"processes: is {number}; allowed: a whole number from 1 to 256"
    ):
        members(planner_named("auto"), number)
