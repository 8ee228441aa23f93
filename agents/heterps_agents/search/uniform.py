"""The baseline `uniform-3d`: every even plan, and the best by the simulator.

What a Megatron user would find by hand: tensor-parallel degree, pipeline stages, replicas,
recomputation of everything or nothing, optimizer state whole or sharded, all the same everywhere
(`heterps_agents.search.uniform_shapes`). Those whose bounds rule them out are not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.search.uniform_costs import Quick, UniformCosts
from heterps_agents.search.uniform_shapes import EvenStrategy, even_strategies, plan_of_strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, is_feasible, simulated_step_time_s

NAME = "uniform-3d"
# So many plans that fit, or are no better than the best, are simulated, the best by the closed form
# first, and so many in all.
MOST_FITTING, MOST_SIMULATED = 64, 256


class UniformPlan(NamedTuple):
    """The best even plan of a problem.

    Attributes:
        plan: With its simulated step time. Its job has the micro-batch size.
        cost: What the job minimises: seconds of a step, or those times dollars per hour.
        strategy: What the plan stands for.
    """

    plan: Plan
    cost: float
    strategy: EvenStrategy


@register(NAME)
class Uniform:
    """The planner; it keeps the micro-batch size of the job."""

    name, chooses_options = NAME, True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best even plan.

        Raises:
            InfeasibleError: None keeps memory and the throughput floor; says what is missing where
                least is.
        """
        problem = on_usable_devices(problem) if problem.strategy.is_plain else problem
        found = best_uniform(problem, budget, self.seed)
        if found is None:
            raise InfeasibleError(f"{self.name}: {_why_none(problem)}")
        return found.plan


def uniform_plans(
    problem: Problem, micro_batch_sizes: Iterable[int], budget: Budget | None = None
) -> list[UniformPlan]:
    """The best even plan with each of some micro-batch sizes, the best of all first.

    Sizes with which no plan fits, or none can be as good as one found before, are left out.

    Args:
        problem: What is asked; its job's own micro-batch size does not count.
        micro_batch_sizes: Samples of a micro-batch.
        budget: One evaluation is one simulated plan.
    """
    spent, found = budget or Budget(), list[UniformPlan]()
    for size in micro_batch_sizes:
        job = problem.job.changed(micro_batch_size=size, unequal_micro_batch_sizes=None)
        sized, least = replace(problem, job=job), min((e.cost for e in found), default=math.inf)
        best = best_uniform(sized, spent, below=least)
        found += [best] if best is not None else []
    return sorted(found, key=lambda each: each.cost)


def micro_batch_candidates(problem: Problem) -> list[int]:
    """Micro-batch sizes to choose from: powers of two, and what divides the batch.

    Where layer times were measured with several sizes, none above the largest.
    """
    batch = problem.job.global_batch_size
    measured = {entry.micro_batch_size for entry in problem.profile.measurements}
    most = min(batch, max(measured)) if len(measured) > 1 else batch
    return [size for size in range(1, most + 1) if batch % size == 0 or size & (size - 1) == 0]


def best_uniform(
    problem: Problem, budget: Budget, seed: int = 0, below: float = math.inf
) -> UniformPlan | None:
    """The best even plan for a problem with its micro-batch size.

    Args:
        problem: What is asked.
        budget: One evaluation is one simulated plan; the first is simulated in any case.
        seed: That the plan carries.
        below: Plans that cost as much are not wanted.

    Returns:
        None where no even plan fits, keeps the floor and costs less than `below`.
    """
    best: UniformPlan | None = None
    num_fitting, num_simulated, least = 0, 0, below
    for strategy, quick in _by_closed_form(problem, below, budget):
        if quick.least_s * _weight(problem, quick) >= least:
            continue
        plan = plan_of_strategy(problem, strategy, NAME, seed)
        step_time_s = simulated_step_time_s(problem, plan)
        budget.spend()
        plan = plan.changed(predicted_step_time_s=step_time_s)
        cost = step_time_s * _weight(problem, quick)
        # One that is no better need not fit: its memory is not looked at.
        if cost >= least:
            num_fitting += 1
        elif is_feasible(problem, plan):
            num_fitting += 1
            best, least = UniformPlan(plan, cost, strategy), cost
            budget.found(cost, partial(Plan.changed, plan), view=NAME)
        num_simulated += 1
        if num_fitting >= MOST_FITTING or num_simulated >= MOST_SIMULATED or budget.is_exhausted:
            break
    return best


def _by_closed_form(
    problem: Problem, below: float, budget: Budget
) -> list[tuple[EvenStrategy, Quick]]:
    """Strategies that may fit and cost less than `below`, the best by the closed form first.

    Where the time ends, of those with the least bounds, as soon as one of them may fit.
    """
    costs, quick = UniformCosts(problem), list[tuple[EvenStrategy, Quick]]()
    bounded = ((costs.least_cost(strategy), strategy) for strategy in even_strategies(problem))
    for least, strategy in sorted(bounded, key=lambda entry: entry[0]):
        if least >= below or (budget.is_exhausted and any(q.lacks_bytes <= 0 for _, q in quick)):
            break
        quick.append((strategy, costs.quick(strategy)))
    fitting = [entry for entry in quick if entry[1].lacks_bytes <= 0]
    return sorted(fitting, key=lambda entry: entry[1].step_time_s * _weight(problem, entry[1]))


def _weight(problem: Problem, quick: Quick) -> float:
    """What seconds count as: the price of the devices where the job asks for the cheapest."""
    return quick.price_usd_per_hour if problem.job.objective == "price" else 1.0


def _why_none(problem: Problem) -> str:
    """What the simulator says of the plan that lacks the fewest bytes."""
    costs = UniformCosts(problem)
    if not any(even_strategies(problem)):
        return "no node holds groups of the degrees that are allowed"
    quick = {strategy: costs.quick(strategy) for strategy in even_strategies(problem)}
    nearest = min(quick, key=lambda each: (quick[each].lacks_bytes, quick[each].step_time_s))
    reasons = estimate(problem, plan_of_strategy(problem, nearest, NAME, 0)).reasons
    return f"none of {len(quick)} even plans fits; the nearest: {'; '.join(reasons)}"
