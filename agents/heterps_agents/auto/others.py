"""What other planners answer: `auto` asks those that are quick, where its time is limited.

Each of them looks at a kind of plan that searches with few evaluations miss now and then: even
plans, pipelines of islands, replicas with unequal shares. Which kind a problem asks for is not
known before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from heterps_agents.asymmetric.islands import islands
from heterps_agents.auto.choices import better, finished, part_of
from heterps_agents.auto.copies import MOST_COPIES, best_copies
from heterps_agents.auto.device_walk import best_of_each_size
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.interface.patient import has_many_devices, is_walked
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.interface.search_planner import SearchPlanner
from heterps_agents.search.uniform import best_uniform, best_uniform_of_each
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

# Even plans; planners that answer in tenths of a second for a few devices (`autohete` mostly does,
# and its integer programme now and then takes 30 s, which no budget ends), and of these those that
# do for some more; and those that take longer, for a few devices too.
EVEN, FOR_FEW = "uniform-3d", ("hexiscale", "harp", "malleus", "whale")
FOR_SOME, SOME_DEVICES = ("harp",), 32
SLOWER = ("hap", "metis", "sailor", "ppo")
FEW_DEVICES, VERY_FEW_DEVICES = 16, 8
# Islands of which `tangram` composes plans: of one they are even, each more takes twice as long.
COMPOSER, LEAST_ISLANDS, MOST_ISLANDS = "tangram", 2, 5
# Near devices alone, the fastest ones: behind slow links chains on two or three are best, or whole
# copies of the model, of which a few are simulated for each size.
COPIES, MOST_COPIED = "copies", 2
NEAR, NEAR_PLANNER, MOST_NEAR, MOST_NEAR_DEVICES = "near devices", "exact", 4, 4
# Walks over devices.
WALKS = "devices"
# For few devices plans are finished before they are compared: with more micro-batches in flight
# an even one behind slow links may take so many times less.
FINISHING_GAIN = 1.6
# Planners whose finds count, with so many evaluations, and devices up to which they are asked; and
# one that is asked for more, where no options are open, with all evaluations that are left.
FINDERS, FINDER_EVALUATIONS, FINDERS_DEVICES = ("annealing", "exact"), 10_000, 64
FINDER_OF_MANY = "ppo"
# Searches that have a part of what time is left.
SEARCHERS = ("genetic", "cross-entropy", "annealing")
# Of the time that is left, for each; and of a search for finding: the simulator has the rest.
PART, FOUND_PART = 1 / 2, 1 / 2


def quick_ways(problem: Problem) -> tuple[str, ...]:
    """Who is asked first where time is limited, in turn: those that take tenths of a second."""
    number = len(problem.cluster.devices)
    some = FOR_SOME if number <= SOME_DEVICES else ()
    few = FOR_FEW if number <= FEW_DEVICES else some
    composers = (COMPOSER,) if is_composed(problem) else ()
    near = (NEAR,) if islands(problem, 1, MOST_NEAR_DEVICES) else ()
    copies = (COPIES,) if near or number <= MOST_COPIES else ()
    walks = (WALKS,) if is_walked(problem) else ()
    return (*walks, EVEN, *copies, *near, *composers, *few)


def ending_ways(problem: Problem) -> tuple[str, ...]:
    """Those of them that soon end by themselves."""
    if len(problem.cluster.devices) > FINDERS_DEVICES:
        return ()
    return (WALKS, EVEN) if is_walked(problem) else (EVEN,)


def is_composed(problem: Problem) -> bool:
    """Whether plans of islands are composed: neither one island, nor too many."""
    return LEAST_ISLANDS <= len(problem.classes) <= MOST_ISLANDS


def quick_plan(problem: Problem, budget: Budget, seed: int, way: str) -> Plan | None:
    """The plan of one of them; None where it has none that may be used.

    Args:
        problem: What was asked.
        budget: Its end ends this; even plans are looked at below the cost that it knows.
        seed: Of those that draw random numbers.
        way: One of `quick_ways`.
    """
    is_few = len(problem.cluster.devices) <= FEW_DEVICES
    found: Plan | None = None
    if way == EVEN:
        most = budget.known_cost * (FINISHING_GAIN if is_few else 1.0)
        even = best_uniform(problem, budget, seed, below=most)
        found = None if even is None else even.plan
    elif way == COPIES:
        found = _plan_of_copies(problem, budget)
    elif way == WALKS:
        found = best_of_each_size([problem], budget, seed).get(0)
    elif way == NEAR:
        found = _plan_of_near_devices(problem, budget, seed)
    else:
        found = _answer_of(way, problem, budget, seed)
    found = None if found is None else better(problem, None, found)
    return finished(problem, found, budget) if found is not None and is_few else found


def quick_plans(
    problems: Sequence[Problem], budget: Budget, seed: int, way: str
) -> dict[int, Plan] | None:
    """The best plans of a way for problems that differ in the size of micro-batches alone.

    Args:
        problems: What was asked.
        budget: Its end ends this; plans that cost as much as it knows need not be found.
        seed: Of those that draw random numbers.
        way: One of `quick_ways`.

    Returns:
        Plans by the indices of their problems, at least the best of all; None where the way looks
        at one problem at a time. Of few devices many plans may be best once they are finished.
    """
    if way == WALKS:
        return best_of_each_size(problems, budget, seed)
    if way != EVEN or len(problems[0].cluster.devices) <= FEW_DEVICES:
        return None
    found = best_uniform_of_each(problems, budget, seed, below=budget.known_cost)
    plans = {
        index: better(problems[index], None, even.plan)
        for index, even in {each.number: each.plan for each in found}.items()
    }
    return {index: plan for index, plan in plans.items() if plan is not None}


def slower_plan(problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """The same of those that take longer, of fewer where there are many devices."""
    names = SLOWER if len(problem.cluster.devices) <= VERY_FEW_DEVICES else SLOWER[-1:]
    return _best_of(names, problem, budget, seed, _even_plan(problem, budget, seed))


def plan_of_finds(
    problem: Problem,
    budget: Budget,
    seed: int,
    finder: str,
    evaluations: int | None = FINDER_EVALUATIONS,
    known: Sequence[Plan] = (),
) -> Plan | None:
    """What a planner finds on its way, and small moves on the simulator from all of that.

    Its finds lie apart: the best of `auto` are mostly near one another.

    Args:
        problem: What was asked.
        budget: Its end ends this.
        seed: Of the planner.
        finder: Its name, one of `finders` or `searchers`.
        evaluations: It has so many at most; None: as many as there is time for.
        known: Plans that it may begin with.
    """
    if budget.is_exhausted:
        return None
    own = budget.apart(1.0)
    most = None if finder == FINDER_OF_MANY else evaluations
    if most is not None:
        own.evaluations = most if own.evaluations is None else min(most, own.evaluations)
    search = own.share(FOUND_PART) if evaluations is None and own.has_time_limit else own
    plan: Plan | None = None
    with contextlib.suppress(HeterpsError):
        planner = planner_named(finder, seed)
        if isinstance(planner, SearchPlanner):
            planner.known = known
        found = planner.plan(problem, search)
        if search is not own:
            own.charge(search)
        is_walked = finder == FINDER_OF_MANY
        plan = better(problem, None, best_of_finds(problem, found, own, walks=is_walked))
    budget.charge(own)
    return plan


def searchers(problem: Problem) -> tuple[str, ...]:
    """Those that are asked in turn, until the time of a budget is over."""
    is_small = len(problem.cluster.devices) <= FINDERS_DEVICES
    return SEARCHERS if is_small else finders(problem)


def finders(problem: Problem) -> tuple[str, ...]:
    """Those that are asked: where there are many devices, each simulation takes long."""
    number = len(problem.cluster.devices)
    if number <= FINDERS_DEVICES:
        return FINDERS
    return (FINDER_OF_MANY,) if has_many_devices(problem) else ()


def _answer_of(way: str, problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """A planner's answer, or what it found in another view of the problem, if that runs faster."""
    before = len(budget.finds)
    with contextlib.suppress(HeterpsError):
        best: Plan | None = planner_named(way, seed).plan(problem, budget)
        for find in budget.finds[before:]:
            best = best if find.plan is None else better(problem, best, find.plan())
        return best
    return None


def _plan_of_near_devices(problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """The best of plans that leave all other devices idle."""
    best: Plan | None = None
    for part in islands(problem, MOST_NEAR, MOST_NEAR_DEVICES):
        if budget.is_exhausted:
            break
        with part_of(budget, PART) as own, contextlib.suppress(HeterpsError):
            found = planner_named(NEAR_PLANNER, seed).plan(part, own)
            best = better(problem, best, found.changed(bound=Bound()))
    return best


def _plan_of_copies(problem: Problem, budget: Budget) -> Plan | None:
    """The best plan of whole copies of the model, on near devices or on all of a few."""
    best: Plan | None = None
    few = [problem] if len(problem.cluster.devices) <= MOST_COPIES else []
    for part in (*islands(problem, MOST_COPIED, MOST_COPIES), *few):
        if budget.is_exhausted:
            break
        found = best_copies(part, budget)
        best = best if found is None else better(problem, best, found)
    return best


def _even_plan(problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """The best even plan below the cost that is known."""
    with part_of(budget, PART) as own:
        even = best_uniform(problem, own, seed, below=budget.known_cost)
    return None if even is None else better(problem, None, even.plan)


def _best_of(
    names: Sequence[str], problem: Problem, budget: Budget, seed: int, best: Plan | None
) -> Plan | None:
    for name in names:
        if budget.is_exhausted:
            break
        with part_of(budget, PART) as own, contextlib.suppress(HeterpsError):
            best = better(problem, best, planner_named(name, seed).plan(problem, own))
    return best
