"""What a user lets planners choose: how stages are carried out, and the size of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from heterps.planning.place import PlaceResult, TriedSize, chooses_options, place
from heterps.planning.size_bounds import with_bound_over
from heterps_agents.finishing.strategies import is_hopeless, promised_cost
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.uniform import micro_batch_candidates
from heterps_configs.documents.job import MOST_MICRO_BATCHES, Strategy
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_job
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.options import option_tables, options_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run

# Why a size of micro-batches is not the one.
BOUND_IS_ABOVE = "no placement that fits by the planners' rule is below the bound"
IS_HOPELESS = "simple placements cost too much for any search to make up"
NO_BUDGET = "the budget was spent before its turn"
NO_PLAN = "no plan was found that fits"
NO_BETTER_PLAN = "no plan was found that fits and comes near the best"


# What `heterps place` leaves to planners. Host memory is no device's own, and its links are
# seldom known: that it may be used has to be said.
OPEN = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")


def strategy_of(
    tensor_parallel: str | None = None,
    recompute: str | None = None,
    shard_state: str | None = None,
    offload: str | None = None,
    *,
    base: Strategy | None = None,
) -> Strategy:
    """The strategy that options of a command ask for; None: that of `base`.

    Raises:
        HeterpsError: A degree is no whole number, or a word is none of those allowed.
    """
    given = {"recompute": recompute, "shard_state": shard_state, "offload": offload}
    fields: dict[str, object] = {name: word for name, word in given.items() if word is not None}
    try:
        if tensor_parallel is not None:
            words = () if tensor_parallel == "auto" else tensor_parallel.split(",")
            fields["tensor_parallel"] = tuple(map(int, words))
    except ValueError:
        raise HeterpsError(
            f"--tensor-parallel {tensor_parallel}: expected auto, or degrees such as 1,2,4"
        ) from None
    return Strategy.from_mapping(
        {**(base or Strategy()).to_mapping(), **fields},
        source="--tensor-parallel, --recompute, --shard-state, --offload",
    )


def micro_batch_size(text: str | None) -> int | None:
    """Samples of `--micro-batch`; None where it is left open, or to the planner.

    Raises:
        HeterpsError: It is neither a whole number nor `auto`.
    """
    if text is None or text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise HeterpsError(
            f"--micro-batch {text}: expected auto, or a whole number of samples"
        ) from None


def is_size_open(micro_batch: str | None, job_file: str | None) -> bool:
    """Whether the size of micro-batches is left to the planner: nobody has named one."""
    if micro_batch is None and job_file is not None:
        return "micro_batch_size" not in load_job(job_file).model_fields_set
    return micro_batch in (None, "auto")


def place_over_sizes(
    problem: Problem,
    planner: str | Planner = "auto",
    *,
    sizes: Sequence[int] = (),
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
) -> PlaceResult:
    """`place` for each size of micro-batches, and the best of the answers by the simulator.

    Those come first that simple placements promise most of. A size is left out whose lower bound is
    above what another one reaches, or whose simple placements are so far above it that no search
    makes up for that. Of a budget each size gets an equal part of what is left.

    Args:
        problem: The size of its job does not count.
        planner: See `place`.
        sizes: Of micro-batches; by default the candidates of `heterps_agents.search.uniform`.
        budget: Of all sizes together.
        seed: See `place`.
        effort: See `place`.

    Raises:
        InfeasibleError: There is no plan with any size; the reason is that of the smallest.
    """
    spent, best = budget or Budget(), None
    chosen = planner_named(planner, seed=seed) if isinstance(planner, str) else planner
    asked = [_with_size(problem, size) for size in sizes or _sizes(problem)]
    outlooks = [_outlook(each, chosen, spent) for each in asked]
    reasons: list[InfeasibleError] = []
    answers: list[PlaceResult] = []
    tried: list[TriedSize] = []
    for number, index in enumerate(sorted(range(len(asked)), key=outlooks.__getitem__)):
        outlook, size = outlooks[index], asked[index].job.micro_batch_size
        entry = TriedSize(size, outlook.bound, outlook.promised)
        known = _cost(best) if best is not None and _can_run(best) else math.inf
        if best is not None and (outlook.loses_to(known) or spent.is_exhausted):
            why = outlook.why(known) or NO_BUDGET
            tried.append(entry._replace(why=why))
            continue
        own = spent.share(1 / (len(asked) - number))
        if math.isfinite(known) and problem.job.objective == "throughput":
            own.known_cost = known
        try:
            found = place(asked[index], chosen, budget=own, seed=seed, effort=effort)
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
        spent.spend(own.evaluations_used)
    if best is None:
        raise reasons[0]
    return replace(
        with_bound_over(best, answers, asked, tried),
        evaluations=spent.evaluations_used,
        planning_s=spent.seconds_used,
        planning_cpu_s=spent.cpu_seconds_used,
        tried_sizes=tuple(sorted(tried, key=lambda each: each.size)),
    )


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


def _outlook(problem: Problem, planner: Planner, budget: Budget) -> _Outlook:
    """Simple placements count as evaluations: where these are limited, none is made."""
    bound = _bound(problem)
    if budget.evaluations is not None or math.isinf(bound):
        return _Outlook(bound, bound)
    asked = problem if chooses_options(planner) else problem.plain
    promised, job = promised_cost(asked, budget), problem.job
    if job.objective == "price":  # of seconds times dollars per hour
        promised *= 1e6 / 3600 / job.global_batch_size
    return _Outlook(promised, bound)


def _sizes(problem: Problem) -> list[int]:
    batch = problem.job.global_batch_size
    sizes = micro_batch_candidates(problem)
    return [size for size in sizes if -(-batch // size) <= MOST_MICRO_BATCHES]


def _with_size(problem: Problem, size: int) -> Problem:
    job = problem.job.changed(micro_batch_size=size, unequal_micro_batch_sizes=None)
    return replace(problem, job=job)


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
