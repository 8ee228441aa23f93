"""The front door of planning: `place(problem) -> PlaceResult`."""

from __future__ import annotations

import warnings
from dataclasses import replace

from heterps.micro_batches.carried import with_searched
from heterps.micro_batches.each_size import TOO_DEAR, place_each_size
from heterps.micro_batches.one_size import (
    place_one_size,
    proof_budget,
    with_divided_state,
    with_executable,
)
from heterps.micro_batches.outlooks import best_of_each, cost_of, rank
from heterps.micro_batches.patient import place_patiently
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_bound_over, with_size
from heterps.micro_batches.unproven import of_unproven_sizes
from heterps.planning.problems import A_PROBLEM
from heterps.planning.strategies import is_left_open
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import A_BUDGET, Budget, Planner
from heterps_agents.interface.registry import chosen_planner
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import with_effort
from heterps_configs.arguments import check_type
from heterps_envs.problem import Problem

# Of a limit in time, for a proof by the closed form if no more is left.
CLOSED_FORM_PART = 1 / 16


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
            most: what one of them does not need the others have. A patient planner (`auto`) divides
            a limit in time otherwise (`heterps.micro_batches.patient`).
        seed: Of planners that draw random numbers.
        effort: `fast`, `normal` or `high`, for planners that can try harder (`ppo`, `auto`); a
            warning where the planner knows no efforts.

    Raises:
        UnknownNameError: No planner or effort has that name.
        InfeasibleError: No plan keeps memory and the throughput floor. Of several sizes of
            micro-batches the reason is that of the one nearest to a plan.
        TooDearError: There is no plan, and the planner gave up a size of micro-batches at least.
        HeterpsError: An argument is of a wrong type.
    """
    check_type("problem", problem, Problem, A_PROBLEM)
    if budget is not None:
        check_type("budget", budget, Budget, A_BUDGET)
    problem, chosen = asked_of(problem, planner, seed=seed, effort=effort)
    budget = budget or Budget()
    result, asked = place_without_bound(problem, chosen, budget)
    return with_executable(result, asked, proof_budget(budget))


def asked_of(
    problem: Problem, planner: str | Planner | System, *, seed: int, effort: str | None
) -> tuple[Problem, Planner | System]:
    """The planner of a name with its effort, and what is left of a problem where it chooses less.

    Args:
        problem: What is asked.
        planner: See `place`.
        seed: See `place`.
        effort: See `place`.

    Raises:
        UnknownNameError: No planner or effort has that name.
    """
    chosen: Planner | System = chosen_planner(planner, seed)
    if effort is not None:
        check_type("effort", effort, str, "fast, normal, high, or None")
        chosen = with_effort(chosen, effort)
    if not problem.strategy.is_plain and not chooses_options(chosen):
        if not is_left_open(problem.strategy):
            warn_of_own_way(chosen)
        problem = problem.plain
    return problem, chosen


def place_without_bound(
    problem: Problem, planner: Planner | System, budget: Budget
) -> tuple[PlaceResult, list[Problem]]:
    """As `place`, but for the bound of all plans that can be run: that takes seconds.

    Args:
        problem: With no more left open than the planner chooses (`asked_of`).
        planner: With its effort.
        budget: What it may spend.

    Returns:
        The best plan, and the problem with each size of micro-batches that was open: what
        `with_executable` takes.

    Raises:
        InfeasibleError: See `place`.
    """
    if problem.strategy.chooses_micro_batch:
        return _over_sizes(problem, planner, budget)
    result = with_divided_state(place_one_size(problem, planner, budget), planner)
    return result, [result.problem]


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
        stacklevel=4,
    )


def _over_sizes(
    problem: Problem, planner: Planner | System, budget: Budget
) -> tuple[PlaceResult, list[Problem]]:
    """A plan for each size of micro-batches, and the best of them by the simulator.

    Raises:
        InfeasibleError: There is no plan with any size; see `place`.
    """
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    if isinstance(planner, PatientPlanner) and planner.is_patient and budget.has_time_limit:
        tried, answers = place_patiently(asked, planner, budget)
    else:
        tried, answers = place_each_size(asked, planner, budget)
        if isinstance(planner, PatientPlanner):
            answers = with_searched(answers, asked, planner, budget)
    best = with_divided_state(min(answers, key=rank), planner)
    answers = best_of_each([best, *answers, *of_unproven_sizes(best, asked, planner, budget)])
    best = answers[0]
    found = {answer.plan.job.micro_batch_size: cost_of(answer) for answer in answers}
    tried = [
        entry._replace(found=found[entry.size], why="") if entry.size in found else entry
        for entry in tried
    ]
    # Bounds are no planning: what they take is not the planner's.
    best = replace(
        best,
        evaluations=budget.evaluations_used,
        planning_s=budget.seconds_used,
        planning_cpu_s=budget.cpu_seconds_used,
        tried_sizes=tuple(sorted(tried, key=lambda each: each.size)),
    )
    proof = budget.at_least(CLOSED_FORM_PART)
    return _with_given_up(with_bound_over(best, answers, asked, tried, proof)), asked


def _with_given_up(result: PlaceResult) -> PlaceResult:
    """The result with a note of sizes that the planner gave up, where they may be better."""
    sizes = [str(each.size) for each in result.tried_sizes if each.why == TOO_DEAR]
    if not sizes or result.bound.status == "proven":
        return result
    note = f"micro-batches of {', '.join(sizes)} may be better: {TOO_DEAR}"
    shown = result.estimate.changed(notes=(*result.estimate.notes, note))
    return replace(result, estimate=shown)
