"""PipeEdge on our problems: one chain over unlike devices, and what it predicts of it."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.pipeedge.system import PipeEdge
from heterps_configs.errors import InfeasibleError
from tests.uneven_problems import MakeProblem


def test_the_slowest_stage_or_message_is_as_slow_as_it_says(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=4.0)
    plan, own_cost = PipeEdge().answer(problem, Budget())
    assert len(plan.pipelines) == 1
    tables = problem.tables
    slowest_s = 0.0
    for index, stage in enumerate(plan.stages):
        kind = problem.class_of[stage.devices[0]]
        part = slice(stage.first_layer, stage.last_layer + 1)
        slowest_s = max(slowest_s, float(tables.compute_s[part, kind].sum()))
        if index:
            before = problem.class_of[plan.stages[index - 1].devices[0]]
            per_byte_s = tables.inverse_bandwidth_s_per_byte[before, kind]
            message_s = per_byte_s * tables.output_bytes[stage.first_layer - 1]
            slowest_s = max(slowest_s, float(message_s))
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(slowest_s)


def test_a_slow_link_keeps_the_chain_short(make_problem: MakeProblem) -> None:
    fast = PipeEdge().plan(make_problem(memory=8.0), Budget())
    slow = PipeEdge().plan(make_problem(memory=8.0, bandwidth_bytes_per_s=1e7), Budget())
    assert len(slow.stages) < len(fast.stages)


def test_a_model_that_is_too_large_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^pipeedge: no split of the layers fits"):
        PipeEdge().plan(make_problem(memory=0.1), Budget())
