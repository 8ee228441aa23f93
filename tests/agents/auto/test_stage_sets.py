"""Plans of sets of stages that the bound cannot rule out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.planning.problems import load_problem
from heterps_agents.auto.stage_sets import best_of_stage_sets, weave_of_set
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import estimate, simulated_step_time_s
from heterps_envs.step_bounds.surviving import StageSpan


@pytest.fixture(scope="module")
def asked() -> Problem:
    """Four unlike devices, of which two are equal."""
    return load_problem("gpt2", "local-emulated", micro_batch_size=1)


def _known(problem: Problem, planner: str = "greedy") -> Plan:
    plan = planner_named(planner).plan(problem, Budget())
    return plan.changed(predicted_step_time_s=simulated_step_time_s(problem, plan))


def test_unlike_devices_side_by_side_beat_the_best_chain(asked: Problem) -> None:
    """All four have the whole model, with a share each: no small change of a chain leads there."""
    chain = _known(asked, "exact")
    found = best_of_stage_sets(asked, chain, Budget())
    assert found is not None
    assert estimate(asked, found).feasible
    assert simulated_step_time_s(asked, found) < 0.95 * simulated_step_time_s(asked, chain)


def test_what_reaches_the_bound_has_nothing_better(asked: Problem) -> None:
    known = _known(asked)
    found = best_of_stage_sets(asked, known, Budget())
    assert found is not None
    impossible = known.changed(predicted_step_time_s=simulated_step_time_s(asked, known) / 100)
    assert best_of_stage_sets(asked, impossible, Budget()) is None


def test_nobody_asks_for_many_devices_or_prices(asked: Problem) -> None:
    many = field_problem(FieldCase("one-pod", 7), SEEDS["development"])
    assert best_of_stage_sets(many, _known(many), Budget()) is None
    priced = replace(asked, job=asked.job.changed(objective="price"))
    assert best_of_stage_sets(priced, _known(asked), Budget()) is None


def test_in_a_hurry_what_is_far_from_the_bound_is_left_alone(asked: Problem) -> None:
    """A plan of twice the least roughly known: without a limit in time something is found."""
    known, hurry = _known(asked), Budget(cpu_seconds=60)
    slow = known.changed(predicted_step_time_s=3 * simulated_step_time_s(asked, known))
    assert best_of_stage_sets(asked, slow, Budget()) is not None
    assert best_of_stage_sets(asked, slow, hurry) is None
    assert best_of_stage_sets(asked, known, hurry) is not None


def test_stages_in_a_row_are_one_lane(asked: Problem) -> None:
    last = asked.profile.num_layers
    spans = (StageSpan(0, last, 2, 1), StageSpan(0, 4, 0, 1), StageSpan(4, last, 1, 1))
    weave = weave_of_set(asked, spans, "keep")
    assert weave is not None
    (block,) = weave.blocks
    assert sorted(len(lane.parts) for lane in block) == [1, 2]
    devices = [name for group in weave.groups for name in group]
    assert len(set(devices)) == 3


def test_a_border_of_all_lanes_is_one_of_blocks(asked: Problem) -> None:
    last = asked.profile.num_layers
    spans = (StageSpan(0, 6, 2, 1), StageSpan(0, 6, 2, 1), StageSpan(6, last, 0, 1))
    weave = weave_of_set(asked, spans, "keep")
    assert weave is not None
    assert [len(block) for block in weave.blocks] == [2, 1]


def test_lanes_that_would_share_a_stage_are_no_plan_of_lanes(asked: Problem) -> None:
    last = asked.profile.num_layers
    spans = (
        StageSpan(0, 4, 2, 1), StageSpan(0, 4, 2, 1), StageSpan(4, last, 0, 1),
        StageSpan(0, last, 1, 1),
    )  # fmt: skip
    assert weave_of_set(asked, spans, "keep") is None


def test_more_devices_than_a_class_has_are_no_plan(asked: Problem) -> None:
    last = asked.profile.num_layers
    assert weave_of_set(asked, (StageSpan(0, last, 0, 8),), "keep") is None
