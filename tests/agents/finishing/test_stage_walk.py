"""Walks from a plan that is a chain, in the views that have it as a placement."""

from __future__ import annotations

import pytest

from heterps.planning.problems import load_problem
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.finishing.stage_walk import walked_on
from heterps_agents.interface import patient
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulated_step_time_s


@pytest.fixture(scope="module")
def asked() -> Problem:
    return load_problem("vit-large", "a100-v100-t4", micro_batch_size=1).plain


@pytest.fixture(scope="module")
def simple(asked: Problem) -> Plan:
    return planner_named("speed-proportional").plan(asked, Budget())


def test_walks_to_the_end_use_the_time_and_find_a_plan_that_fits(
    asked: Problem, simple: Plan
) -> None:
    budget = Budget(cpu_seconds=1.0)
    found = walked_on(asked, simple, budget, 1)
    assert budget.is_exhausted
    assert simulated_step_time_s(asked, found) < simulated_step_time_s(asked, simple)
    assert estimate(asked, found).feasible


def test_without_time_the_plan_stays(asked: Problem, simple: Plan) -> None:
    assert walked_on(asked, simple, Budget(cpu_seconds=1e-9), 1) is simple


def test_walks_that_gain_too_little_are_the_last(asked: Problem, simple: Plan) -> None:
    budget = Budget(cpu_seconds=4.0)
    found = walked_on(asked, simple, budget, 1, part=0.05, gain=1e-3)
    assert not budget.is_exhausted
    assert simulated_step_time_s(asked, found) < simulated_step_time_s(asked, simple)


def test_a_search_on_many_devices_walks_until_its_time_is_over(
    asked: Problem, simple: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left_s() -> float:
        budget = Budget(cpu_seconds=2.0)
        budget.found(1.0, lambda: simple)
        found = best_of_finds(asked, simple, budget, walks=True)
        assert simulated_step_time_s(asked, found) <= simulated_step_time_s(asked, simple)
        return budget.seconds_left

    assert left_s() > 0
    monkeypatch.setattr(patient, "MANY_DEVICES", len(asked.cluster.devices))
    assert left_s() <= 0
