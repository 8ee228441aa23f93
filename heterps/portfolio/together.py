"""A plan by several searches at once: the best that any of them finds."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace

from heterps.micro_batches.floors import sizes_of
from heterps.micro_batches.one_size import proof_budget, search_budget, with_executable
from heterps.micro_batches.outlooks import cost_of, rank
from heterps.micro_batches.place_result import PlaceResult, SearchedBeside
from heterps.micro_batches.placing import place_without_bound
from heterps.portfolio.members import Member
from heterps.portfolio.processes import Processes
from heterps.portfolio.task import SearchAnswer, SearchTask
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Why there is no plan of a process.
NOT_AWAITED = "not waited for: another plan is proven"
NO_ANSWER = "its process ended without an answer"


def place_together(
    problem: Problem, planner: Planner | System, budget: Budget, beside: Sequence[Member]
) -> PlaceResult:
    """As `heterps.place`, and others search in processes of their own meanwhile.

    Args:
        problem: With no more left open than the planner chooses.
        planner: Who searches in this process. If it proves its plan, nobody else is waited for.
        budget: What it may spend, and what each of the others may: without those seconds that it
            takes to start a process.
        beside: The others.

    Raises:
        InfeasibleError: None of them has a plan; see `heterps.place`.
    """
    with Processes(_tasks(problem, budget, beside)) as processes:
        own, asked, error = _of_this_process(problem, planner, budget)
        is_proven = own is not None and own.executable.status == "proven"
        answers = processes.answers(waits=not is_proven)
    known = [] if own is None else [own]
    known += [
        _result(asked, planner, answer) for answer in answers if answer and answer.plan is not None
    ]
    if not known:
        assert error is not None, "a planner that has no plan says why"
        raise error
    best = min(known, key=rank)
    if best is not own:
        best = _with_sizes_of(with_executable(best, asked, proof_budget(budget)), own)
    why = NOT_AWAITED if is_proven else NO_ANSWER
    of_others = [_of_member(*pair, why) for pair in zip(beside, answers, strict=True)]
    searches = (_of_own(planner, own, error, budget), *of_others)
    return replace(
        best,
        evaluations=budget.evaluations_used + sum(each.evaluations for each in answers if each),
        planning_s=max(each.planning_s for each in known),
        planning_cpu_s=sum(search.cpu_s for search in searches),
        searches=searches,
    )


def _tasks(problem: Problem, budget: Budget, beside: Sequence[Member]) -> list[SearchTask]:
    left = search_budget(budget)
    limits = left.evaluations, left.seconds, left.cpu_seconds
    return [SearchTask(problem, member, *limits, time.time()) for member in beside]


def _of_this_process(
    problem: Problem, planner: Planner | System, budget: Budget
) -> tuple[PlaceResult | None, list[Problem], HeterpsError | None]:
    """The result with its bound, or why there is none; and the problem with each size."""
    own = search_budget(budget)
    try:
        found, asked = place_without_bound(problem, planner, own)
    except HeterpsError as error:
        return None, sizes_of(problem), error
    finally:
        budget.charge(own)
    return with_executable(found, asked, proof_budget(budget)), asked, None


def _result(
    asked: Sequence[Problem], planner: Planner | System, answer: SearchAnswer
) -> PlaceResult:
    """What this process says of the plan of another one."""
    plan = answer.plan
    assert plan is not None, "there is one"
    problem = next(each for each in asked if each.job == plan.job)
    shown = estimate(problem, plan, with_interval=True)
    return PlaceResult(
        problem, planner.name, plan, shown, plan.bound,
        answer.evaluations, answer.planning_s, answer.searched.cpu_s,
    )  # fmt: skip


def _of_own(
    planner: Planner | System,
    own: PlaceResult | None,
    error: HeterpsError | None,
    budget: Budget,
) -> SearchedBeside:
    name, seed = planner.name, int(getattr(planner, "seed", 0))
    if own is None:
        return SearchedBeside(name, seed, None, budget.cpu_seconds_used, str(error))
    return SearchedBeside(name, seed, own.estimate.step_time_s, own.planning_cpu_s)


def _of_member(member: Member, answer: SearchAnswer | None, why: str) -> SearchedBeside:
    """What came of another process; a warning where nothing did that should have."""
    if answer is not None:
        return answer.searched
    if why == NO_ANSWER:
        warnings.warn(f"{member.name}, seed {member.seed}: {why}", stacklevel=4)
    return SearchedBeside(member.name, member.seed, None, 0.0, why)


def _with_sizes_of(best: PlaceResult, own: PlaceResult | None) -> PlaceResult:
    """With the sizes of micro-batches that this process tried, and what is known of its own."""
    size = best.plan.job.micro_batch_size
    tried = [
        each._replace(found=cost_of(best), why="") if each.size == size else each
        for each in ([] if own is None else own.tried_sizes)
    ]
    return replace(best, tried_sizes=tuple(tried))
