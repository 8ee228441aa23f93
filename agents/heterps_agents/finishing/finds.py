"""What a search found on its way, simulated, and small moves from the best of it.

A search minimises the closed form. What it liked best before its last find differs in stages, and
may be faster as it runs: so the simulator chooses among its finds, and goes on from there.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable
from itertools import chain, islice, zip_longest

from heterps_agents.finishing.clock_walk import best_clocked
from heterps_agents.finishing.shortlist import Simulations, best_simulated
from heterps_agents.finishing.stage_walk import (
    can_walk,
    ends_by_clock,
    walked_on,
    walked_over_stages,
)
from heterps_agents.interface.finds import Find
from heterps_agents.interface.patient import has_many_devices
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_for, least_cost
from heterps_envs.closed_form.objective import ROUNDING
from heterps_envs.closed_form.placement import closed_form_of_plan_s, decode, placement_of
from heterps_envs.problem import Problem

# The last finds of a search that are simulated; and where time is limited: what follows then finds
# more in the same time than moves from each of them.
MOST_FINDS, MOST_HURRIED_FINDS = 24, 12
# Of those of each view, as many are where another search begins.
MOST_BEST_FINDS = 8
# Stages that may be simulated, of all views together; as many again for moves from each find, and
# of as many a part for a walk from the best.
MOST_STAGES, WALKED_PART = 1000, 1 / 3


def best_of_finds(
    problem: Problem,
    plan: Plan,
    budget: Budget,
    most_stages: float = MOST_STAGES,
    *,
    walks: bool = False,
) -> Plan:
    """The plan, or one of the finds of its search, or one near them, that the simulator prefers.

    Args:
        problem: What was asked.
        plan: The search's answer, with its bound.
        budget: That the search had. Its seconds end this; simulations are none of its evaluations.
            With a limit in time, moves begin at the best find alone.
        most_stages: Stages that may be simulated; without a limit in time, beside what walks by
            the clock hand over.
        walks: Whether walks follow: one, or where time is limited, on many devices, as many as
            there is time for.
    """
    if budget.time_share >= 1.0:
        return plan
    is_hurried, own = budget.has_time_limit, _time_of(budget)
    plans = [plan, *(_newest(problem, budget) if is_hurried else _of_all_views(problem, budget))]
    views, found = problem.views, [plan]
    for view in views:
        question = Question.of(view, own, plan.seed)
        codes, ends = _codes(question, plans), list[Code]()
        if codes and can_walk(problem):
            ends = ends_by_clock(view, question, codes, most_stages)
            codes = _with_walked(view, question, codes, ends)
        elif not is_hurried:
            # Of many stages few placements are simulated: of finds the least ones by this view.
            codes[1:] = sorted(codes[1:], key=question.cost)
        if codes:
            # Of many devices a walk takes far longer than simulating all that it hands over.
            more = 0 if is_hurried else _num_stages(question, ends)
            most, least = most_stages / len(views) + more, least_cost(view)
            settings = Simulations(plan.planner, most, least, descends=not is_hurried)
            best = best_simulated(view, question, codes, settings)
            if best.found is not None and math.isfinite(best.cost):
                found.append(best.plan)
    best_plan = fastest(problem, found)
    if walks and is_hurried and can_walk(problem) and has_many_devices(problem):
        best_plan = walked_on(problem, best_plan, own, best_plan.seed + 1)
    elif walks and can_walk(problem) and not is_hurried:
        most = WALKED_PART * most_stages
        walked = walked_over_stages(problem, best_plan, own, plan.seed, most)
        best_plan = fastest(problem, [best_plan, *([] if walked is None else [walked])])
    if best_plan.runs_like(plan):
        return plan
    return best_plan.changed(bound=_bound(problem, plan.bound, best_plan))


def _time_of(budget: Budget) -> Budget:
    """The seconds that are left of a budget, and none of its evaluations."""
    if budget.cpu_seconds is not None:
        return Budget(cpu_seconds=max(budget.seconds_left, 1e-9))
    return Budget(seconds=None if budget.seconds is None else max(budget.seconds_left, 1e-9))


def _with_walked(
    view: Problem, question: Question, codes: list[Code], walked: list[Code]
) -> list[Code]:
    """The first placement, those of walks by the clock from all, and the others by the clock."""
    found = [codes[0], *walked, *best_clocked(view, question, codes[1:])]
    return list({code.tobytes(): code for code in found}.values())


def _num_stages(question: Question, codes: list[Code]) -> int:
    """Of all placements, replicas counted."""
    return sum(stage.replicas for code in codes for stage in decode(code, question.options))


def _bound(problem: Problem, known: Bound, plan: Plan) -> Bound:
    """How far another plan is from what is known to be the least, by the closed form."""
    placement = placement_of(problem, plan)
    least_s, is_price = known.step_time_s, problem.job.objective == "price"
    if not least_s or placement is None or is_price:
        return bound_for(problem, plan)
    gap = closed_form_of_plan_s(problem, plan, placement) / least_s - 1
    if gap < -ROUNDING:
        return bound_for(problem, plan)
    return Bound(
        step_time_s=least_s,
        gap=max(0.0, gap),
        status="proven" if gap <= ROUNDING and known.status == "proven" else "bounded",
    )


def _newest(problem: Problem, budget: Budget) -> list[Plan]:
    """Plans of the last finds, the newest first."""
    return _made(problem, reversed(budget.finds), MOST_HURRIED_FINDS)


def finds_of(problem: Problem, budget: Budget, most: int = MOST_BEST_FINDS) -> list[Plan]:
    """Plans of the best finds for a problem, those of its views in turn, by the closed form.

    Args:
        problem: What was asked.
        budget: That found them.
        most: So many of each view.
    """
    of_view: dict[Hashable, list[Find]] = {id(view): [] for view in problem.views}
    for find in budget.finds:
        if find.view in of_view:
            of_view[find.view].append(find)
    # The last find of a view is its best.
    newest = [reversed(finds[-most:]) for finds in of_view.values()]
    in_turn = (find for find in chain.from_iterable(zip_longest(*newest)) if find is not None)
    return [find.plan() for find in in_turn if find.plan is not None]


def _of_all_views(problem: Problem, budget: Budget) -> list[Plan]:
    """The same of each view in turn."""
    of_view: dict[Hashable, list[Find]] = defaultdict(list)
    for find in reversed(budget.finds):
        of_view[find.view].append(find)
    in_turn = chain.from_iterable(zip_longest(*of_view.values()))
    return _made(problem, (find for find in in_turn if find is not None), MOST_FINDS)


def _made(problem: Problem, finds: Iterable[Find], most: int) -> list[Plan]:
    """Plans of the first finds; finds for other sizes of micro-batches are none."""
    plans = (find.plan() for find in finds if find.plan is not None)
    return list(islice((plan for plan in plans if plan.job == problem.job), most))


def _codes(question: Question, plans: list[Plan]) -> list[Code]:
    """Of plans that are placements of its view and fit there, each once."""
    codes = [question.code_of(plan) for plan in plans]
    return list({code.tobytes(): code for code in codes if code is not None}.values())
