"""Lower bounds on the closed-form step time of every placement, in a fraction of a millisecond.

Give every device class a price `lambda_d` per device-second so that all devices together cost 1 per
second: `sum_d n_d lambda_d = 1`. A step of T seconds then costs at most T. Layer l costs at least
`min_o g_o lambda_d(o) (M compute_s[l, o] + optimizer_s[l, o])`, whatever option o it is carried out
by, with `g_o` devices of class `d(o)`, and however many replicas share its micro-batches (k groups
do ceil(M / k) each, so M or more in all). The sum over the layers is a lower bound on T for any
prices: the dual of the linear programme that splits layers freely. Two more: the slowest layer
alone on its best devices, and one micro-batch through the model. Where memory binds,
`heterps_envs.closed_form.memory_bounds` says more; `lower_bound` takes the best.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.formula import MAX_REPLICAS
from heterps_envs.closed_form.kernel_tables import ring_links
from heterps_envs.closed_form.layer_needs import layers_that_fit, option_work_s
from heterps_envs.closed_form.memory_bounds import memory_cheapest_step, memory_price_bound
from heterps_envs.closed_form.objective import ROUNDING, TIE_BREAK_USD_PER_HOUR
from heterps_envs.closed_form.placement import Placement, closed_form_of_plan_s, placement_of
from heterps_envs.closed_form.stage_formula import stage_after_s
from heterps_envs.compiled import checked
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import bounding_tables, keeps_to, option_tables, options_of
from heterps_envs.problem import Problem

# Additions and differences of a stage's time that each may lose a last digit.
_LOST = 8


def price_bound(tables: CostTables, iterations: int = 200) -> tuple[float, Floats]:
    """A lower bound on the closed-form step time of every feasible placement.

    Args:
        tables: The problem's cost tables.
        iterations: Multiplicative updates of the prices (Arora, Hazan and Kale, 2012).

    Returns:
        Seconds (inf where a layer fits on no device), and the prices (T,) of a device-second for
        each class (not option), with `sum(device_count * prices) == 1`.
    """
    allowed = layers_that_fit(tables)
    work = np.where(allowed, option_work_s(tables) * tables.stage_options.devices_of_option, np.inf)
    work = np.ascontiguousarray(work)
    prices = np.zeros(tables.num_classes)
    relaxed = _maximise(
        work,
        tables.stage_options.class_of_option,
        tables.device_count.astype(float),
        iterations,
        prices,
    )
    once = np.where(allowed, tables.compute_s, np.inf).min(axis=1, initial=np.inf).sum()
    return float(max(relaxed, once, layer_bound_s(tables).max())), prices


def lower_bound(tables: CostTables) -> float:
    """The best lower bound here on the closed-form step time of every feasible placement; seconds.

    A few times as much work as `price_bound`.
    """
    return max(price_bound(tables)[0], memory_price_bound(tables).value)


def placements_bound_s(problem: Problem) -> float:
    """The same of the placements that a problem's strategy allows; found once for each problem.

    Raises:
        HeterpsError: See `options_of`.
    """
    known = problem.derived.get(placements_bound_s)
    if not isinstance(known, float):
        view = problem.views[-1]
        known = lower_bound(option_tables(view, options_of(view, problem.strategy)))
        problem.derived[placements_bound_s] = known
    return known


def plans_bound_s(problem: Problem) -> float:
    """The same of every plan that a problem's strategy allows; found once for each problem.

    Raises:
        HeterpsError: See `bounding_tables`.
    """
    known = problem.derived.get(plans_bound_s)
    if not isinstance(known, float):
        known = lower_bound(bounding_tables(problem))
        problem.derived[plans_bound_s] = known
    return known


def least_cost(problem: Problem) -> float:
    """What no plan for a problem costs less than: seconds, or US dollars per hour times seconds."""
    if problem.job.objective == "price":
        return cheapest_step(bounding_tables(problem))
    return plans_bound_s(problem)


def layer_bound_s(tables: CostTables) -> Floats:
    """(L,) lower bound on the step time from each layer alone: its best option and replicas."""
    out = np.empty(tables.num_layers)
    _best_alone(
        # In one order of its numbers: the kernel is compiled for each.
        np.ascontiguousarray(np.where(layers_that_fit(tables), tables.compute_s, np.inf)),
        np.ascontiguousarray(tables.optimizer_s),
        np.ascontiguousarray(tables.stage_options.gradient_bytes),
        tables.stage_options.shards_state,
        tables.most_replicas,
        *ring_links(tables),
        tables.num_micro_batches,
        out,
    )
    return out


def bound_for(problem: Problem, plan: Plan) -> Bound:
    """The bound, and how far the plan is from it at most.

    With the objective `price` the gap is that of the price, against a device-second at its own
    price instead of `lambda_d`; of plans that cost nothing it is that of the step. A plan that no
    placement describes has no closed form, so no gap. Of a plan that the bound is not about nothing
    is said: its strategy allows no such stages, or it is below the bound, since it fits by the
    simulator, and not by the rule of planners.
    """
    if not keeps_to(plan, problem.strategy):
        return Bound()
    step_time_s = plans_bound_s(problem)
    placement = placement_of(problem, plan)
    if placement is None or not 0 < step_time_s < math.inf:
        return Bound(step_time_s=step_time_s if step_time_s < math.inf else None)
    actual = closed_form_of_plan_s(problem, plan, placement)
    gap = actual / step_time_s - 1
    if gap < -ROUNDING:
        return Bound()
    if problem.job.objective == "price":
        least, price = cheapest_step(bounding_tables(problem)), _price(problem, placement)
        if least == 0 and price > 0:
            return Bound(step_time_s=step_time_s)
        if least > 0:
            gap = actual * price / least - 1
    return Bound(step_time_s=step_time_s, gap=max(0.0, gap), status="bounded")


def bound_by_optimum(
    problem: Problem, plan: Plan, step_time_s: float, price_usd_per_hour: float
) -> Bound:
    """How far a plan is from the optimum of the bounding tables: proven where it reaches it.

    Where options are open, such an optimum is of the placements that planners form, and a proof
    says no more than that: plans in other groups, or that fit by the simulator alone, may be below
    it; who says more than `proven` has to look for these (`exact.all_plans`). An optimum that has
    lost digits proves nothing; there `bound_for` says what no plan is below.

    Args:
        problem: What was asked.
        plan: The answer.
        step_time_s: Of the placement that costs least by `Problem.bounding_tables`.
        price_usd_per_hour: Of its devices.
    """
    share = certain_share(problem.tables, step_time_s)
    if share < 1 and not problem.strategy.is_plain:
        return bound_for(problem, plan)
    placement = placement_of(problem, plan)
    is_price = problem.job.objective == "price"
    step_time_s *= share
    # The cheapest plan's step is no bound: a dearer plan may be faster.
    least_s = plans_bound_s(problem) if is_price else step_time_s
    if placement is None:
        return Bound(step_time_s=least_s)
    actual = closed_form_of_plan_s(problem, plan, placement)
    if step_time_s <= 0:  # nothing takes any time: no share of it is a gap
        is_least = actual <= 0
        return Bound(step_time_s=step_time_s, gap=0.0, status="proven") if is_least else Bound()
    gap = actual / step_time_s - 1
    if is_price:
        price = _price(problem, placement)
        gap = (actual * (price + TIE_BREAK_USD_PER_HOUR)) / (
            step_time_s * (price_usd_per_hour + TIE_BREAK_USD_PER_HOUR)
        ) - 1
    if gap < -ROUNDING:  # it fits by the simulator, and not by the rule of planners
        return bound_for(problem, plan)
    if gap <= ROUNDING:
        # Others may be as cheap, and take another time.
        own_s = actual if is_price else step_time_s
        return Bound(step_time_s=own_s, gap=0.0, status="proven")
    return Bound(step_time_s=least_s, gap=gap, status="bounded")


def certain_share(tables: CostTables, step_time_s: float) -> float:
    """Of an optimum, what sums over layers have not lost digits of: 1 in all but odd problems.

    Stages are differences of sums from the first layer on: behind a layer of years the last digits
    of milliseconds are gone.
    """
    layers_s = tables.compute_s + tables.optimizer_s
    most_s = float(layers_s.sum(axis=0, where=np.isfinite(layers_s)).max(initial=0.0))
    lost_s = _LOST * np.finfo(float).eps * most_s * tables.num_micro_batches
    if step_time_s <= 0 or lost_s <= ROUNDING * step_time_s:
        return 1.0
    return max(0.0, 1 - lost_s / step_time_s)


def _price(problem: Problem, placement: Placement) -> float:
    per_hour = problem.tables.price_usd_per_hour
    return float(
        sum(per_hour[stage.device_class] * stage.replicas * stage.degree for stage in placement)
    )


def cheapest_step(tables: CostTables) -> float:
    """Lower bound of every placement on price per hour times step time (USD per hour x seconds)."""
    work = option_work_s(tables)
    priced = np.where(layers_that_fit(tables), work * tables.price_usd_per_hour, np.inf)
    least = float(priced.min(axis=1, initial=np.inf).sum())
    return max(least, memory_cheapest_step(tables).value)


@checked
def _maximise(work: Any, class_of: Any, count: Any, iterations: int, best_prices: Any) -> float:
    """Maximises `sum_l min_o prices[class of o] work[l, o]`; writes the best prices."""
    layers, options = work.shape
    if options == 0:  # below, the first one stands for none
        return np.inf
    prices = np.full(len(count), 1.0 / count.sum())
    load = np.zeros(len(count))
    best = -1.0
    for step in range(iterations):
        load[:] = 0.0
        value = 0.0
        for layer in range(layers):
            chosen, cost = 0, np.inf
            for option in range(options):
                if prices[class_of[option]] * work[layer, option] < cost:
                    chosen, cost = option, prices[class_of[option]] * work[layer, option]
            value += cost
            load[class_of[chosen]] += work[layer, chosen]
        if value > best:
            best = value
            best_prices[:] = prices
        if not value < np.inf:
            break
        # A class that is asked for more than its devices can do gets dearer.
        rate = 1.0 / math.sqrt(1.0 + step)
        scale = max((load / count).max(), 1e-300)
        prices *= np.exp(rate * load / count / scale)
        prices /= (prices * count).sum()
    return best


@checked
def _best_alone(
    compute_s: Any,
    optimizer_s: Any,
    gradient_bytes: Any,
    shards_state: Any,
    most: Any,
    node_size: Any,
    latency_s: Any,
    inverse_bandwidth: Any,
    num_micro_batches: int,
    out: Any,
) -> None:
    layers, options = compute_s.shape
    for layer in range(layers):
        best = np.inf
        for kind in range(options):
            for replicas in range(1, min(most[kind], num_micro_batches, MAX_REPLICAS) + 1):
                share = (num_micro_batches + replicas - 1) // replicas
                far = 1 if replicas > node_size[kind] else 0
                busy = share * compute_s[layer, kind] + stage_after_s(
                    gradient_bytes[layer, kind],
                    optimizer_s[layer, kind] / (replicas if shards_state[kind] else 1),
                    replicas,
                    latency_s[kind, far],
                    inverse_bandwidth[kind, far],
                )
                best = min(best, busy)
        out[layer] = best
