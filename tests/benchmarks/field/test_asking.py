"""A planner's answer is a row, whatever the planner does with its time."""

from __future__ import annotations

import os
import signal
import time

import pytest

from benchmarks.field.asking import Limits, ask
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget, Planner
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

LIMITS = Limits(cpu_seconds=1.0)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("perceptron", "local-emulated", global_batch_size=8)


class Endless:
    """Looks at no budget."""

    name = "endless"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        while True:
            pass


class Asleep:
    """Takes no processor time, and does not come back."""

    name = "asleep"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        time.sleep(3600)
        raise AssertionError


class GreedyForMemory:
    """Asks for more than there is."""

    name = "greedy-for-memory"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        raise AssertionError(len(bytearray(2**36)))


class Killed:
    """Ended from outside, as by a system without memory."""

    name = "killed"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Broken:
    """Has a defect."""

    name = "broken"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        raise IndexError("list index out of range")


KINDS: tuple[type[Planner], ...] = (Endless, Asleep, GreedyForMemory, Killed, Broken)


def own(name: str, seed: int) -> Planner:
    """Makes the planners of this file."""
    del seed
    found: dict[str, Planner] = {each.name: each() for each in KINDS}
    return found[name]


@pytest.mark.slow
def test_a_planner_and_a_system_have_rows_with_their_own_predictions(problem: Problem) -> None:
    ours, paper = ask(problem, "greedy", LIMITS), ask(problem, "pipeedge", LIMITS)
    for row in (ours, paper):
        assert row["kind"] == "found"
        assert row["step_time_s"] > 0
        assert 0 < row["cpu_s"] < 10
    assert ours["bound_s"] <= ours["step_time_s"] * (1 + 1e-9)
    assert ours["predicted_s"] == pytest.approx(ours["step_time_s"], rel=0.5)
    # A period of its slowest stage, times the micro-batches of its plan.
    found = place(problem, "pipeedge")
    assert found.own_cost is not None
    assert paper["step_time_s"] == found.estimate.step_time_s
    assert paper["predicted_s"] == found.own_cost.seconds * found.plan.job.num_micro_batches
    # A bound of plans without options is none of all.
    assert paper["bound_s"] is None


def test_a_refusal_says_why_without_the_planners_name(problem: Problem) -> None:
    row = ask(problem, "piper", LIMITS)
    assert (row["kind"], row["step_time_s"]) == ("refused", None)
    assert row["reason"].startswith("needs equal devices")


@pytest.mark.slow
def test_a_planner_that_ignores_its_budget_is_ended_by_processor_seconds(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.field.asking.HARD_SECONDS", 0.5)
    row = ask(problem, "endless", Limits(0.1), own)
    assert row["kind"] == "too long"
    said = "no answer within 1 processor seconds (0.1 processor seconds were its budget)"
    assert row["reason"] == said
    assert row["wall_s"] < 60


def test_a_planner_that_sleeps_is_ended_by_the_clock(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.field.asking.WALL_FACTOR", 0.01)
    row = ask(problem, "asleep", LIMITS, own)
    assert (row["kind"], row["step_time_s"]) == ("too long", None)
    assert row["reason"].startswith("no answer in ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [("greedy-for-memory", "MemoryError"), ("killed", "its process ended with code -9")],
)
def test_a_planner_that_takes_the_machine_is_a_row_too(
    problem: Problem, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    row = ask(problem, name, LIMITS, own)
    assert row["kind"] == "failed"
    assert row["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("broken", "IndexError: list index out of range"), ("absent", "KeyError: 'absent'")],
)
def test_a_planner_that_fails_or_is_not_there_is_a_row(
    problem: Problem, name: str, reason: str
) -> None:
    row = ask(problem, name, LIMITS, own)
    assert (row["kind"], row["reason"]) == ("failed", reason)
