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
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit

from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.compiled import checked
from heterps_envs.cost_tables import CostTables

# A period that is kept but for the rounding of sums is kept.
ROUNDING = 1e-9
MAX_UNITS = 1 << 20
MAX_TARGETS = 2000


class ElasticChain(NamedTuple):
    """L layers, T classes; seconds of one micro-batch.

    Attributes:
        fixed_s: (L, T) A of each layer: what more units do not shorten; inf where it cannot run.
        shared_s: (L, T) B of each layer: what k units share. May be negative, as that of a ring
            all-reduce is, but not below `-fixed_s`.
        link_fixed_s: (L, T, T) the same of the message over the cut behind a layer, by the classes
            before and behind it.
        link_shared_s: (L, T, T) what the units before the cut share.
        price_usd_per_hour: (T,) of one unit.
        max_units: (T,) units that one stage may have.
    """

    fixed_s: Floats
    shared_s: Floats
    link_fixed_s: Floats
    link_shared_s: Floats
    price_usd_per_hour: Floats
    max_units: Integers


class ElasticPlan(NamedTuple):
    """Stages with their units.

    Attributes:
        stages: Front first; `replicas` are the units.
        period_s: Seconds from one micro-batch to the next.
        price_usd_per_hour: Of all units.
    """

    stages: Placement
    period_s: float
    price_usd_per_hour: float

    @property
    def usd_per_micro_batch(self) -> float:
        """What one micro-batch costs."""
        return self.price_usd_per_hour / 3600 * self.period_s


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


def steady_chain(tables: CostTables, max_units: int = MAX_UNITS) -> ElasticChain:
    """The steady state of a training pipeline: what the closed form tends to with M.

    Units share the micro-batches; each step ends with an optimizer step and a ring all-reduce of
    `2 (k - 1) / k * bytes / bandwidth` seconds, shared by the M micro-batches of the step. Its
    latency, which grows with k, is left out: the period is never above the closed form's.
    """
    micro_batches = tables.num_micro_batches
    inside = np.diagonal(tables.inverse_bandwidth_s_per_byte)
    reduce_s = 2 * tables.gradient_bytes[:, None] * inside / micro_batches
    message_s = tables.output_bytes[:, None, None] * tables.inverse_bandwidth_s_per_byte
    return ElasticChain(
        fixed_s=tables.optimizer_s / micro_batches + reduce_s,
        shared_s=tables.compute_s - reduce_s,
        link_fixed_s=np.zeros_like(message_s),
        link_shared_s=message_s,
        price_usd_per_hour=np.asarray(tables.price_usd_per_hour, dtype=float),
        max_units=np.full(tables.num_classes, min(max_units, micro_batches), np.int64),
    )


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
    low = float(_least_periods(chain).max())
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
    low = max(float(_least_periods(chain).max()), slowest.period_s * 1e-6)
    targets = np.geomspace(low, slowest.period_s, num_targets)
    found = [prepared.solve(float(target), merges_equal) for target in targets[:-1]]
    plans = [plan for plan in found if plan is not None] + [slowest]
    front: list[ElasticPlan] = []
    for plan in sorted(plans, key=lambda each: (each.period_s, each.price_usd_per_hour)):
        if not front or plan.usd_per_micro_batch < front[-1].usd_per_micro_batch * (1 - ROUNDING):
            front.append(plan)
    return front


def explain_period(chain: ElasticChain, period_s: float) -> str:
    """Why no plan keeps a period: the layer that limits most, or the links."""
    least = _least_periods(chain)
    slowest = int(least.argmax())
    if least[slowest] > period_s * (1 + ROUNDING):
        return (
            f"no plan passes a micro-batch every {period_s:.6g} s: the stage with layer {slowest} "
            f"takes {least[slowest]:.6g} s at least, {least[slowest] - period_s:.6g} s more, "
            "whatever its class and units"
        )
    return (
        f"no plan passes a micro-batch every {period_s:.6g} s, although each layer alone can "
        f"(layer {slowest} in {least[slowest]:.6g} s): the links between their classes, or what "
        "units of a stage do not share, take longer"
    )


def stage_period_s(fixed_s: float, shared_s: float, units: int) -> float:
    """Seconds that one micro-batch takes of a stage with k units: `tau(k)`."""
    return fixed_s + shared_s / units


def _least_periods(chain: ElasticChain) -> Floats:
    """(L,) the shortest period of each layer alone."""
    few = chain.fixed_s + chain.shared_s
    many = chain.fixed_s + chain.shared_s / chain.max_units
    return np.asarray(np.minimum(few, many).min(axis=1))


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


def plan_of(chain: ElasticChain, stages: Sequence[PlacedStage]) -> ElasticPlan:
    """Period and price of stages with their units, from the definition."""
    period_s = price = 0.0
    for stage, behind in zip(stages, [*stages[1:], None], strict=True):
        part = slice(stage.first_layer, stage.last_layer + 1)
        kind, units = stage.device_class, stage.replicas
        fixed, shared = chain.fixed_s[part, kind].sum(), chain.shared_s[part, kind].sum()
        period_s = max(period_s, stage_period_s(float(fixed), float(shared), units))
        price += units * float(chain.price_usd_per_hour[kind])
        if behind is not None:
            cut = (stage.last_layer, kind, behind.device_class)
            message = stage_period_s(
                float(chain.link_fixed_s[cut]), float(chain.link_shared_s[cut]), units
            )
            period_s = max(period_s, message)
    return ElasticPlan(tuple(stages), period_s, price)


@njit(cache=True, inline="always")
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
