"""A walk lane by lane: the best on the way, and an end where nothing new is near."""

from __future__ import annotations

import pytest

from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import weave_of_plan
from heterps_agents.auto.lane_walk import Walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s


@pytest.mark.slow
def test_the_best_on_the_way_fits_and_takes_what_is_said() -> None:
    strategy = OPEN.changed(chooses_micro_batch=False)
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=strategy)
    plan = planner_named("even").plan(problem.plain, Budget())
    weave = weave_of_plan(plan)
    assert weave is not None
    budget = Budget(cpu_seconds=1.5)
    known = Judged(simulated_step_time_s(problem, plan), plan)
    moves = Moves(Estimates(problem, 1.0), groups_of(problem, plan), memories_of(problem))
    best = Walk(Judge(problem, budget), moves, 0).best_from(weave, known, budget)
    assert best.cost < known.cost
    assert is_feasible(problem, best.plan)
    assert simulated_step_time_s(problem, best.plan) == pytest.approx(best.cost)


def test_without_time_the_plan_that_is_known_is_the_best() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16)
    plan = planner_named("even").plan(problem, Budget())
    weave = weave_of_plan(plan)
    assert weave is not None
    budget, known = Budget(cpu_seconds=1e-9), Judged(1.0, plan)
    moves = Moves(Estimates(problem, 1.0), (), ("keep",))
    assert Walk(Judge(problem, budget), moves, 0).best_from(weave, known, budget) is known
