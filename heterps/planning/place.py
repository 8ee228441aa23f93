"""The front door of planning: `place(problem) -> PlaceResult`."""

from __future__ import annotations

import warnings

from heterps.micro_batches.one_size import proof_budget, search_budget, with_executable
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.placing import place_without_bound
from heterps.planning.problems import A_PROBLEM
from heterps.planning.strategies import is_left_open
from heterps.portfolio.members import members
from heterps.portfolio.together import place_together
from heterps_agents.interface.planner import A_BUDGET, Budget, Planner
from heterps_agents.interface.registry import chosen_planner
from heterps_agents.interface.system import System
from heterps_agents.learned.efforts import with_effort
from heterps_configs.arguments import check_type
from heterps_configs.documents.job import Strategy
from heterps_envs.problem import Problem


def place(
    problem: Problem,
    planner: str | Planner = "auto",
    *,
    budget: Budget | None = None,
    seed: int = 0,
    effort: str | None = None,
    processes: int = 1,
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
        processes: So many search at the same time, each with that budget, and the best plan of all
            is taken: beside `auto` unlike searches, beside another search the same one with other
            seeds. A warning where the planner has one answer.

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
    beside = members(chosen, processes)
    if beside:
        return place_together(problem, chosen, budget, beside)
    own = search_budget(budget)
    result, asked = place_without_bound(problem, chosen, own)
    budget.charge(own)
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


def chooses_options(planner: Planner | System) -> bool:
    """Whether a planner chooses how stages are carried out, where a strategy lets it."""
    return bool(getattr(planner, "chooses_options", False))


def goes_own_way(strategy: Strategy, planner: Planner | System) -> bool:
    """Whether a planner ignores what somebody named, and `asked_of` does not say so.

    Where all is left open it does not, nor where all is forbidden: there, what has a way of its own
    does what is not allowed, and what has none does as it was told.
    """
    if strategy.is_plain:
        return bool(own_way_of(planner))
    return is_left_open(strategy) and not chooses_options(planner)


def own_way_of(planner: Planner | System) -> str:
    """How it carries out stages whatever a strategy allows; empty: each is one device."""
    return planner.own_way if isinstance(planner, System) else ""


def warn_of_own_way(planner: Planner | System) -> None:
    """Says that what was asked for is ignored by a planner that chooses no options."""
    way = own_way_of(planner) or "places each stage on one device that keeps all"
    warnings.warn(
        f"the planner {planner.name} {way}: tensor parallel, "
        "recompute, offload and sharded state are ignored",
        stacklevel=4,
    )
