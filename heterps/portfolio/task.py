"""What another process is asked to search, and what it answers."""

from __future__ import annotations

import time
from dataclasses import dataclass

from heterps.micro_batches.place_result import SearchedBeside
from heterps.micro_batches.placing import place_without_bound
from heterps.portfolio.members import Member
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

# Of a limit in seconds, what is left at least of it to a process that begins late.
LEAST_LEFT = 1 / 2


@dataclass(frozen=True)
class SearchTask:
    """A search for one process.

    Attributes:
        problem: With what the planner may choose left open.
        member: Who searches.
        evaluations: That it may spend; None for no limit.
        seconds: Of a clock on the wall, since `begun_at`; the same.
        cpu_seconds: Of this process; the same.
        begun_at: `time.time()` when all of them began.
    """

    problem: Problem
    member: Member
    evaluations: int | None
    seconds: float | None
    cpu_seconds: float | None
    begun_at: float

    def budget(self) -> Budget:
        """What is left: those that wait for this search should not wait for its beginning."""
        seconds = self.seconds
        if seconds is not None:
            left = seconds - (time.time() - self.begun_at)
            seconds = max(LEAST_LEFT * seconds, min(left, seconds))
        return Budget(self.evaluations, seconds, self.cpu_seconds)


@dataclass(frozen=True)
class SearchAnswer:
    """What came of a search.

    Attributes:
        searched: Who searched, and how good the plan is.
        plan: None where none was found.
        evaluations: Placements whose cost was computed.
        planning_s: Seconds on a clock on the wall.
    """

    searched: SearchedBeside
    plan: Plan | None
    evaluations: int
    planning_s: float


def answer_of(task: SearchTask) -> SearchAnswer:
    """Searches; that there is no plan is an answer, too."""
    began, member = time.process_time(), task.member
    planner = member.planner()  # with its imports, which are none of its time
    budget = task.budget()
    searched = SearchedBeside(member.name, member.seed, None, 0.0)
    try:
        result, _ = place_without_bound(task.problem, planner, budget)
    except HeterpsError as error:
        searched = searched._replace(cpu_s=time.process_time() - began, why=str(error))
        return SearchAnswer(searched, None, budget.evaluations_used, budget.seconds_used)
    cpu_s, step_time_s = time.process_time() - began, result.estimate.step_time_s
    searched = searched._replace(step_time_s=step_time_s, cpu_s=cpu_s)
    return SearchAnswer(searched, result.plan, result.evaluations, result.planning_s)
