"""A limit in time is kept, and what is proven before ends the search."""

from __future__ import annotations

import pytest

from heterps.micro_batches.one_size import proof_budget, with_executable
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_envs.problem_sets.field import FieldCase, field_problem
from heterps_envs.step_bounds import question
from heterps_envs.step_bounds.whole_plans.stage_search import StageSearch

MUCH_S = 300.0


@pytest.mark.parametrize("size", [None, 2], ids=["all sizes", "one size"])
def test_a_plan_that_is_proven_ends_the_search(size: int | None) -> None:
    problem = load_problem("gpt2", "local-emulated", micro_batch_size=size)
    result = place(problem, "auto", budget=Budget(cpu_seconds=MUCH_S))
    assert result.executable.status == "proven"
    assert result.planning_cpu_s < MUCH_S / 4


def test_where_the_best_sizes_are_proven_the_others_are_searched() -> None:
    """Behind slow links simple placements promise little of the best size."""
    problem = field_problem(FieldCase("volunteers", 1), seed=31)
    result = place(problem, "auto", budget=Budget(cpu_seconds=5.0))
    found = {each.size: each.found for each in result.tried_sizes if each.found is not None}
    assert result.plan.job.micro_batch_size == 8
    assert found[8] < 0.95 * min(cost for size, cost in found.items() if size != 8)


def test_who_has_no_time_left_proves_with_a_part_of_the_limit() -> None:
    budget = Budget(seconds=1e-9, cpu_seconds=40.0)
    proof = proof_budget(budget)
    assert proof.seconds == pytest.approx(0.125e-9)
    assert proof.cpu_seconds == pytest.approx(40.0, abs=1.0)
    assert not proof_budget(Budget(evaluations=1)).has_time_limit


def test_a_bound_without_time_goes_through_no_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    result = place(load_problem("gpt2", "local-emulated", micro_batch_size=2), "auto")
    fresh, spent = load_problem("gpt2", "local-emulated", micro_batch_size=2), Budget(seconds=1e-9)

    def search(*_: object) -> tuple[int, int, int]:
        raise AssertionError("there is no time")

    monkeypatch.setattr(StageSearch, "find", search)
    known, found = result.executable, with_executable(result, [fresh], spent).executable
    assert known.step_time_s is not None
    assert found.step_time_s is not None
    assert 0 < found.step_time_s <= known.step_time_s
    with pytest.raises(AssertionError):
        with_executable(result, [fresh], Budget(seconds=MUCH_S))


def test_a_bound_without_time_leaves_out_links_between_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are most of what a bound of many devices takes."""
    result = place(load_problem("gpt2", "a100-v100-t4", micro_batch_size=2), "even")
    fresh, spent = load_problem("gpt2", "a100-v100-t4", micro_batch_size=2), Budget(seconds=1e-9)

    def ranges(*_: object) -> bool:
        raise AssertionError("there is no time")

    monkeypatch.setattr(question, "ranges_of", ranges)
    known, found = result.executable, with_executable(result, [fresh], spent).executable
    assert known.step_time_s is not None
    assert found.step_time_s is not None
    assert 0 < found.step_time_s < known.step_time_s
    with pytest.raises(AssertionError):
        with_executable(result, [fresh], Budget(seconds=MUCH_S))
