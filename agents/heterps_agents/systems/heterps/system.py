"""The system `heterps-price`: HeterPS's cheapest classes and counts, as a plan of ours.

HeterPS rents devices: it looks for the least price of a sample under a throughput floor, in the
steady state of a pipeline, and counts no memory. Classes and counts are found exactly for devices
that are rented (`elastic_counts`), with at most those of a class in each stage. Where stages of one
class ask for more than that together, the stages get exact counts of what there is (`provisioning`)
and the class's price rises by a little for the next try; the cheapest of all tries is the answer.
The steady state knows no filling of a pipeline: where a step of ours would miss the floor by it,
the method is asked for a higher one.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import PERIOD, OwnCost, System, SystemAnswer
from heterps_agents.systems.heterps.elastic_chain import (
    ElasticChain,
    ElasticPlan,
    plan_of,
    steady_chain,
)
from heterps_agents.systems.heterps.elastic_counts import cheapest
from heterps_agents.systems.heterps.provisioning import AmdahlStage, provision
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind

# How often prices rise, and by which factor.
MAX_TRIES, RISE = 80, 1.15
# What a free device costs while prices rise.
LEAST_PRICE_USD_PER_HOUR = 1e-6
# Floors that it is asked for, over that of the job.
FLOORS = (1.0, 1.03, 1.06, 1.1, 1.15, 1.2, 1.3, 1.4, 1.6)
# The bound of a try is of no interest.
TOLERANCE = 1e-3


@register("heterps-price")
class HeterpsPrice(System):
    """Neighbouring layers of one class are a stage; each stage gets the units that it needs."""

    name = "heterps-price"

    def why_not(self, problem: Problem) -> str | None:
        """Its one objective is the price of a sample."""
        if problem.job.objective != "price":
            return f"minimises the price of a sample; the job asks for {problem.job.objective}"
        return None

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """The cheapest stages, whose units share the micro-batches in turns."""
        tables, job = problem.tables, problem.job
        chain = steady_chain(tables)
        chain = chain._replace(max_units=np.minimum(chain.max_units, tables.device_count))
        floor = job.min_throughput_samples_per_s or 0.0
        first: SystemAnswer | None = None
        for factor in FLOORS:
            try:
                best = _cheapest_of_tries(problem, chain, floor * factor, budget)
            except InfeasibleError:
                if first is None:
                    raise
                break
            plan = bind(problem, best.stages, planner=self.name, seed=self.seed)
            found = SystemAnswer(plan, OwnCost(best.period_s, PERIOD))
            assert plan.predicted_step_time_s is not None
            if plan.predicted_step_time_s * floor <= job.global_batch_size:
                return found
            first = first or found
        assert first is not None
        return first


def _cheapest_of_tries(
    problem: Problem, chain: ElasticChain, floor: float, budget: Budget
) -> ElasticPlan:
    """The cheapest plan at the true prices whose stages find enough devices.

    Args:
        problem: What was asked.
        chain: Its layers in the steady state.
        floor: Samples per second; 0: none.
        budget: Spends a period that was solved for.

    Raises:
        InfeasibleError: No try has one.
    """
    counts = problem.tables.device_count
    period_s = _samples(problem) / floor if floor else math.inf
    prices = np.maximum(chain.price_usd_per_hour, LEAST_PRICE_USD_PER_HOUR)
    best: ElasticPlan | None = None
    reason: InfeasibleError | None = None
    for _ in range(MAX_TRIES):
        priced = chain._replace(price_usd_per_hour=prices)
        found = cheapest(priced, period_s, merges_equal=True, tolerance=TOLERANCE)
        budget.spend(found.targets)
        used = np.zeros_like(counts)
        for stage in found.plan.stages:
            used[stage.device_class] += stage.replicas
        is_enough = bool((used <= counts).all())
        try:
            stages = found.plan.stages if is_enough else _sharing(problem, chain, found.plan, floor)
        except InfeasibleError as error:
            reason = reason or error
        else:
            tried = plan_of(chain, stages)
            if best is None or tried.usd_per_micro_batch < best.usd_per_micro_batch:
                best = tried
        if is_enough or budget.is_exhausted:
            break
        prices = np.where(used > counts, prices * RISE, prices)
    if best is None:
        assert reason is not None
        raise reason
    return best


def _samples(problem: Problem) -> float:
    """Of a micro-batch, on average."""
    return problem.job.global_batch_size / problem.job.num_micro_batches


def _sharing(problem: Problem, chain: ElasticChain, plan: ElasticPlan, floor: float) -> Placement:
    """The stages of a plan with the cheapest counts that the devices suffice for.

    Raises:
        InfeasibleError: There are none.
    """
    found = provision(
        [_amdahl(problem, chain, plan, index) for index in range(len(plan.stages))],
        batch=_samples(problem),
        samples=_samples(problem),
        min_throughput=floor,
        available={entry.name: entry.count for entry in problem.classes},
    )
    return tuple(
        PlacedStage(stage.first_layer, stage.last_layer, stage.device_class, units)
        for stage, units in zip(plan.stages, found.units, strict=True)
    )


def _amdahl(problem: Problem, chain: ElasticChain, plan: ElasticPlan, index: int) -> AmdahlStage:
    """A stage and the message after it, with the seconds of one micro-batch."""
    stage = plan.stages[index]
    part, kind = slice(stage.first_layer, stage.last_layer + 1), stage.device_class
    fixed_s = float(chain.fixed_s[part, kind].sum())
    shared_s = float(chain.shared_s[part, kind].sum())
    message_s = 0.0
    if index + 1 < len(plan.stages):
        cut = stage.last_layer, kind, plan.stages[index + 1].device_class
        message_s = float(chain.link_shared_s[cut])
    alone_s = fixed_s + shared_s
    # Where gradient sums outweigh what units share, more of them make it slower.
    helps = shared_s > 0
    return AmdahlStage(
        compute_s=alone_s,
        compute_share=shared_s / alone_s if helps else 0.0,
        communication_s=message_s,
        communication_share=1.0,
        price_usd_per_hour=float(chain.price_usd_per_hour[kind]),
        max_units=int(chain.max_units[kind]) if helps else 1,
        kind=problem.classes[kind].name,
    )
