"""The planner `ppo`: whole plans, both objectives, budgets, many classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned import fastest_kind
from heterps_agents.learned import planner as module
from heterps_agents.learned.efforts import efforts
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.training.evaluation import CheapestHeldOut, HeldOut
from heterps_configs import library
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import InfeasibleError, UnknownNameError
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS
from heterps_envs.simulator.simulate import simulated_step_time_s

MakeProblem = Callable[..., Problem]


def cost(problem: Problem, plan: Plan) -> float:
    placement = placement_of(problem, plan)
    assert placement is not None
    return Goal.of(problem.job).cost(encode(placement), kernel_tables(problem.tables))


@pytest.fixture
def planner(random_policy: Policy) -> PolicyPlanner:
    return PolicyPlanner(seed=3, policy=random_policy)


JOBS: list[dict[str, Any]] = [
    {},
    {"schedule": "gpipe"},
    {"objective": "price"},
    {"objective": "price", "min_throughput_samples_per_s": 20.0},
    {"global_batch_size": 64, "min_throughput_samples_per_s": 20.0},
]


@pytest.mark.parametrize("job", JOBS)
def test_never_worse_than_greedy_and_near_the_optimum(
    make_problem: MakeProblem, planner: PolicyPlanner, job: dict[str, Any]
) -> None:
    problem = make_problem(**job)
    plan = planner.plan(problem, Budget())
    assert plan.planner == "ppo"
    greedy = planner_named("greedy").plan(problem, Budget())
    exact = planner_named("exact").plan(problem, Budget())
    assert cost(problem, exact) <= cost(problem, plan) * (1 + 1e-9)
    assert cost(problem, plan) <= cost(problem, greedy) * (1 + 1e-9)
    assert cost(problem, plan) <= 1.25 * cost(problem, exact)


def test_equal_seeds_give_equal_plans(make_problem: MakeProblem, planner: PolicyPlanner) -> None:
    problem = make_problem()
    one, same = (planner.plan(problem, Budget()) for _ in range(2))
    assert one == same


@pytest.mark.parametrize("evaluations", [200, 500, 3000])
def test_a_budget_of_evaluations_is_kept(
    make_problem: MakeProblem, planner: PolicyPlanner, evaluations: int
) -> None:
    budget = Budget(evaluations=evaluations)
    planner.plan(make_problem(), budget)
    assert budget.evaluations_used <= evaluations


@pytest.mark.parametrize("job", [{}, {"objective": "price"}])
def test_larger_budgets_and_more_effort_never_lose(
    make_problem: MakeProblem, random_policy: Policy, job: dict[str, Any]
) -> None:
    problem = make_problem(**job)
    for effort in efforts():
        planner = PolicyPlanner(policy=random_policy, effort=effort)
        costs = [
            cost(problem, planner.plan(problem, Budget(evaluations)))
            for evaluations in (1, 60, 200, 500, 2000, None)
        ]
        assert costs == sorted(costs, reverse=True)


def test_without_any_time_there_is_still_a_plan(
    make_problem: MakeProblem, planner: PolicyPlanner
) -> None:
    for budget in (Budget(seconds=1e-6), Budget(cpu_seconds=1e-6)):
        assert planner.plan(make_problem(), budget).stages


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="hihg"):
        PolicyPlanner(effort="hihg")


def test_a_model_that_fits_nowhere_is_explained(
    make_problem: MakeProblem, planner: PolicyPlanner
) -> None:
    with pytest.raises(InfeasibleError, match="layer"):
        planner.plan(make_problem(memory=0.01), Budget())


def test_a_floor_that_nobody_reaches_is_explained(
    make_problem: MakeProblem, planner: PolicyPlanner
) -> None:
    problem = make_problem(min_throughput_samples_per_s=1e6)
    with pytest.raises(InfeasibleError, match="layer2"):
        planner.plan(problem, Budget())


def test_one_device_and_one_class_are_enough(
    make_problem: MakeProblem, planner: PolicyPlanner
) -> None:
    problem = make_problem(counts=(1, 0, 0), memory=4.0)
    plan = planner.plan(problem, Budget())
    assert len(plan.stages) == 1


def test_the_price_objective_leaves_dear_devices_idle(
    make_problem: MakeProblem, planner: PolicyPlanner
) -> None:
    fast = planner.plan(make_problem(), Budget())
    cheap = planner.plan(make_problem(objective="price"), Budget())
    assert len(cheap.devices) < len(fast.devices)
    problem = make_problem(objective="price")
    assert cost(problem, cheap) < cost(problem, fast)


def test_the_policy_is_read_when_it_is_needed() -> None:
    policy = PolicyPlanner().policy
    assert isinstance(policy, Policy)
    assert np.isfinite(policy.weights["score_out.weight"]).all()
    assert not policy.knows_prices


def test_another_policy_is_asked_for_the_least_price(random_policy: Policy) -> None:
    policy = PolicyPlanner().policy_for(Goal(is_price=True))
    assert isinstance(policy, Policy)
    assert policy.knows_prices
    assert PolicyPlanner(policy=random_policy).policy_for(Goal(is_price=True)) is random_policy


def test_the_shipped_policy_for_prices_is_near_the_optimum_on_unseen_problems() -> None:
    held = CheapestHeldOut(DRAWN_CHAINS["in-range"].problems(30))
    gap = held.gap(Policy.load("price-generalist"), "normal")
    assert gap.median < 1e-9
    assert gap.solved >= 0.85


def test_the_shipped_policy_is_near_the_optimum_on_unseen_problems() -> None:
    held = HeldOut(DRAWN_CHAINS["in-range"].problems(40))
    policy = Policy.load("generalist")
    gaps = []
    for tables, optimum_s in zip(held.tables, held.optimum_s, strict=True):
        kernel = kernel_tables(tables)
        code = learned_code(policy, Question(tables, kernel, Goal(), Budget()), efforts()["normal"])
        assert code is not None
        gaps.append(Goal().cost(code, kernel) / optimum_s - 1)
    assert np.median(gaps) < 1e-9
    assert np.mean(np.array(gaps) < 1e-3) >= 0.8
    assert np.quantile(gaps, 0.9) < 0.01
    assert held.gap(policy, width=16).median < 0.01


@pytest.mark.parametrize("name", ["generalist", "price-generalist", "quick"])
def test_the_shipped_training_configs_are_valid(name: str) -> None:
    assert isinstance(library.load("training", name), ChainTrainingConfig)


class _Watched(PolicyPlanner):
    """Writes down how many devices it was asked about."""

    def __init__(self, effort: str = "normal") -> None:
        super().__init__(effort=effort)
        self.asked = list[int]()

    def chain(self, problem: Problem, budget: Budget) -> Plan:
        self.asked.append(len(problem.cluster.devices))
        return super().chain(problem, budget)


def test_of_many_devices_the_fastest_kinds_are_looked_at_alone(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Behind slow links what is found on all devices is far from what the fast ones do alone.
    problem = make_problem(counts=(3, 4, 2))
    usual = _Watched()
    plans = [usual.plan(problem, Budget())]
    assert usual.asked == [9]
    monkeypatch.setattr(fastest_kind, "LEAST_DEVICES", 9)
    budget = Budget()
    for effort in ("normal", "high"):
        watched = _Watched(effort)
        plans.append(watched.plan(problem, budget))
        assert watched.asked == [3, 7, 9], "the fastest kind, the two fastest, all"
    all_devices, normal, high = (simulated_step_time_s(problem, plan) for plan in plans)
    assert high <= normal <= all_devices
    views = {id(view) for view in on_usable_devices(problem).views}
    elsewhere = {(module.OTHER_SEARCH, view) for view in views}
    found = {find.view for find in budget.finds}
    assert found <= views | elsewhere, "none is of a part"
    assert found & elsewhere, "walks also begin at what a search without weights finds"


def test_where_little_is_to_be_spent_one_kind_is_looked_at_alone(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fastest_kind, "LEAST_DEVICES", 9)
    for effort, budget in (("normal", Budget(100_000)), ("fast", Budget())):
        watched = _Watched(effort)
        watched.plan(make_problem(counts=(3, 4, 2)), budget)
        assert watched.asked == [3, 9]
        assert len({find.view for find in budget.finds}) == 2, "what is found there is kept"


def test_of_many_devices_the_policy_tries_harder(
    make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(counts=(3, 4, 2))
    usual, high = (
        PolicyPlanner(effort=name).plan(problem, Budget()) for name in ("fast", "normal")
    )
    monkeypatch.setattr(module, "MANY_DEVICES", 9)
    budgets = Budget(), Budget()
    harder = PolicyPlanner(effort="fast").plan(problem, budgets[0])
    monkeypatch.undo()
    PolicyPlanner(effort="normal").plan(problem, budgets[1])
    assert harder.runs_like(high)
    assert budgets[0].evaluations_used == budgets[1].evaluations_used
    assert cost(problem, harder) <= cost(problem, usual)
