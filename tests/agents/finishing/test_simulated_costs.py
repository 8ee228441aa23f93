"""What placements cost as simulated."""

from __future__ import annotations

import pytest

from heterps_agents.finishing import simulated_costs
from heterps_agents.finishing.simulated_costs import CANNOT_RUN, SimulatedCosts
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem


def test_a_plan_that_cannot_be_run_is_chosen_where_nothing_else_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """GPT-2's first and last layers hold the same table, which unlike groups may share."""
    problem = Problem(
        load_profile("gpt2"),
        load_cluster("h100-pod"),
        Job(global_batch_size=32, micro_batch_size=4),
        strategy=Strategy(tensor_parallel=(1, 2)),
    )
    question = Question.of(problem, Budget())
    costs = SimulatedCosts(problem, question, "test")
    last = problem.profile.num_layers - 1

    def cost(*degrees: int) -> float:
        front, back = (
            PlacedStage(*layers, 0, 1, degree=degree)
            for layers, degree in zip(((0, 6), (7, last)), degrees, strict=True)
        )
        entry = costs.add(encode((front, back), question.options))
        assert entry.plan.predicted_step_time_s is not None
        return entry.cost / entry.plan.predicted_step_time_s

    # Halves of a tie in unlike groups run, too.
    assert cost(2, 2) == cost(1, 1) == cost(1, 2) == pytest.approx(1)
    monkeypatch.setattr(simulated_costs, "can_run", lambda problem, plan: False)
    assert cost(2, 1) == pytest.approx(CANNOT_RUN)
