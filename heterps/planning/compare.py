"""All planners on one problem at an equal budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from heterps.planning.comparison import Comparison
from heterps.planning.comparison_rows import Answers, Failure, judge
from heterps.planning.curves import curve_of
from heterps.planning.place import chooses_options, own_way_of, place
from heterps.planning.problems import A_PROBLEM
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import (
    chosen_planner,
    planner_names,
    predicted_training_s,
    system_names,
)
from heterps_agents.interface.system import System
from heterps_configs.arguments import check_callable, check_type
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

# Planners that train a network for every problem are left out where they would take longer.
LONGEST_TRAINING_S = 4.0
# In place of names: all planners, and all systems of papers; what papers published beside ours.
ALL, FIELD = "all", "field"
OURS = ("auto", "asymmetric", "uniform-3d")
# Beside planners of one's own: those that are compared where none is named.
USUAL = "usual"
# Evaluations, seconds and processor seconds of each; None: unlimited.
Limits = tuple[int | None, float | None, float | None]


def compare(
    problem: Problem,
    planners: str | Planner | Sequence[str | Planner] = (),
    *,
    evaluations: int | None = 10_000,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    seed: int = 0,
    with_all: bool = False,
    on_start: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Runs each planner once with the same budget.

    Args:
        problem: What they answer, with what its strategy leaves open. Each planner answers for
            several sizes of micro-batches where these are open, within its budget: see `place`.
        planners: Registered names, or planners of your own, or a single one; by default all
            registered ones but those that train a network for every problem where that takes long;
            with `ALL` these and the systems of papers; with `FIELD` `OURS` and the systems.
        evaluations: Placements that each may evaluate.
        seconds: Wall-clock seconds that each may take.
        cpu_seconds: Processor seconds that each may take.
        seed: Of planners that draw random numbers.
        with_all: By default none is left out.
        on_start: Called with each planner's name, to show progress.

    Raises:
        UnknownNameError: Before any planner runs.
        HeterpsError: An argument is of a wrong type, or no planner found a plan; the text is then
            the first planner's reason.
    """
    check_type("problem", problem, Problem, A_PROBLEM)
    check_callable("on_start", on_start, "a function of a planner's name")
    limits = evaluations, seconds, cpu_seconds
    Budget(*limits)  # refused before any planner runs
    objects, left_out = _chosen(problem, _several(planners), limits, seed, with_all)
    answers = _answers(problem, objects, limits, on_start)
    if not answers.results:
        raise next(iter(answers.failures.values())).error
    judged = judge(problem, answers)
    with_own_way = {each.name for each in objects if own_way_of(each)}
    return Comparison(
        problem,
        judged.rows,
        judged.reference,
        judged.is_proven,
        judged.results,
        left_out,
        answers.curves,
        tuple(n for n in answers.without if n in answers.results and n not in with_own_way),
        judged.beyond,
        judged.executable_s,
    )


def _several(planners: str | Planner | Sequence[str | Planner]) -> list[str | Planner]:
    """A list, of a single one too."""
    if isinstance(planners, str) or not isinstance(planners, Iterable):
        return [planners]
    return list(planners)


def _chosen(
    problem: Problem,
    planners: Sequence[str | Planner],
    limits: Limits,
    seed: int,
    with_all: bool,
) -> tuple[list[Planner | System], tuple[str, ...]]:
    """Who is asked, and the names of those that are left out because they would take too long."""
    is_all, is_usual = ALL in planners, not planners or USUAL in planners
    left_out = _too_slow(problem, *limits) if (is_usual or is_all) and not with_all else ()
    chosen = list(planners)
    own = [entry for entry in planners if entry not in (ALL, FIELD, USUAL)]
    if is_all:
        own = [entry for entry in own if not isinstance(entry, str)]
        chosen = [*planner_names(), *system_names(), *own]
    elif FIELD in planners:
        chosen = list(dict.fromkeys([*OURS, *system_names(), *own]))
    elif is_usual:
        chosen = [*planner_names(), *own]
    objects = [
        chosen_planner(entry, seed)
        for index, entry in enumerate(chosen)
        if entry not in left_out and not (isinstance(entry, str) and entry in chosen[:index])
    ]
    _check_names(objects)
    return objects, left_out


def _check_names(planners: Sequence[Planner | System]) -> None:
    """Answers go by name: of two planners of one name both rows would show the second's."""
    for name, count in Counter(planner.name for planner in planners).items():
        if count > 1:
            raise HeterpsError(
                f"planners: {count} of them are called {name!r}; allowed: one of each name"
            )


def _answers(
    problem: Problem,
    planners: Sequence[Planner | System],
    limits: Limits,
    on_start: Callable[[str], None],
) -> Answers:
    """Asks one planner after the other."""
    answers = Answers(
        names=[planner.name for planner in planners],
        without=()
        if problem.strategy.is_plain
        else tuple(each.name for each in planners if not chooses_options(each)),
    )
    for planner in planners:
        name = planner.name
        on_start(name)
        warm_up(planner, problem.job.objective)
        budget = Budget(*limits)
        try:
            asked = problem.plain if name in answers.without else problem
            answers.results[name] = place(asked, planner, budget=budget)
            answers.curves[name] = curve_of(answers.results[name], budget.finds)
        except Exception as error:
            answers.failures[name] = Failure(
                _told(planner, error), budget.evaluations_used, budget.seconds_used,
                budget.cpu_seconds_used,
            )  # fmt: skip
    return answers


def _told(planner: Planner | System, error: Exception) -> HeterpsError:
    """Why a planner has no answer; of anybody's own, its defects as well.

    Raises:
        Exception: The error, where it is a defect of ours.
    """
    if isinstance(error, HeterpsError):
        return error
    if type(planner).__module__.partition(".")[0] in ("heterps", "heterps_agents"):
        raise error
    return HeterpsError(f"{planner.name}: {type(error).__name__}: {error}")


def _too_slow(
    problem: Problem, evaluations: int | None, seconds: float | None, cpu_seconds: float | None
) -> tuple[str, ...]:
    """Planners that would train for longer than a person waits."""
    times = [limit for limit in (seconds, cpu_seconds) if limit is not None]
    if min(times, default=math.inf) <= LONGEST_TRAINING_S:
        return ()
    layers, most = problem.profile.num_layers, math.inf if evaluations is None else evaluations
    return tuple(
        name
        for name in planner_names()
        if predicted_training_s(name, layers, most) > LONGEST_TRAINING_S
    )
