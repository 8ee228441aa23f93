"""What another process searches: the same as this one would, in the time that is left."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.portfolio.members import Member
from heterps.portfolio.task import SearchTask, answer_of
from heterps_envs.problem import Problem


@pytest.fixture(scope="module")
def problem() -> Problem:
    """A small one, with micro-batches of any size."""
    return load_problem("llama-tiny", "local-emulated")


def task(problem: Problem, seconds: float | None = None, late_s: float = 0.0) -> SearchTask:
    """Of a search that ends by itself."""
    member = Member("annealing", 3, None)
    return SearchTask(problem, member, 500, seconds, None, time.time() - late_s)


def test_it_answers_what_this_process_would(problem: Problem) -> None:
    answer, own = answer_of(task(problem)), place(problem, "annealing", seed=3)
    assert answer.plan is not None
    assert answer.searched.planner == "annealing"
    assert answer.searched.seed == 3
    assert answer.searched.step_time_s == answer.plan.predicted_step_time_s
    assert answer.evaluations <= own.evaluations
    assert answer.searched.step_time_s is not None
    assert answer.searched.step_time_s >= own.estimate.step_time_s


def test_that_there_is_no_plan_is_an_answer(problem: Problem) -> None:
    floor = problem.job.changed(min_throughput_samples_per_s=1e12)
    answer = answer_of(task(replace(problem, job=floor)))
    assert answer.plan is None
    assert answer.searched.step_time_s is None
    assert "floor" in answer.searched.why


@pytest.mark.parametrize(("late_s", "left_s"), [(0.0, 10.0), (2.0, 8.0), (60.0, 5.0)])
def test_a_process_that_begins_late_has_less_time_and_half_of_it_at_least(
    problem: Problem, late_s: float, left_s: float
) -> None:
    assert task(problem, 10.0, late_s).budget().seconds == pytest.approx(left_s, abs=0.2)


def test_no_limit_stays_none(problem: Problem) -> None:
    assert task(problem, None, 60.0).budget().seconds is None
