"""The baseline `uniform-3d`: every even plan, and the best by the simulator.

What a Megatron user would find by hand: tensor-parallel degree, pipeline stages, replicas,
recomputation of everything or nothing, optimizer state whole or sharded, all the same everywhere
(`heterps_agents.search.uniform_shapes`). Those whose bounds rule them out are not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.search.uniform_costs import Quick, UniformCosts
from heterps_agents.search.uniform_shapes import EvenStrategy, even_strategies, plan_of_strategy
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import placements_bound_s
from heterps_envs.closed_form.usable import where_layers_fit
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, is_feasible, simulated_step_time_s

NAME = "uniform-3d"
# So many plans that fit, or are no better than the best, are simulated, the best by the closed form
# first, and so many in all.
MOST_FITTING, MOST_SIMULATED = 64, 256
# Where time is limited, after so many in a row that were no better the best one stands.
MOST_HURRIED = 24
# Problems are left out whose bound is so many times what the best of others costs by the closed
# form, which is 15 % off now and then.
NO_PROMISE = 1.3


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


class Found(NamedTuple):
    """The best even plan of several problems, up to now.

    Attributes:
        number: Of the problem.
        plan: For it.
    """

    number: int
    plan: UniformPlan


@register(NAME)
class Uniform:
    """The planner; it keeps the micro-batch size of the job.

    Attributes:
        asks_simulator: Whether its plans fit, the simulator says, and not the rule of planners.
    """

    name, chooses_options, asks_simulator = NAME, True, True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best even plan.

        Raises:
            InfeasibleError: None keeps memory and the throughput floor; says what is missing where
                least is.
        """
        problem = where_layers_fit(problem) if problem.strategy.is_plain else problem
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
    found = best_uniform_of_each([problem], budget, seed, below)
    return found[-1].plan if found else None


def best_uniform_of_each(
    problems: Sequence[Problem], budget: Budget, seed: int = 0, below: float = math.inf
) -> list[Found]:
    """Even plans for one of several problems that are told apart by what they cost.

    Those that promise most are simulated first, whatever problem they are for.

    Args:
        problems: A job with several sizes of micro-batches.
        budget: One evaluation is one simulated plan; the first is simulated in any case.
        seed: That plans carry.
        below: Plans that cost as much are not wanted.

    Returns:
        Each that was better than all before it, the best one last.
    """
    found: list[Found] = []
    num_fitting, num_simulated, least = 0, 0, below
    is_hurried = budget.has_time_limit
    most_fitting = MOST_HURRIED if is_hurried else MOST_FITTING
    for entry in _by_closed_form(problems, below, budget):
        if entry.least_cost >= least:
            continue
        problem = problems[entry.number]
        plan = plan_of_strategy(problem, entry.strategy, NAME, seed)
        if entry.is_late:
            plan = plan.changed(overlaps_reduce=False)
        step_time_s = simulated_step_time_s(problem, plan)
        budget.spend()
        plan = plan.changed(predicted_step_time_s=step_time_s)
        cost = step_time_s * entry.weight
        # One that is no better need not fit: its memory is not looked at.
        if cost >= least:
            num_fitting += 1
        elif is_feasible(problem, plan):
            num_fitting, least = 1 if is_hurried else num_fitting + 1, cost
            found.append(Found(entry.number, UniformPlan(plan, cost, entry.strategy)))
            budget.found(cost, partial(Plan.changed, plan), view=NAME)
        num_simulated += 1
        if num_fitting >= most_fitting or num_simulated >= MOST_SIMULATED or budget.is_exhausted:
            break
    return found


class _Entry(NamedTuple):
    """A strategy for one of some problems.

    Attributes:
        cost: By the closed form; entries are sorted by it.
        number: Of the problem.
        strategy: One that may fit.
        is_late: Gradient sums come after backward passes.
        least_cost: It costs no less.
        weight: What seconds count as.
    """

    cost: float
    number: int
    strategy: EvenStrategy
    is_late: bool
    least_cost: float
    weight: float


def _by_closed_form(problems: Sequence[Problem], below: float, budget: Budget) -> list[_Entry]:
    """What may fit and cost less than `below`, the best by the closed form first.

    Problems come first whose bound is least. As soon as there is an entry, the end of the time ends
    this, and so does a bound far above what an entry costs.
    """
    entries: list[_Entry] = []
    for number, bound in _by_bound(problems):
        problem = problems[number]
        least = min((entry.cost for entry in entries), default=math.inf)
        if entries and (budget.is_exhausted or bound > NO_PROMISE * least):
            break
        strategies = list(even_strategies(problem))
        costs = UniformCosts(problem).quick(strategies)
        for strategy, quick in zip(strategies, costs, strict=True):
            weight = _weight(problem, quick)
            least = quick.least_s * weight
            if quick.lacks_bytes <= 0 and least < below:
                entries += [
                    _Entry(step_s * weight, number, strategy, is_late, least, weight)
                    for is_late, step_s in _sums(problem.job, strategy, quick)
                ]
    return sorted(entries)


def _by_bound(problems: Sequence[Problem]) -> list[tuple[int, float]]:
    """Numbers of problems and what no plan for them costs less than; 0 where that is not known."""
    if len(problems) == 1 or problems[0].job.objective == "price":
        return [(number, 0.0) for number in range(len(problems))]
    bounds = enumerate(map(placements_bound_s, problems))
    return sorted(bounds, key=lambda each: each[1])


def _sums(job: Job, strategy: EvenStrategy, quick: Quick) -> list[tuple[bool, float]]:
    """Whether the plan puts gradient sums after backward passes, and the step time of that.

    The job's word about them counts; plans without sums are the same both ways.
    """
    if job.overlaps_reduce is not None or strategy.shape.num_replicas == 1:
        return [(False, quick.late_s if job.overlaps_reduce is False else quick.early_s)]
    return [(False, quick.early_s), (True, quick.late_s)]


def _weight(problem: Problem, quick: Quick) -> float:
    """What seconds count as: the price of the devices where the job asks for the cheapest."""
    return quick.price_usd_per_hour if problem.job.objective == "price" else 1.0


def _why_none(problem: Problem) -> str:
    """What the simulator says of the plan that lacks the fewest bytes."""
    strategies = list(even_strategies(problem))
    if not strategies:
        return "no node holds groups of the degrees that are allowed"
    quick = zip(UniformCosts(problem).quick(strategies), strategies, strict=True)
    _, nearest = min(quick, key=lambda each: (each[0].lacks_bytes, each[0].step_time_s))
    reasons = estimate(problem, plan_of_strategy(problem, nearest, NAME, 0)).reasons
    return f"none of {len(strategies)} even plans fits; the nearest: {'; '.join(reasons)}"
