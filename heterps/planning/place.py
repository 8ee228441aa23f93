"""The front door of planning: `place(problem) -> PlaceResult`."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import NamedTuple

from heterps.planning.one_size import place_one_size, with_executable
from heterps.planning.place_result import PlaceResult, TriedSize
from heterps.planning.sizes import open_sizes, with_bound_over, with_size
from heterps.planning.strategies import is_left_open
from heterps_agents.finishing.strategies import is_hopeless, promised_cost
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import with_effort
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.options import option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run

# Of what is left of a budget, for the size whose turn it is: those that promise most come first.
LEAST_PART = 1 / 2
# A planner that uses all of its time goes on with the best size if so much of it is left.
WORTH_MORE = 0.15
# Why a size of micro-batches is not the one.
BOUND_IS_ABOVE = "no placement that fits by the planners' rule is below the bound"
IS_HOPELESS = "simple placements cost too much for any search to make up"
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
            most: what one of them does not need the others have.
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
    way = _over_sizes if problem.strategy.chooses_micro_batch else place_one_size
    return way(problem, chosen, budget or Budget())


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
    best: PlaceResult | None = None
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    outlooks = [_outlook(each, budget) for each in asked]
    reasons: list[InfeasibleError] = []
    answers: list[PlaceResult] = []
    tried: list[TriedSize] = []
    for number, index in enumerate(sorted(range(len(asked)), key=outlooks.__getitem__)):
        outlook, size = outlooks[index], asked[index].job.micro_batch_size
        entry = TriedSize(size, outlook.bound, outlook.promised)
        known = _cost(best) if best is not None and _can_run(best) else math.inf
        if best is not None and (outlook.loses_to(known) or budget.is_exhausted):
            why = outlook.why(known) or NO_BUDGET
            tried.append(entry._replace(why=why))
            continue
        own = budget.share(max(1 / (len(asked) - number), LEAST_PART))
        if math.isfinite(known) and problem.job.objective == "throughput":
            own.known_cost = known
        try:
            found = place_one_size(asked[index], planner, own)
        except InfeasibleError as error:
            reasons.append(error)
            why = NO_PLAN if best is None else NO_BETTER_PLAN
            bound = max(entry.bound, error.least_step_time_s or 0.0)
            tried.append(entry._replace(bound=bound, why=why))
        else:
            tried.append(entry._replace(found=_cost(found)))
            answers.append(found)
            if best is None or _rank(found) < _rank(best):
                best = found
        budget.charge(own)
    if best is None:
        raise reasons[0]
    has_time = budget.has_time_limit and budget.time_share < 1 - WORTH_MORE
    if has_time and getattr(planner, "is_patient", False):
        best = _with_time_left(best, planner, budget)
        answers.append(best)
    return replace(
        with_executable(with_bound_over(best, answers, asked, tried), asked),
        evaluations=budget.evaluations_used,
        planning_s=budget.seconds_used,
        planning_cpu_s=budget.cpu_seconds_used,
        tried_sizes=tuple(sorted(tried, key=lambda each: each.size)),
    )


def _with_time_left(best: PlaceResult, planner: Planner | System, budget: Budget) -> PlaceResult:
    """The best size once more, with all time that the others have left."""
    own = budget.share(1.0)
    try:
        again = place_one_size(best.problem, planner, own)
    except InfeasibleError:
        again = best
    budget.charge(own)
    return min(best, again, key=_rank)


class _Outlook(NamedTuple):
    """What is known of a size before anything is searched; in what the job minimises."""

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


def _outlook(problem: Problem, budget: Budget) -> _Outlook:
    """Simple placements count as evaluations: where these are limited, none is made."""
    bound = _bound(problem)
    if budget.evaluations is not None or math.isinf(bound):
        return _Outlook(bound, bound)
    promised, job = promised_cost(problem, budget), problem.job
    if job.objective == "price":  # of seconds times dollars per hour
        promised *= 1e6 / 3600 / job.global_batch_size
    return _Outlook(promised, bound)


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
