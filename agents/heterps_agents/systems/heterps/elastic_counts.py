"""Elastic counts: the cheapest chain of stages under a throughput floor, in polynomial time.

HeterPS's own problem (Liu et al., FGCS 148, 2023): every layer gets a class of devices, consecutive
layers of one class form a stage, a stage gets as many units as it needs, and each unit used costs
its price per hour. Counts are rented, not owned, so classes do not compete for devices, and memory
is not limited; for owned devices see `heterps_agents.exact.solve`.

A stage of k units passes one micro-batch every `tau(k) = A + B / k` seconds: Amdahl's law, A and B
sums over its layers. The link behind it has such a form too. All of them must keep the period
`P`. Hence for a given period each stage takes the smallest count that keeps it, and the least price
per hour is a dynamic programme over (cut, class behind it): O(L^2 T), since the smallest count only
grows with the layers of a stage.

The least price per hour falls in steps as the period grows, and what a sample costs is their
product. Between two periods a < b nothing costs less than `a * price(b)`, which lets `cheapest`
find the optimum over all periods by bisection of what is left, with a proof.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.heterps.elastic_chain import (
    ROUNDING,
    ElasticChain,
    ElasticPlan,
    explain_period,
    least_periods,
    plan_of,
)
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.compiled import checked, compiled

MAX_TARGETS = 2000


class Cheapest(NamedTuple):
    """The cheapest plan found, and how much cheaper another one can be.

    Attributes:
        plan: The plan.
        least_usd_per_micro_batch: No plan that keeps the floor costs less.
        targets: Periods that were solved for.
    """

    plan: ElasticPlan
    least_usd_per_micro_batch: float
    targets: int


def cheapest_at(
    chain: ElasticChain, period_s: float, merges_equal: bool = False
) -> ElasticPlan | None:
    """The plan of the least price per hour that keeps a period; None where none does.

    Args:
        chain: Layers and classes.
        period_s: Seconds from one micro-batch to the next, at most.
        merges_equal: Neighbouring layers of one class always share a stage, as in HeterPS.
            Otherwise a class may have several stages in a row, which Amdahl's law can reward.
    """
    prepared = _Prepared.of(chain)
    return prepared.solve(period_s, merges_equal)


def cheapest(
    chain: ElasticChain,
    period_s: float,
    *,
    merges_equal: bool = False,
    tolerance: float = 1e-7,
    max_targets: int = MAX_TARGETS,
) -> Cheapest:
    """The plan of the least price per micro-batch with at most a period, over all shorter ones too.

    Args:
        chain: Layers and classes.
        period_s: The throughput floor, as a period.
        merges_equal: See `cheapest_at`.
        tolerance: Relative gap at which it stops; at least some times `ROUNDING`.
        max_targets: Periods to solve for at most; the gap says what is left then.

    Raises:
        InfeasibleError: No plan keeps the period; names the layer or the link that limits most.
    """
    prepared = _Prepared.of(chain)
    slowest = prepared.solve(period_s, merges_equal)
    if slowest is None:
        raise InfeasibleError(explain_period(chain, period_s))
    best, order, targets = slowest, itertools.count(), 1
    # Periods between `low` and that of a plan which has the least price at its own period.
    low = float(least_periods(chain).max())
    parts = [(low * slowest.price_usd_per_hour, next(order), low, slowest)]
    while targets < max_targets:
        bound, _, low, right = parts[0]
        if bound >= best.period_s * best.price_usd_per_hour * (1 - tolerance):
            break
        heapq.heappop(parts)
        middle = math.sqrt(low * right.period_s) if low > 0 else right.period_s / 2
        plan = prepared.solve(middle, merges_equal)
        targets += 1
        heapq.heappush(parts, (middle * right.price_usd_per_hour, next(order), middle, right))
        if plan is not None:
            best = min(best, plan, key=lambda each: each.period_s * each.price_usd_per_hour)
            heapq.heappush(parts, (low * plan.price_usd_per_hour, next(order), low, plan))
    least = min(parts[0][0], best.period_s * best.price_usd_per_hour)
    return Cheapest(best, least / 3600, targets)


def elastic_frontier(
    chain: ElasticChain, num_targets: int = 64, merges_equal: bool = False
) -> list[ElasticPlan]:
    """Cost against throughput: the undominated plans of many periods, the fastest first.

    Args:
        chain: Layers and classes.
        num_targets: Periods to solve for, evenly spaced in the logarithm, from the least that any
            layer allows to that of the least price per hour of all.
        merges_equal: See `cheapest_at`.
    """
    prepared = _Prepared.of(chain)
    slowest = prepared.solve(math.inf, merges_equal)
    if slowest is None:
        return []
    low = max(float(least_periods(chain).max()), slowest.period_s * 1e-6)
    targets = np.geomspace(low, slowest.period_s, num_targets)
    found = [prepared.solve(float(target), merges_equal) for target in targets[:-1]]
    plans = [plan for plan in found if plan is not None] + [slowest]
    front: list[ElasticPlan] = []
    for plan in sorted(plans, key=lambda each: (each.period_s, each.price_usd_per_hour)):
        if not front or plan.usd_per_micro_batch < front[-1].usd_per_micro_batch * (1 - ROUNDING):
            front.append(plan)
    return front


class _Prepared(NamedTuple):
    """Prefix sums over the layers, for many periods."""

    chain: ElasticChain
    fixed: Floats
    shared: Floats
    barred: Integers

    @classmethod
    def of(cls, chain: ElasticChain) -> _Prepared:
        layers, classes = chain.fixed_s.shape
        allowed = np.isfinite(chain.fixed_s + chain.shared_s)
        fixed, shared = np.zeros((2, layers + 1, classes))
        np.cumsum(np.where(allowed, chain.fixed_s, 0.0), axis=0, out=fixed[1:])
        np.cumsum(np.where(allowed, chain.shared_s, 0.0), axis=0, out=shared[1:])
        # For each layer the last one up to it that a class cannot run; -1 for none.
        rows = np.where(allowed, -1, np.arange(layers)[:, None])
        return cls(chain, fixed, shared, np.maximum.accumulate(rows, axis=0))

    def solve(self, period_s: float, merges_equal: bool) -> ElasticPlan | None:
        price, stop_of, next_of, units_of = _sweep(self, period_s * (1 + ROUNDING), merges_equal)
        kind = int(price[0].argmin())
        if not price[0, kind] < math.inf:
            return None
        stages, start = [], 0
        while start < len(price) - 1:
            stop = int(stop_of[start, kind])
            stages.append(PlacedStage(start, stop - 1, kind, int(units_of[start, kind])))
            start, kind = stop, int(next_of[start, kind])
        return plan_of(self.chain, stages)


@compiled(inline="always")
def _least_units(fixed_s: float, shared_s: float, period_s: float, units: int, most: int) -> int:
    """The least count from `units` on with `fixed + shared / k <= period`; `most + 1`: none."""
    room = period_s - fixed_s
    if shared_s <= units * room:
        return units
    if room <= 0.0 or shared_s <= 0.0 or shared_s > most * room:
        return most + 1
    least = int(shared_s / room)
    while shared_s > least * room:
        least += 1
    return least


@checked
def _sweep(
    prepared: _Prepared, period_s: float, merges_equal: bool
) -> tuple[Floats, Integers, Integers, Integers]:
    """The least price per hour of the layers from each cut on, by the class behind it.

    For each stage's end the classes behind it are sorted by the units that their link needs. The
    units that the compute needs grow as layers are put in front, so a pointer walks this list: the
    classes before it cost what they cost, those after it ask for more units.

    Returns:
        (L + 1, T) each: US dollars per hour; the end of the first stage, the class behind it, and
        its units.
    """
    fixed, shared, barred = prepared.fixed, prepared.shared, prepared.barred
    link_fixed_s, link_shared_s = prepared.chain.link_fixed_s, prepared.chain.link_shared_s
    unit_price, max_units = prepared.chain.price_usd_per_hour, prepared.chain.max_units
    layers, classes = fixed.shape[0] - 1, fixed.shape[1]
    needed, behind = np.empty(classes + 1, np.int64), np.empty(classes + 1, np.int64)
    dearest, after = np.empty(classes + 1), np.empty(classes + 1, np.int64)
    price = np.full((layers + 1, classes), np.inf)
    stop_of = np.zeros((layers + 1, classes), np.int64)
    next_of, units_of = np.zeros_like(stop_of), np.zeros_like(stop_of)
    for stop in range(layers, 0, -1):
        for kind in range(classes):
            most = max_units[kind]
            count = 0
            if stop == layers:
                needed[0], behind[0], count = 1, 0, 1
            for other in range(classes if stop < layers else 0):
                if price[stop, other] == np.inf or (merges_equal and other == kind):
                    continue
                units = _least_units(
                    link_fixed_s[stop - 1, kind, other],
                    link_shared_s[stop - 1, kind, other],
                    period_s, 1, most,
                )  # fmt: skip
                if units > most:
                    continue
                place = count
                while place > 0 and needed[place - 1] > units:
                    needed[place], behind[place] = needed[place - 1], behind[place - 1]
                    place -= 1
                needed[place], behind[place] = units, other
                count += 1
            if count == 0:
                continue
            dearest[count] = np.inf
            for row in range(count - 1, -1, -1):
                rest = price[stop, behind[row]] if stop < layers else 0.0
                with_units = rest + needed[row] * unit_price[kind]
                dearest[row], after[row] = dearest[row + 1], after[row + 1]
                if with_units < dearest[row]:
                    dearest[row], after[row] = with_units, row
            pointer, cheapest_rest, chosen, units = 0, np.inf, 0, 1
            for start in range(stop - 1, barred[stop - 1, kind], -1):
                units = _least_units(
                    fixed[stop, kind] - fixed[start, kind],
                    shared[stop, kind] - shared[start, kind],
                    period_s, units, most,
                )  # fmt: skip
                if units > most:
                    break
                while pointer < count and needed[pointer] <= units:
                    rest = price[stop, behind[pointer]] if stop < layers else 0.0
                    if rest < cheapest_rest:
                        cheapest_rest, chosen = rest, behind[pointer]
                    pointer += 1
                value = cheapest_rest + units * unit_price[kind]
                if value < price[start, kind]:
                    price[start, kind], stop_of[start, kind] = value, stop
                    next_of[start, kind], units_of[start, kind] = chosen, units
                if dearest[pointer] < price[start, kind]:
                    row = after[pointer]
                    price[start, kind], stop_of[start, kind] = dearest[pointer], stop
                    next_of[start, kind], units_of[start, kind] = behind[row], needed[row]
    return price, stop_of, next_of, units_of
