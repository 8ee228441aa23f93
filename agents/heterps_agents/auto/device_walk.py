"""Walks by the clock over devices, with many micro-batches in flight.

Devices of one type share a class, in which tables have the slowest link between any two. Where each
pair has a link of its own, and a message takes as long as a pass, most of a step depends on which
devices are neighbours, and on how many micro-batches are in flight: no formula of classes sees
either. Here, where nodes are few, each has classes of its own: all links are known, and the clock
is the simulator's, but for replicas. Where nodes have several devices, others walk with replicas
on several nodes; so do those of many nodes, if their classes know all links. And a walk takes worse
changes than others do. Near devices have no need of it, but in tenths of a second such walks find
more than searches do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.auto.choices import better, finished, part_of
from heterps_agents.finishing.clock_walk import best_by_clock, clocked_costs
from heterps_agents.finishing.strategies import allows_plain
from heterps_agents.interface.patient import has_far_devices
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.objective import read_stages
from heterps_envs.problem import Problem
from heterps_envs.schedule.placement_clock import clocked_in_flight
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import (
    prepared_is_feasible,
    prepared_step_time_s,
    simulated_step_time_s,
)

# A change may be so much worse in the beginning, of what the placement costs.
THRESHOLD = 0.05
# Changes of a walk that no time ends; a walk's part of the time. The rest is for the best of its
# plans, of which so many are finished.
UNHURRIED_CHANGES, WALK_PART, MOST_FINISHED = 60_000, 0.8, 4
# Changes of the first of several walks, and how many times as many of each later one. So many in
# turn that find nothing better, by more than rounding, are the last ones.
FIRST_CHANGES, LONGER, MOST_IDLE, SAME = 3000, 3, 2, 1 - 1e-9
# Of the time for walks of all sizes of micro-batches, for the first of each; so many sizes go on.
FIRST_PART, MOST_LONGER = 1 / 2, 2
# Of what is left for first walks, the next size has one of so many parts at least: those that come
# last are hopeless mostly.
MOST_SIZES = 4
# No walk begins for a size that would begin with so many times the seconds of the best so far.
HOPELESS = 2.5


class Walked(NamedTuple):
    """The best plan of a walk, with its step time."""

    plan: Plan
    step_time_s: float


class _Way(NamedTuple):
    """A size of micro-batches in a view, and where its walks may begin.

    Attributes:
        number: Index of the size's problem.
        problem: What was asked with this size.
        view: Of the problem.
        question: The same for searches.
        begin: A greedy placement; None where it does not fit.
        cost: Of that, by the clock.
    """

    number: int
    problem: Problem
    view: Problem
    question: Question
    begin: Code | None
    cost: float


def best_over_devices(problem: Problem, plan: Plan, budget: Budget, seed: int) -> Plan | None:
    """The best plan of a walk; None where all of its plans are unfit.

    Args:
        problem: What was asked.
        plan: Where the walk begins, if it is a placement in a view; the seed says in which first.
        budget: With a limit in time, which the walk takes.
        seed: Of the walk.
    """
    views = _views(problem)
    turns = [views[(seed + index) % len(views)] for index in range(len(views))]
    known = (view for view in turns if Question.of(view, budget, seed).code_of(plan) is not None)
    found = _walked(_way(0, problem, next(known, turns[0]), budget, seed), [plan], budget)
    return None if found is None else found.plan


def best_of_each_size(problems: Sequence[Problem], budget: Budget, seed: int) -> dict[int, Plan]:
    """Plans of walks for problems that differ in the size of micro-batches, by their indices.

    One walk for each, in each view, from the best of those before; those first whose greedy
    placements promise most. Then longer ones for the best.
    """
    ways = [
        _way(number, problem, view, budget, seed)
        for number, problem in enumerate(problems)
        for view in _views(problem)
    ]
    most_ways = MOST_SIZES * -(-len(ways) // len(problems))
    found: dict[int, Walked] = {}

    def walk(index: int, own: Budget) -> None:
        if own.is_exhausted:
            return
        starts = [walked.plan for walked in found.values()]
        most_s = HOPELESS * min(map(_cost, found.values()), default=math.inf)
        walked = _walked(ways[index], starts, own, most_s)
        if walked is not None and walked.step_time_s < _cost(found.get(index)):
            found[index] = walked

    with part_of(budget, FIRST_PART) as first:
        for turn, index in enumerate(sorted(range(len(ways)), key=lambda index: ways[index].cost)):
            with part_of(first, 1 / min(len(ways) - turn, most_ways)) as own:
                walk(index, own)
    longer = sorted(found, key=lambda index: _cost(found[index]))[:MOST_LONGER]
    for turn, index in enumerate(longer):
        with part_of(budget, 1 / (len(longer) - turn)) as own:
            walk(index, own)
    best_last = sorted(found, key=lambda index: _cost(found[index]), reverse=True)
    return {ways[index].number: found[index].plan for index in best_last}


def _way(number: int, problem: Problem, view: Problem, budget: Budget, seed: int) -> _Way:
    question = Question.of(view, budget, seed)
    begin = greedy_code(question)
    if begin is None or not math.isfinite(question.cost(begin)):
        return _Way(number, problem, view, question, None, math.inf)
    (cost,) = clocked_costs(view, question, [begin])
    return _Way(number, problem, view, question, begin, cost)


def _walked(
    way: _Way, starts: Sequence[Plan], budget: Budget, most_s: float = math.inf
) -> Walked | None:
    """The best of a walk from the best of some plans, and of the way's own placement.

    None where all plans are unfit, or the walk would begin with more seconds than `most_s`.
    """
    own, problem = budget.share(WALK_PART), way.problem
    question = way.question._replace(budget=own)
    known = [question.code_of(plan) for plan in starts]
    begin = [code for code in (*known, way.begin) if code is not None]
    if not begin or min(clocked_costs(way.view, question, begin)) > most_s:
        return None
    found = _best_of_rounds(way.view, question, begin)
    budget.charge(own)
    best: Walked | None = None
    for code in found[:MOST_FINISHED]:
        clocked = plan_as_clocked(problem, question, code)
        plan = better(problem, None, finished(problem, clocked, budget))
        if plan is None:
            continue
        walked = Walked(plan, simulated_step_time_s(problem, plan))
        best = walked if walked.step_time_s < _cost(best) else best
    return best


def _best_of_rounds(view: Problem, question: Question, begin: list[Code]) -> list[Code]:
    """The best of walks with unlike seeds, each longer than the one before, best first.

    Where some have found nothing better than those before, there is nothing more: that ends it,
    long before the time is over where devices are few, or one of them is best.
    """
    if not question.budget.has_time_limit:
        return best_by_clock(view, question, begin, UNHURRIED_CHANGES, THRESHOLD)
    found, best_s, changes, idle = begin.copy(), math.inf, FIRST_CHANGES, 0
    while idle < MOST_IDLE and not question.budget.is_exhausted:
        found += best_by_clock(view, question, begin, changes, THRESHOLD)
        found = list({code.tobytes(): code for code in found}.values())
        costs = clocked_costs(view, question, found)
        best_first = sorted(range(len(found)), key=costs.__getitem__)
        found = [found[index] for index in best_first[:MOST_FINISHED]]
        least_s = costs[best_first[0]]
        idle = 0 if least_s < best_s * SAME else idle + 1
        best_s, changes = least_s, LONGER * changes
        question = question._replace(seed=question.seed + 1)
    return found


def plan_as_clocked(problem: Problem, question: Question, code: Code) -> Plan:
    """With as many in flight as the clock lets stages hold, where that is faster and fits."""
    prepared = PreparedPlan(problem, question.plan_of(code))
    stages = np.empty((question.kernel.num_layers, 3), np.int64)
    count = read_stages(code, stages)
    held = clocked_in_flight(stages, count, question.kernel).tolist()
    number_of = dict(zip(stages[:count, 0].tolist(), held, strict=True))
    raised = prepared.changed(
        stages=tuple(
            stage.changed_unchecked(in_flight=number_of[stage.last_layer + 1])
            for stage in prepared.plan.stages
        )
    )
    raised_s = prepared_step_time_s(raised)
    is_faster = raised_s < prepared_step_time_s(prepared)
    raised = raised.timed(raised_s)
    return raised.plan if is_faster and prepared_is_feasible(raised) else prepared.plan


def _views(problem: Problem) -> list[Problem]:
    """The problem as walks look at it: by each node, and with replicas on several, where both are.

    Classes of single nodes know all links; these are not too many on few nodes alone. And of far
    devices, where stages may be groups of them, or drop what they compute, there is a view without:
    a walk seldom leads from one kind of stage to the other.
    """
    each, usual = problem.by_each_node, problem.views[0]
    if each is None:
        found = [usual]
    elif len(usual.classes) < len(each.classes) < len(problem.cluster.devices):
        found = [each, usual]
    else:
        found = [each]
    is_open = not problem.strategy.is_plain and allows_plain(problem.strategy)
    if is_open and has_far_devices(problem):
        found.append(found[-1].plain)
    return found


def _cost(walked: Walked | None) -> float:
    return math.inf if walked is None else walked.step_time_s
