"""What every planner keeps: plans that are valid and fit, budgets, seeds, clear refusals."""

import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import (
    SECONDS_PER_LAYER,
    planner_named,
    planner_names,
    register,
)
from heterps_agents.learned.efforts import efforts
from heterps_agents.recovery.rules import fits
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError, UnknownNameError
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.problem import Problem
from tests.envs.planned_memory import plan_memory_bytes

MakeProblem = Callable[..., Problem]

# The learned planner has its own tests; it needs a trained policy. Those that train a network for
# every problem have some here, with a small budget. Even plans may recompute, which others do not.
TRAINING = tuple(SECONDS_PER_LAYER)
APART = ("ppo", "uniform-3d", *TRAINING)
PLANNERS = tuple(name for name in planner_names() if name not in APART)
PROPORTIONAL = ("even", "memory-proportional", "speed-proportional")
SEARCHES = tuple(name for name in PLANNERS if name not in PROPORTIONAL)
PROBLEMS: dict[str, dict[str, Any]] = {
    "roomy": {},
    "tight memory": {"memory": 0.4},
    "slow links": {"bandwidth_bytes_per_s": 1e8},
    "gpipe": {"schedule": "gpipe", "memory": 0.6},
    "one class": {"counts": (0, 4, 0)},
    "price": {"objective": "price"},
    "price under a floor": {"objective": "price", "min_throughput_samples_per_s": 20},
    "throughput with a floor": {"min_throughput_samples_per_s": 10},
}
EVALUATIONS = 1500


def cost_of(problem: Problem, plan: Plan) -> float:
    """The objective by the closed form; inf where the plan misses the floor."""
    placement = placement_of(problem, plan)
    assert placement is not None
    return Goal.of(problem.job).cost(encode(placement), kernel_tables(problem.tables))


def simulated_cost_of(problem: Problem, plan: Plan) -> float:
    """The objective by the simulator."""
    assert plan.predicted_step_time_s is not None
    if problem.job.objective != "price":
        return plan.predicted_step_time_s
    price = {device.name: device.price_usd_per_hour for device in problem.cluster.devices}
    return sum(price[name] for name in plan.devices) * plan.predicted_step_time_s


@pytest.mark.slow
@pytest.mark.parametrize("case", PROBLEMS)
def test_every_plan_fits_and_none_beats_the_exact_one(case: str, make_problem: MakeProblem) -> None:
    problem = make_problem(**PROBLEMS[case])
    optimum = planner_named("exact").plan(problem, Budget())
    assert optimum.bound.status == "proven"
    assert optimum.bound.gap == 0
    least = cost_of(problem, optimum)
    memory = {device.name: device.memory_bytes for device in problem.cluster.devices}
    for name in PLANNERS:
        if name == "asymmetric" and case not in ("tight memory", "price"):
            continue  # goes on from the chain of `auto`, and has tests of its own
        try:
            plan = planner_named(name).plan(problem, Budget(evaluations=EVALUATIONS))
        except InfeasibleError:
            assert name in PROPORTIONAL, f"{name} found nothing"
            continue
        assert plan.planner == name
        assert least * (1 - 1e-9) <= cost_of(problem, plan) < math.inf, name
        assert fits(problem, plan), name
        by_rule = tuple(stage.changed(in_flight=None) for stage in plan.stages)
        needed = plan_memory_bytes(problem, plan.changed(stages=by_rule))
        assert all(needed[device] <= memory[device] for device in needed), name
        if plan.bound.status == "proven":
            assert cost_of(problem, plan) == pytest.approx(least)
        elif plan.bound.step_time_s is not None:
            assert plan.bound.step_time_s <= (optimum.bound.step_time_s or 0) * (1 + 1e-9), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [(name, "tight memory" if name in ("auto", "asymmetric") else "roomy") for name in PLANNERS]
    + [(name, "price under a floor") for name in SEARCHES if name != "asymmetric"],
)
def test_equal_seeds_give_equal_plans(name: str, case: str, make_problem: MakeProblem) -> None:
    problem = make_problem(**PROBLEMS[case])
    plans = [
        planner_named(name, seed=5).plan(problem, Budget(evaluations=EVALUATIONS)) for _ in range(2)
    ]
    assert plans[0] == plans[1]
    assert plans[0].seed == 5


@pytest.mark.parametrize("name", ["greedy", "random", "annealing", "genetic", "cross-entropy"])
@pytest.mark.parametrize("evaluations", [2, 40, 1500])
def test_searches_keep_a_budget_of_evaluations(
    name: str, evaluations: int, make_problem: MakeProblem
) -> None:
    budget = Budget(evaluations=evaluations)
    planner_named(name).plan(make_problem(), budget)
    assert 0 < budget.evaluations_used <= evaluations


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("case", ["roomy", "price under a floor"])
def test_planners_that_train_are_never_worse_than_their_start(
    name: str, case: str, make_problem: MakeProblem
) -> None:
    problem, budget = make_problem(**PROBLEMS[case]), Budget(evaluations=260)
    plan = planner_named(name, seed=4).plan(problem, budget)
    assert budget.evaluations_used == 260
    assert (plan.planner, plan.seed) == (name, 4)
    greedy = planner_named("greedy").plan(problem, Budget())
    optimum = planner_named("exact").plan(problem, Budget())
    assert cost_of(problem, optimum) * (1 - 1e-9) <= cost_of(problem, plan)
    assert cost_of(problem, plan) <= cost_of(problem, greedy) * (1 + 1e-9)


@pytest.mark.parametrize("name", ["random", "annealing", "genetic", "cross-entropy"])
def test_searches_spend_a_budget_of_seconds_and_stop(name: str, make_problem: MakeProblem) -> None:
    planner = planner_named(name)
    planner.plan(make_problem(), Budget(evaluations=10))  # compiles
    budget = Budget(seconds=0.2)
    planner.plan(make_problem(), budget)
    assert budget.is_exhausted
    assert budget.evaluations_used > 0


@pytest.mark.parametrize("name", SEARCHES)
def test_a_model_that_is_too_large_is_refused_with_the_bytes(
    name: str, make_problem: MakeProblem
) -> None:
    with pytest.raises(InfeasibleError, match=r"needs .*[0-9] (B|[KMG]iB)"):
        planner_named(name).plan(make_problem(memory=0.2), Budget(evaluations=EVALUATIONS))


@pytest.mark.parametrize("name", SEARCHES)
def test_a_floor_out_of_reach_is_refused_with_the_stage_that_limits(
    name: str, make_problem: MakeProblem
) -> None:
    problem = make_problem(min_throughput_samples_per_s=1e4)
    with pytest.raises(InfeasibleError, match=r"10000 samples/s.*layer"):
        planner_named(name).plan(problem, Budget(evaluations=EVALUATIONS))


def test_exact_refuses_what_it_cannot_afford(make_problem: MakeProblem) -> None:
    with pytest.raises(HeterpsError, match=r"exact: 10 layers on 3 device classes take about"):
        planner_named("exact").plan(make_problem(), Budget(seconds=1e-9))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["roomy", "price under a floor"])
def test_auto_without_the_exact_solver_is_never_worse_than_greedy(
    case: str, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(**PROBLEMS[case])
    effort = efforts()["normal"].changed(exact_s=0.0)
    monkeypatch.setattr("heterps_agents.auto.chains.effort_named", lambda name: effort)
    plan = planner_named("auto").plan(problem, Budget())
    greedy = planner_named("greedy").plan(problem, Budget())
    assert plan.bound.status != "proven"
    assert plan.planner == "auto"
    assert simulated_cost_of(problem, plan) <= simulated_cost_of(problem, greedy) * 1.005


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["tight memory", "slow links", "gpipe", "price", "throughput with a floor"]
)
def test_auto_is_never_worse_than_exact_or_greedy_in_the_simulator(
    case: str, make_problem: MakeProblem
) -> None:
    problem = make_problem(**PROBLEMS[case])
    plan = planner_named("auto").plan(problem, Budget())
    floor = problem.job.min_throughput_samples_per_s or 0
    for name in ("exact", "greedy"):
        other = planner_named(name).plan(problem, Budget())
        assert other.predicted_step_time_s is not None
        if problem.job.global_batch_size / other.predicted_step_time_s >= floor:
            cost = simulated_cost_of(problem, plan)
            assert cost <= simulated_cost_of(problem, other) * 1.005, name


def test_an_unknown_planner_suggests_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match="annealing"):
        planner_named("anealing")


def test_a_registered_planner_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_agents.interface.registry._FACTORIES", {})

    class Mine:
        name = "mine"

        def __init__(self, seed: int) -> None:
            self.seed = seed

        def plan(self, problem: Problem, budget: Budget) -> Plan:
            raise InfeasibleError("mine finds nothing")

    register("mine")(Mine)
    assert "mine" in planner_names()
    assert isinstance(planner_named("mine", seed=3), Mine)


@pytest.mark.slow
def test_naming_a_planner_imports_neither_torch_nor_the_other_planners() -> None:
    script = (
        "import sys; from heterps_agents.interface.registry import planner_named;"
        "planner_named('exact');"
        "print(*[m for m in ('torch', 'stable_baselines3', 'gymnasium', 'heterps_agents.auto')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
