"""The front door of planning: `place(problem) -> PlaceResult`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterps.planning.one_size import (
    improve_one_size,
    place_one_size,
    quick_result,
    with_executable,
)
from heterps.planning.place_result import PlaceResult, TriedSize
from heterps.planning.sizes import open_sizes, with_bound_over, with_size
from heterps.planning.strategies import is_left_open
from heterps_agents.finishing.strategies import is_hopeless, promised_cost
from heterps_agents.interface.planner import Budget, PatientPlanner, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import with_effort
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.options import option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import estimate

# Of what is left of a budget, for the size whose turn it is: those that promise most come first.
LEAST_PART = 1 / 2
# Of a limit in time, for the quick plans of a patient planner; of what is left then, for its first
# plans; the rest is for the best of these: so many at most, that cost so many times what the best
# costs at most.
QUICK_PART, WAY_PART, SIZE_PART, FIRST_PART, MOST_IMPROVED, NEAR_BEST = 1 / 4, 1 / 2, 1 / 2, 3 / 5, 2, 1.1
KNOWN_SLACK = 1.0
# First plans are sought of sizes whose quick ones cost so many times what the best costs at most.
NEAR_QUICK = 1.2
# Of a limit in evaluations, for simple placements, which say what a size promises.
LOOKED_PART = 1 / 2
# Why a size of micro-batches is not the one.
BOUND_IS_ABOVE = "no placement that fits by the planners' rule is below the bound"
IS_HOPELESS = "simple placements cost too much for any search to make up"
IS_BEHIND = "simple placements are too far behind for the time there is"
NO_BUDGET = "the budget was spent before its turn"
NO_PLAN = "no plan was found that fits"
NO_BETTER_PLAN = "no plan was found that fits and comes near the best"


def place(
    problem: Problem,
    planner: str | Planner = "auto",
    *,
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
) -> PlaceResult:
    """Finds a plan and says how good it is.

    What the strategy of the problem leaves open is chosen too: how stages are carried out, and the
    size of micro-batches, by the simulator.

    Args:
        problem: Model profile, cluster and job, and what may be chosen.
        planner: A registered name, or a planner of your own.
        budget: Evaluations and seconds that the planner may spend; unlimited by default. Of what is
            left each size of micro-batches gets half when its turn comes, those first that promise
            most: what one of them does not need the others have. A patient planner (`auto`) gets
            `FIRST_PART` of a limit in time for that, and the rest for the best sizes.
        seed: Of planners that draw random numbers.
        effort: `fast`, `normal` or `high`, for planners that can try harder (`ppo`, `auto`); a
            warning where the planner knows no efforts.

    Raises:
        UnknownNameError: No planner or effort has that name.
        InfeasibleError: No plan keeps memory and the throughput floor. Of several sizes of
            micro-batches the reason is that of the first.
    """
    chosen = planner_named(planner, seed=seed) if isinstance(planner, str) else planner
    if effort is not None:
        chosen = with_effort(chosen, effort)
    if not problem.strategy.is_plain and not chooses_options(chosen):
        if not is_left_open(problem.strategy):
            warn_of_own_way(chosen)
        problem = problem.plain
    budget = budget or Budget()
    if problem.strategy.chooses_micro_batch:
        return _over_sizes(problem, chosen, budget)
    result = place_one_size(problem, chosen, budget)
    return with_executable(result, [result.problem])


def chooses_options(planner: Planner | System) -> bool:
    """Whether a planner chooses how stages are carried out, where a strategy lets it."""
    return bool(getattr(planner, "chooses_options", False))


def warn_of_own_way(planner: Planner | System) -> None:
    """Says that what was asked for is ignored by a planner that chooses no options."""
    makes_groups = isinstance(planner, System) and planner.makes_groups
    own_way = "places each stage on one device that keeps all"
    warnings.warn(
        f"the planner {planner.name} "
        f"{'makes groups by its own cost' if makes_groups else own_way}: tensor parallel, "
        "recompute, offload and sharded state are ignored",
        stacklevel=3,
    )


def _over_sizes(problem: Problem, planner: Planner | System, budget: Budget) -> PlaceResult:
    """A plan for each size of micro-batches, and the best of them by the simulator.

    Those come first that simple placements promise most of. A size is left out whose lower bound is
    above what another one reaches, or whose simple placements are so far above it that no search
    makes up for that.

    Raises:
        InfeasibleError: There is no plan with any size; the reason is that of the first.
    """
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    patient = planner if isinstance(planner, PatientPlanner) and budget.has_time_limit else None
    if patient is None or not patient.is_patient:
        tried, answers = _each_size(asked, planner, budget)
    else:
        own = budget.share(QUICK_PART)
        quick = _quick(asked, patient, own)
        budget.charge(own)
        own = budget.share(FIRST_PART)
        tried, answers = _each_size(asked, patient.hurried, own, quick)
        budget.charge(own)
        answers = _improved(answers, patient, budget)
    best = min(answers, key=_rank)
    found = {answer.plan.job.micro_batch_size: _cost(answer) for answer in answers}
    tried = [
        entry._replace(found=found[entry.size], why="") if entry.size in found else entry
        for entry in tried
    ]
    return replace(
        with_executable(with_bound_over(best, answers, asked, tried), asked),
        evaluations=budget.evaluations_used,
        planning_s=budget.seconds_used,
        planning_cpu_s=budget.cpu_seconds_used,
        tried_sizes=tuple(sorted(tried, key=lambda each: each.size)),
    )


def _each_size(
    asked: Sequence[Problem],
    planner: Planner | System,
    budget: Budget,
    quick: Mapping[int, PlaceResult] | None = None,
) -> tuple[list[TriedSize], list[PlaceResult]]:
    """What became of each size, and the best results of those that have a plan.

    Args:
        asked: The problem with each size.
        planner: Asked for each size, those first that promise most.
        budget: What it may spend.
        quick: What is known of some sizes.

    Raises:
        InfeasibleError: None has a plan.
    """
    answers = dict(quick or {})
    outlooks = _outlooks(asked, planner, budget, answers)
    reasons: list[InfeasibleError] = []
    tried: list[TriedSize] = []
    for number, index in enumerate(sorted(range(len(asked)), key=outlooks.__getitem__)):
        outlook, size = outlooks[index], asked[index].job.micro_batch_size
        entry = TriedSize(size, outlook.bound, outlook.promised)
        known = min(map(_cost, filter(_can_run, answers.values())), default=math.inf)
        is_behind = quick is not None and outlook.promised > NEAR_QUICK * known
        if answers and (outlook.loses_to(known) or is_behind or budget.is_exhausted):
            why = outlook.why(known) or (IS_BEHIND if is_behind else NO_BUDGET)
            tried.append(entry._replace(why=why))
            continue
        own = budget.share(max(1 / (len(asked) - number), LEAST_PART))
        if math.isfinite(known) and asked[index].job.objective == "throughput":
            own.known_cost = known * KNOWN_SLACK
        try:
            found = place_one_size(asked[index], planner, own)
        except InfeasibleError as error:
            reasons.append(error)
            bound = max(entry.bound, error.least_step_time_s or 0.0)
            entry = entry._replace(bound=bound, why=NO_BETTER_PLAN if answers else NO_PLAN)
        else:
            answers[size] = min(found, answers.get(size, found), key=_rank)
        tried.append(entry)
        budget.charge(own)
    if not answers:
        raise reasons[0]
    return tried, list(answers.values())


def _quick(
    asked: Sequence[Problem], planner: PatientPlanner, budget: Budget
) -> dict[int, PlaceResult]:
    """What planners find that take tenths of a second, each for all sizes in turn; the best ones.

    The sizes come first that are best so far, then those with the least bound.
    """
    plans: dict[int, Plan] = {}
    costs: dict[int, float] = {}
    bounds = [_bound(each) for each in asked]
    for way in planner.quick_ways(asked[0]):
        own = budget.share(WAY_PART)
        for index in sorted(range(len(asked)), key=lambda i: (costs.get(i, math.inf), bounds[i])):
            known = min(costs.values(), default=math.inf)
            if own.is_exhausted or known <= bounds[index]:
                continue
            part = own.share(SIZE_PART)
            if asked[index].job.objective == "throughput":
                part.known_cost = known
            plan = planner.quick_plan(asked[index], part, way)
            own.charge(part)
            if plan is None:
                continue
            cost = _cost_of(asked[index], plan)
            if cost < costs.get(index, math.inf):
                plans[index], costs[index] = plan, cost
        budget.charge(own)
    found: dict[int, PlaceResult] = {}
    for index, plan in plans.items():
        if costs[index] <= NEAR_QUICK * min(costs.values()):
            result = quick_result(asked[index], plan.changed(planner=planner.name), planner, budget)
            if result is not None:
                found[asked[index].job.micro_batch_size] = result
    return found


def _cost_of(problem: Problem, plan: Plan) -> float:
    """What the job minimises."""
    shown = estimate(problem, plan)
    if problem.job.objective == "price":
        return shown.price_usd_per_million_samples
    return shown.step_time_s


def _improved(
    answers: Sequence[PlaceResult], planner: PatientPlanner, budget: Budget
) -> list[PlaceResult]:
    """The results, the best few of them improved: each with half of what is left, the last all."""
    ranked = sorted(answers, key=_rank)
    near = [each for each in ranked if _cost(each) <= NEAR_BEST * _cost(ranked[0])][:MOST_IMPROVED]
    found = list(ranked)
    for number, result in enumerate(near):
        if budget.is_exhausted:
            break
        own = budget.share(1.0 if result is near[-1] else LEAST_PART)
        found[number] = min(result, improve_one_size(result, planner, own), key=_rank)
        budget.charge(own)
    return found


class _Outlook(NamedTuple):
    """What is known of a size before anything is searched; in what the job minimises.

    Of one that nobody looked at, its bound is all that is promised; it comes after the others.
    """

    is_unseen: bool
    promised: float
    bound: float

    def loses_to(self, known: float) -> bool:
        """Whether it can be left out beside a plan that costs so much."""
        return known <= self.bound or is_hopeless(self.promised, known)

    def why(self, known: float) -> str:
        """Why it is left out; empty where it is not."""
        if known <= self.bound:
            return BOUND_IS_ABOVE
        return IS_HOPELESS if is_hopeless(self.promised, known) else ""


def _outlooks(
    asked: Sequence[Problem],
    planner: Planner | System,
    budget: Budget,
    known: Mapping[int, PlaceResult],
) -> list[_Outlook]:
    """What each size promises, by what is known of it or by simple placements.

    These count as evaluations. Where such are limited, a planner that looks at simple placements
    itself looks at them here already, with `LOOKED_PART` of the budget; another one does not.
    """
    bounds = [_bound(each) for each in asked]
    costs = {index: _cost(known[each.job.micro_batch_size]) for index, each in enumerate(asked)
             if each.job.micro_batch_size in known}  # fmt: skip
    looks = budget.evaluations is None or isinstance(planner, PatientPlanner)
    own = budget.share(LOOKED_PART)
    for index in sorted(range(len(asked)), key=bounds.__getitem__):
        if index in costs or math.isinf(bounds[index]):
            continue
        if looks and not (own.evaluations is not None and own.is_exhausted):
            costs[index] = _promised(asked[index], own)
    budget.charge(own)
    return [
        _Outlook(index not in costs, costs.get(index, bound), bound)
        for index, bound in enumerate(bounds)
    ]


def _promised(problem: Problem, budget: Budget) -> float:
    """What simple placements cost, in what the job minimises."""
    promised, job = promised_cost(problem, budget), problem.job
    if job.objective == "price":  # of seconds times dollars per hour
        promised *= 1e6 / 3600 / job.global_batch_size
    return promised


def _bound(problem: Problem) -> float:
    """Of every plan's step time; 0 where the price counts."""
    if problem.job.objective == "price":
        return 0.0
    view = problem.views[-1]
    return lower_bound(option_tables(view, options_of(view, problem.strategy)))


def _can_run(result: PlaceResult) -> bool:
    return can_run(result.problem, result.plan)


def _rank(result: PlaceResult) -> tuple[bool, float]:
    """Plans that cannot be run yet come last."""
    return not _can_run(result), _cost(result)


def _cost(result: PlaceResult) -> float:
    shown = result.estimate
    if result.problem.job.objective == "price":
        return shown.price_usd_per_million_samples
    return shown.step_time_s
