"""From a poor plan small changes lead to a much better one: proposed by formula, simulated."""

from __future__ import annotations

from benchmarks.planners.asymmetric import small_problem
from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.descent import Descent, Patience
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import Weave, plan_of_weave, weave_of_plan
from heterps_agents.interface.planner import Budget
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind


def poor(problem: Problem) -> tuple[Weave, Judged]:
    """All layers on the slowest device."""
    slowest = len(problem.classes) - 1
    placed = PlacedStage(0, problem.profile.num_layers - 1, slowest)
    plan = bind(problem, [placed], planner="test", seed=0)
    weave = weave_of_plan(plan)
    assert weave is not None
    assert plan.predicted_step_time_s is not None
    return weave, Judged(plan.predicted_step_time_s, plan)


def descended(problem: Problem, patience: Patience, stages: float = 1e9) -> tuple[Judged, Judged]:
    weave, start = poor(problem)
    estimates = Estimates(problem)
    moves = Moves(estimates, groups_of(problem, start.plan), memories_of(problem))
    judge = Judge(problem, Budget(), stages)
    return start, Descent(judge, estimates, moves, patience).best_from(weave, start)


def test_it_brings_in_the_idle_devices() -> None:
    problem = small_problem(6, (1, 1, 1), memory=5.0, bandwidth_bytes_per_s=1e11)
    start, best = descended(problem, Patience(100_000, 20, 1.05))
    # Speeds are 4, 2, 1.
    assert best.cost < start.cost / 5
    assert set(best.plan.devices) == {"d0", "d1", "d2"}
    weave = weave_of_plan(best.plan)
    assert weave is not None
    judged = Judge(problem, Budget()).judged(plan_of_weave(weave, best.plan))
    assert judged.cost == best.cost


def test_without_patience_or_simulations_the_start_is_the_answer() -> None:
    problem = small_problem(6, (1, 1, 1), memory=5.0)
    for start, best in (
        descended(problem, Patience(0, 20, 1.05)),
        descended(problem, Patience(100_000, 20, 1.05), stages=0),
    ):
        assert best == start


def test_nothing_is_simulated_twice_and_the_answer_is_the_same() -> None:
    problem = small_problem(5, (1, 2), memory=5.0)
    assert descended(problem, Patience(20_000, 10, 1.05)) == descended(
        problem, Patience(20_000, 10, 1.05)
    )
