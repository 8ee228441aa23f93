"""What judges say of plans that cannot be better than one that is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.asymmetric.judged import Judge
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from tests.envs.simulator.test_compiled_simulator import runs


@pytest.mark.slow
@given(runs(are_alone=True), st.sampled_from([0.2, 0.7, 0.99, 1.0, 1.01, 3.0]))
def test_a_plan_that_is_skipped_costs_as_much_as_is_asked_for(
    case: tuple[Problem, Plan], share: float
) -> None:
    problem, plan = case
    cost = Judge(problem, Budget()).judged(plan).cost
    judge = Judge(problem, Budget())
    below = share * cost
    found = judge.judged(plan, below)
    assert (found.cost < below) == (cost < below)
    if cost < below or judge.num_simulated:
        assert found.cost == pytest.approx(cost, rel=1e-12)
