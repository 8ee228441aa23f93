"""Sizes of micro-batches that a planner gives up: the others have their plans."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterps.micro_batches.each_size import TOO_DEAR
from heterps.micro_batches.sizes import with_size
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.exact import planner as exact_planner
from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError, TooDearError
from heterps_envs.problem import Problem


class _GivesUp:
    """The exact solver, with some sizes that are too dear for it."""

    name, chooses_options = "exact", True

    def __init__(self, is_dear: Callable[[int], bool]) -> None:
        self._is_dear = is_dear

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        if self._is_dear(problem.job.micro_batch_size):
            raise TooDearError("too dear; choose another planner, such as auto")
        return planner_named("exact").plan(problem, budget)


def _asked() -> Problem:
    return load_problem("gpt2", "local-emulated", strategy=OPEN)


def test_of_sizes_that_were_solved_the_best_is_the_answer_and_not_proven() -> None:
    best = place(_asked(), "exact")
    size = best.plan.job.micro_batch_size
    planner: Planner = _GivesUp(lambda own: own == size)
    found = place(_asked(), planner)
    assert found.plan.job.micro_batch_size != size
    assert {each.size: each.why for each in found.tried_sizes}[size] == TOO_DEAR
    assert found.bound.status == "bounded"
    assert found.bound.step_time_s is not None
    # The bound is one of what nobody solved, too.
    closed_s = best.estimate.closed_form_step_time_s
    assert closed_s is not None
    assert found.bound.step_time_s <= closed_s
    assert f"micro-batches of {size} may be better: {TOO_DEAR}" in found.estimate.notes


def test_a_size_without_hope_is_no_reason_for_doubt() -> None:
    best = place(_asked(), "exact")
    assert best.bound.status == "proven"
    largest = max(each.size for each in best.tried_sizes)
    found = place(_asked(), _GivesUp(lambda own: own == largest))
    assert found.bound.status == "proven"
    assert not any(TOO_DEAR in note for note in found.estimate.notes)


def test_without_any_plan_the_planner_says_that_it_gave_up() -> None:
    with pytest.raises(TooDearError, match="choose another planner"):
        place(_asked(), _GivesUp(lambda own: True))
    with pytest.raises(InfeasibleError):
        place(load_problem("llama-70b", "local-emulated", strategy=OPEN), "exact")


def test_the_exact_solver_gives_up_what_takes_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = with_size(_asked(), 4)

    def without_time(*asked: object, **more: object) -> ExactResult:
        return solve(asked[0], asked[1], max_seconds=1e-9)  # type: ignore[arg-type]

    monkeypatch.setattr(exact_planner, "solve", without_time)
    with pytest.raises(TooDearError, match="choose another planner, such as auto"):
        planner_named("exact").plan(problem, Budget())
