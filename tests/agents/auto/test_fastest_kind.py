"""Plans on the fastest kind of device alone: when they are looked for, and what they use."""

from __future__ import annotations

import pytest

from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.auto.fastest_kind import plan_of_fastest_kind
from heterps_agents.interface.planner import Budget
from heterps_agents.learned import fastest_kind
from heterps_agents.learned.fastest_kind import on_fastest_kind
from heterps_configs.documents.plan import Bound
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem(
        "gpt2",
        "a100-v100-t4",
        global_batch_size=16,
        strategy=OPEN.changed(chooses_micro_batch=False),
    )


@pytest.fixture
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest_kind, "LEAST_DEVICES", 16)


def test_all_devices_of_one_kind_are_left() -> None:
    left = on_fastest_kind(load_problem("gpt2", "a100-v100-t4"))
    assert {device.type.name for device in left.cluster.devices} == {"A100-40G"}
    assert len(left.cluster.devices) == 4


def test_a_few_devices_are_not_asked_for_alone(problem: Problem) -> None:
    assert plan_of_fastest_kind(problem, Budget(), 0) is None


@pytest.mark.usefixtures("_large")
def test_the_plan_is_one_of_the_whole_problem_without_a_bound(problem: Problem) -> None:
    plan = plan_of_fastest_kind(problem, Budget(), 0)
    assert plan is not None
    assert is_feasible(problem, plan)
    kinds = {problem.device_named[name].type.name for name in plan.devices}
    assert kinds == {"A100-40G"}
    assert plan.bound == Bound(), "no bound of a part is one of all"


@pytest.mark.usefixtures("_large")
def test_what_costs_as_much_as_is_known_need_not_be_found(problem: Problem) -> None:
    plan = plan_of_fastest_kind(problem, Budget(), 0)
    assert plan is not None
    budget = Budget()
    budget.known_cost = simulated_step_time_s(problem, plan) / 10
    assert plan_of_fastest_kind(problem, budget, 0) is None


@pytest.mark.usefixtures("_large")
def test_a_budget_that_is_over_is_kept(problem: Problem) -> None:
    budget = Budget(1)
    budget.spend()
    assert plan_of_fastest_kind(problem, budget, 0) is None
