"""Placements that the closed form may underrate, for the simulator to choose from.

The closed form takes the slowest link between two devices of a class for all of them, leaves out
the sums of parameters that are tied across stages, and is less exact for GPipe than for 1F1B. What
it likes best can therefore be slower, simulated, than a single class or node, than a pipeline whose
ends are near each other, or than what is best under the other schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from heterps_agents.exact.solve import predicted_seconds, solve
from heterps_agents.finishing.shortlist import Shortlist, Simulations
from heterps_agents.interface.question import Question, Search
from heterps_agents.search.annealing import annealed_code, polish
from heterps_agents.search.class_subsets import renamed, restricted
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.genetic import genetic_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.random import random_code
from heterps_agents.search.starts import simple_codes, simple_start
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.schedule.tied import tied_share

# Predicted seconds up to which a part of a problem is solved exactly; beyond, it is annealed.
EXACT_SECONDS, POLISH_EVALUATIONS = 0.03, 10_000
# The same of a problem whose classes have several nodes: it stands for many of its kind.
EXACT_SECONDS_OVER_NODES = 0.3
# Searches that say what they find, with so many evaluations each: some hundredths of a second.
SEARCHES: tuple[Search, ...] = (genetic_code, cross_entropy_code, annealed_code, random_code)
SEARCH_EVALUATIONS = 10_000
# A layer that must not be on a class takes so many times as long there as the model takes.
FORBIDDEN = 1e3


def finalists(
    problem: Problem, question: Question, evaluations: int = SEARCH_EVALUATIONS
) -> list[Code]:
    """All of them; some may not fit.

    Args:
        problem: What was asked.
        question: The same for searches.
        evaluations: Of each of the searches that say what they find.
    """
    return [
        *of_some_classes(question),
        *of_tied_layers(problem, question),
        *of_other_schedule(question),
        *of_links_within_nodes(problem, question),
        *of_searches(question, evaluations),
    ]


def over_nodes(problem: Problem, question: Question) -> list[Code]:
    """Those of a problem whose classes have several nodes: there, links are what is unsure."""
    codes = [*simple_codes(problem, question), *of_links_within_nodes(problem, question)]
    code = _solved(question, question.tables, EXACT_SECONDS_OVER_NODES)
    codes += [] if code is None else [code]
    return [*codes, *of_equal_links(problem, question), *of_some_classes(question)]


def of_some_classes(question: Question) -> list[Code]:
    """The best by the closed form on each class alone, and on the fastest two, three, ...

    Classes without room for any layer are left out by the search itself.
    """
    codes = []
    for classes in _subsets(question.tables):
        code = _solved(question, restricted(question.tables, classes))
        if code is not None:
            codes.append(renamed(code, np.array(classes, np.int32)))
    return codes


def of_tied_layers(problem: Problem, question: Question) -> list[Code]:
    """The best where the sums of tied parameters are priced, for each class at their far end.

    The near end is the owner's layer. Its optimizer step is longer by the sum between the two
    classes; the far end has to be on its class.
    """
    tied = problem.profile.tied_layers
    if not tied:
        return []
    tables, codes = question.tables, []
    others_s = FORBIDDEN * float(tables.compute_s.min(axis=1).sum())
    for far in range(tables.num_classes):
        optimizer_s, forward_s = tables.optimizer_s.copy(), tables.forward_s.copy()
        for owner, users in tied.items():
            for user in users:
                shared = float(tables.gradient_bytes[user]) * tied_share(problem.profile, user)
                optimizer_s[owner] += 2 * (
                    tables.latency_s[:, far] + shared * tables.inverse_bandwidth_s_per_byte[:, far]
                )
                forward_s[user, np.arange(tables.num_classes) != far] += others_s
        code = _solved(question, replace(tables, optimizer_s=optimizer_s, forward_s=forward_s))
        if code is not None:
            codes.append(code)
    return codes


def of_other_schedule(question: Question) -> list[Code]:
    """The best under 1F1B where the job says GPipe, and the other way."""
    tables = question.tables
    code = _solved(question, replace(tables, is_gpipe=not tables.is_gpipe))
    return [] if code is None else [code]


def of_links_within_nodes(problem: Problem, question: Question) -> list[Code]:
    """The best where devices of a class are within a node of one another, if some are not."""
    tables = problem.tables_within_nodes
    if np.array_equal(tables.latency_s, question.tables.latency_s) and np.array_equal(
        tables.inverse_bandwidth_s_per_byte, question.tables.inverse_bandwidth_s_per_byte
    ):
        return []
    code = _solved(question, tables, EXACT_SECONDS_OVER_NODES)
    return [] if code is None else [code]


def of_equal_links(problem: Problem, question: Question) -> list[Code]:
    """The best where few and many replicas sum their gradients over the same links.

    A node may have no room for as many replicas as it has devices, or several nodes for more.
    """
    if question.tables.rings is None:
        return []
    both = (question.tables, problem.tables_within_nodes)
    found = [
        _solved(question, replace(tables, rings=None), EXACT_SECONDS_OVER_NODES) for tables in both
    ]
    return [code for code in found if code is not None]


def of_searches(question: Question, evaluations: int = SEARCH_EVALUATIONS) -> list[Code]:
    """What searches find with so many evaluations each: they stop at different placements.

    Where fewer are left, each gets as many as the others, and as many stay.
    """
    codes = []
    for number, search in enumerate(SEARCHES):
        left = question.budget.evaluations_left
        if question.budget.is_exhausted:
            break
        shared = evaluations if left is None else left // (len(SEARCHES) - number + 1)
        own = question.budget.part(max(1, min(evaluations, shared)))
        code = search(question._replace(budget=own))
        question.budget.spend(own.evaluations_used)
        codes += [] if code is None else [code]
    return codes


def searched_views(
    asked: Problem, planned: Problem, question: Question, settings: Simulations, known: float
) -> list[Shortlist]:
    """What the searches find in every view of a problem, as they do when they are asked alone.

    Args:
        asked: The problem.
        planned: The view that is planned by.
        question: Of that view.
        settings: How much is simulated in each view.
        known: Least simulated cost so far: small moves begin below it only.
    """
    lists = []
    for view in asked.views:
        if question.budget.is_exhausted:
            break
        own = question if view is planned else Question.of(view, question.budget, question.seed)
        start = simple_start(view, own)
        codes = [start, *of_searches(own._replace(start=start))]
        fitting = [code for code in codes if math.isfinite(own.cost(code))]
        if fitting:
            lists.append(Shortlist(view, own, settings))
            lists[-1].consider(fitting, most=known)
    return lists


def _subsets(tables: CostTables) -> Iterator[tuple[int, ...]]:
    seconds = tables.compute_s.sum(axis=0) / np.maximum(tables.device_count, 1)
    fastest_first = [int(kind) for kind in np.argsort(seconds, kind="stable")]
    for kind in fastest_first:
        yield (kind,)
    for size in range(2, tables.num_classes):
        yield tuple(sorted(fastest_first[:size]))


def _solved(question: Question, tables: CostTables, exact_s: float = EXACT_SECONDS) -> Code | None:
    """The optimum of other tables where that is quick; else what annealing makes of greedy's."""
    kernel, goal, budget = kernel_tables(tables), question.goal, question.budget
    if predicted_seconds(kernel) <= min(exact_s, budget.seconds_left):
        result = solve(kernel, goal, max_seconds=exact_s)
        budget.spend_beside(result.transitions)
        if result.status != "over budget":
            return result.code
    # Costs by other tables are nobody's finds.
    code = greedy_code(question._replace(tables=tables, kernel=kernel, problem=None))
    if code is None:
        return None
    budget.spend(POLISH_EVALUATIONS)
    return polish(code, kernel, POLISH_EVALUATIONS, question.seed, goal)
