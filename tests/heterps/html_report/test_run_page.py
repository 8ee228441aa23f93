"""The page of a run shows what that run predicted, beside what it measured."""

from __future__ import annotations

import re

import pytest

from heterps.html_report.run_page import RunFacts
from heterps.html_report.timeline_picture import timeline_picture
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


@pytest.fixture(scope="module")
def asked() -> tuple[Problem, Plan]:
    problem = load_problem("perceptron", "local-emulated", global_batch_size=8).plain
    return problem, planner_named("greedy").plan(problem, Budget())


def test_a_prediction_with_what_was_learned_is_not_simulated_anew(
    asked: tuple[Problem, Plan],
) -> None:
    problem, plan = asked
    known = estimate(problem, plan, with_timeline=True)
    learned = known.changed(step_time_s=3 * known.step_time_s)
    assert RunFacts.of(problem, plan, learned).shown is learned


def test_without_a_prediction_the_plan_is_simulated(asked: tuple[Problem, Plan]) -> None:
    problem, plan = asked
    known = estimate(problem, plan, with_timeline=True)
    for left in (None, known.changed(timeline=())):
        found = RunFacts.of(problem, plan, left).shown
        assert found.step_time_s == known.step_time_s
        assert found.timeline
        assert found.memory_curves


def test_rows_of_two_timelines_have_one_order(asked: tuple[Problem, Plan]) -> None:
    problem, plan = asked
    events = estimate(problem, plan, with_timeline=True).timeline
    names = list(dict.fromkeys(event.device for event in events))
    assert len(names) > 1
    turned = [names[-1], *names[:-1], "none of these"]
    for timeline in (events, events[::-1]):
        picture = str(timeline_picture(timeline, 1.0, {}, turned))
        assert re.findall(r"<title>([^<]+)</title>", picture) == turned[:-1]
