"""Several searches at once: the best plan of all, whoever has it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace

import pytest

from heterps.micro_batches.place_result import SearchedBeside
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.portfolio import together
from heterps.portfolio.members import Member
from heterps.portfolio.processes import Processes
from heterps.portfolio.task import SearchAnswer, SearchTask, answer_of
from heterps.portfolio.together import NO_ANSWER, NOT_AWAITED, place_together
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

EXACT = Member("exact", 0, None)


@pytest.fixture(scope="module")
def problem() -> Problem:
    """One where simple rules are not best."""
    return load_problem("gpt2", "a100-v100", micro_batch_size=4)


class Here(Processes):
    """Answers in this process."""

    def __enter__(self) -> Here:
        """Starts nothing."""
        return self

    def answers(self, *, waits: bool) -> list[SearchAnswer | None]:
        """Those of all of them, or none."""
        return [answer_of(task) if waits else None for task in self._tasks]


class Nobody(Here):
    """Processes that were killed."""

    def answers(self, *, waits: bool) -> list[SearchAnswer | None]:
        """None of all of them."""
        return [None for _ in self._tasks]


class Without:
    """A planner that finds nothing."""

    name, chooses_options = "without", True

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Raises InfeasibleError."""
        raise InfeasibleError("nothing was found")


def search(
    problem: Problem, planner: Planner, beside: Sequence[Member], monkeypatch: pytest.MonkeyPatch
) -> tuple[SearchedBeside, ...]:
    """What all found, where the best of it is the plan that came."""
    monkeypatch.setattr(together, "Processes", Here)
    found = place_together(problem, planner, Budget(), beside)
    known = [each.step_time_s for each in found.searches if each.step_time_s is not None]
    assert found.estimate.step_time_s == min(known)
    assert found.plan.predicted_step_time_s == estimate(problem, found.plan).step_time_s
    assert found.executable == found.plan.executable_bound
    assert found.executable.status != "unknown"
    assert found.requested_planner == planner.name
    assert found.planning_cpu_s == pytest.approx(sum(each.cpu_s for each in found.searches))
    return found.searches


def test_the_plan_of_another_process_is_taken_where_it_is_better(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = search(problem, planner_named("even"), [EXACT], monkeypatch)
    assert (own.planner, other.planner) == ("even", "exact")
    assert other.step_time_s is not None
    assert own.step_time_s is not None
    assert other.step_time_s < own.step_time_s


def test_and_the_own_one_where_that_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = load_problem("gpt2", "eight-types", micro_batch_size=4)
    own, other = search(problem, planner_named("greedy"), [Member("even", 0, None)], monkeypatch)
    assert other.step_time_s is not None
    assert own.step_time_s is not None
    assert own.step_time_s < other.step_time_s


def test_a_plan_of_others_is_enough(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = search(problem, Without(), [EXACT], monkeypatch)
    assert own.step_time_s is None
    assert own.why == "nothing was found"
    assert other.step_time_s is not None


def test_where_nobody_has_a_plan_the_own_reason_is_told(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "Processes", Here)
    floor = problem.job.changed(min_throughput_samples_per_s=1e12)
    with pytest.raises(InfeasibleError, match="nothing was found"):
        place_together(replace(problem, job=floor), Without(), Budget(), [EXACT])


def test_a_process_that_is_gone_is_told_of(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "Processes", Nobody)
    with pytest.warns(UserWarning, match=f"exact, seed 0: {NO_ANSWER}"):
        found = place_together(problem, planner_named("even"), Budget(), [EXACT])
    assert found.plan.planner == "even"
    assert found.searches[1].why == NO_ANSWER


def test_nobody_is_waited_for_where_the_plan_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "Processes", Here)
    problem = load_problem("llama-tiny", "local-emulated")
    alone = place(problem, "auto")
    assert alone.executable.status == "proven"
    found = place_together(problem, planner_named("auto"), Budget(), [EXACT])
    assert found.searches[1].why == NOT_AWAITED
    assert found.estimate.step_time_s == alone.estimate.step_time_s


@pytest.mark.slow
def test_real_processes_answer_as_this_one_does_and_a_killed_one_does_not(
    problem: Problem,
) -> None:
    tasks = [
        SearchTask(problem, Member(name, 0, None), 500, None, None, 0.0)
        for name in ("annealing", "genetic")
    ]
    with Processes(tasks) as processes:
        os.kill(processes.pids[1], signal.SIGKILL)
        here, killed = processes.answers(waits=True)
        pids = processes.pids
    assert killed is None
    assert here is not None
    assert here.plan == answer_of(tasks[0]).plan
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
