"""The planner `greedy`: the stage that buys most for its price, under a target step time.

A linear programme gives every device class a price (`heterps_envs.closed_form.bounds`): the value
of one of its seconds. For a target step time, stages are opened back to front; each grows to the
front as far as memory and target allow, and the one that covers most value for the price of its
devices is taken. The target is bisected. Prices of memory, and in US dollars, are tried the same
way.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.search.stage_changes import copy_stages
from heterps_envs.arrays import Code, Floats, Integers
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.formula import (
    Built,
    append_stage,
    never_helps,
    next_replicas,
    replicas_left,
)
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.memory_bounds import class_memory_bytes
from heterps_envs.closed_form.objective import STEP_TIME, code_of, reverse_stages, search_cost
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import MINUS_ONE, ZERO, merged, uncounted, uncounted_helper
from heterps_envs.cost_tables import CostTables

# The layers before a stage delay it at least by their compute on the fastest class; in fact by
# more. Targets are kept with each of these multiples of that least delay.
FILL_FACTORS = (1.0, 2.0)
BISECTIONS, PRICE_TARGETS = 12, 16
# A model may take no time at all; targets are ratios of each other.
LEAST_TARGET_S = 1e-15
# What a stage is worth: (2, L + 1) value of the layers before each cut, and seconds to keep for
# them; (O,) price of a replica. Two arrays and no tuple: calls of short kernels are a cost here.
_Rule = tuple[Floats, Floats]
# Whatever completes the placement is taken before anything that does not.
_COMPLETES = 1e6


@search_planner("greedy")
def greedy_code(question: Question) -> Code | None:
    """Code of the best placement that greedy finds; None when nothing fits the memory.

    About a hundred placements, without randomness; starts are ignored. The budget is charged one
    evaluation for each target. The clock is read before a target is bisected, about every tenth of
    a millisecond. A placement that misses the floor is returned if none keeps it.
    """
    tables, kernel, goal, *_ = question
    lower_s, prices = price_bound(tables)
    if math.isinf(lower_s):
        return None
    search = _Search(question)
    rules = _rules(tables, kernel, prices)
    for rule in rules:
        search.bisect(rule, lower_s)
    if goal.is_price and math.isfinite(search.fastest_s):
        slowest_s = goal.floor_s if math.isfinite(goal.floor_s) else 100 * search.fastest_s
        least_s = max(search.fastest_s, LEAST_TARGET_S)
        for target_s in np.geomspace(least_s, max(slowest_s, least_s), PRICE_TARGETS):
            for rule in rules[: len(rules) // len(FILL_FACTORS)]:
                search.attempt(rule, float(target_s))
    return search.best_code


def _rules(tables: CostTables, kernel: KernelTables, prices: Floats) -> list[_Rule]:
    """Three ways, each with every multiple of the least delay in turn."""
    prices = np.maximum(prices, 1e-3 * prices.max())
    size, class_of = tables.stage_options.devices_of_option, tables.stage_options.class_of_option
    of_option = prices[class_of] * size
    worth = tables.compute_s * of_option
    dollars = np.maximum(tables.price_usd_per_hour, 1e-3 * tables.price_usd_per_hour.max())
    held = (
        tables.stage_options.state_bytes
        + tables.stage_options.sharded_bytes
        + tables.stage_options.activation_bytes
    )
    ways = [
        (worth.min(axis=1), of_option),
        ((held * size).min(axis=1), class_memory_bytes(tables)[class_of] * size),
        (worth.min(axis=1), dollars),
    ]
    scaled = [(value, price / price.max()) for value, price in ways if price.max() > 0]
    least_s = np.cumsum(np.diff(kernel.compute_prefix_s, axis=0).min(axis=1))

    def cuts(value: Floats, factor: float) -> Floats:
        out = np.zeros((2, kernel.num_layers + 1))
        np.cumsum(value, out=out[0, 1:])
        np.multiply(factor, least_s, out=out[1, 1:])
        return out

    return [(cuts(value, factor), price) for factor in FILL_FACTORS for value, price in scaled]


class _Built(NamedTuple):
    """What stands behind a cut: step time, fill, front class and devices; -1 for no class."""

    stop: int
    behind_s: float
    fill_s: float
    next_kind: int
    total: int


class _Best(NamedTuple):
    """The best placement so far, over all rules and targets.

    Attributes:
        stages: (L, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        num_stages: (1,) 0 where there is none.
        cost: (1,) by `heterps_envs.closed_form.objective.search_cost`; inf where there is none.
        fastest_s: (1,) least step time of all that fit, whether it is the best or not.
        trial, used: (L, 3) and (T,) int64 scratch.
    """

    stages: Integers
    num_stages: Integers
    cost: Floats
    fastest_s: Floats
    trial: Integers
    used: Integers


class _Search:
    """The best placement so far, and the ways to better ones."""

    def __init__(self, question: Question) -> None:
        self._question = question
        _, self.kernel, self.goal, self.budget, *_ = question
        kernel, layers = self.kernel, self.kernel.num_layers
        self._told = math.inf
        self._best = _Best(
            np.empty((layers, 3), np.int64), np.zeros(1, np.int64), np.full(1, np.inf),
            np.full(1, np.inf), np.empty((layers, 3), np.int64),
            np.empty(kernel.num_classes, np.int64),
        )  # fmt: skip

    @property
    def fastest_s(self) -> float:
        """The least step time so far; inf where nothing fits."""
        return float(self._best.fastest_s[0])

    @property
    def best_code(self) -> Code | None:
        """(L,) int32 of the best placement so far; None where there is none."""
        count = self._best.num_stages[0]
        return code_of(self._best.stages, count) if count > 0 else None

    def attempt(self, rule: _Rule, target_s: float) -> None:
        """One greedy placement under a target."""
        if self.budget.is_exhausted:
            return
        self.budget.spend()
        _attempt(self.kernel, *rule, target_s, self.goal, self._best)
        self._tell()

    def bisect(self, rule: _Rule, lower_s: float) -> None:
        """Looks for the least target that greedy gets through, from a lower bound upwards."""
        if self.budget.is_exhausted:
            return
        left = self.budget.evaluations_left
        most = 1 + BISECTIONS if left is None else min(left, 1 + BISECTIONS)
        self.budget.spend(_bisect(self.kernel, *rule, lower_s, most, self.goal, self._best))
        self._tell()

    def _tell(self) -> None:
        """The best placement, where it is a new one."""
        code, cost = self.best_code, float(self._best.cost[0])
        if code is not None and cost < self._told:
            self._told = cost
            self._question.found(code, cost)


@uncounted
def _bisect(
    k: Any, cuts: Any, option_price: Any, lower_s: float, most: int, goal: Any, best: Any
) -> int:
    """At most `most` attempts, the first one without a target; returns how many there were."""
    low_s = max(lower_s, 1e-12)
    high_s = _attempt(k, cuts, option_price, math.inf, goal, best)
    if high_s == math.inf:
        return 1
    for _ in range(most - 1):
        target_s = math.sqrt(low_s * high_s)
        reached_s = _attempt(k, cuts, option_price, target_s, goal, best)
        if reached_s == math.inf:
            low_s = target_s
        else:
            high_s = min(target_s, reached_s)
        low_s = min(low_s, high_s)
    return most


@uncounted
def _attempt(k: Any, cuts: Any, option_price: Any, target_s: float, goal: Any, best: Any) -> float:
    """One placement; its step time, inf where it does not get through.

    Args:
        k: `KernelTables`.
        cuts: (2, L + 1) see `_Rule`.
        option_price: (O,) the same.
        target_s: Step time to stay under.
        goal: `Goal`.
        best: `_Best`, written to.
    """
    stages, used = best.trial, best.used
    count = _place(k, cuts, option_price, target_s, stages, used)
    if count == 0:
        return math.inf
    step_time_s: float = search_cost(stages, count, k, used, STEP_TIME)
    cost = search_cost(stages, count, k, used, goal)
    best.fastest_s[0] = min(best.fastest_s[0], step_time_s)
    if cost < best.cost[0]:
        best.cost[0], best.num_stages[0] = cost, count
        copy_stages(stages, count, best.stages)
    return step_time_s


@uncounted_helper
def _place(k: Any, cuts: Any, option_price: Any, target_s: float, stages: Any, used: Any) -> int:
    """One greedy placement, back to front.

    Args:
        k: `KernelTables`.
        cuts: (2, L + 1) see `_Rule`.
        option_price: (O,) the same.
        target_s: Step time to stay under.
        stages: (L, 3) int64 to write to, see `heterps_envs.closed_form.objective.read_stages`.
        used: (T,) int64 scratch.

    Returns:
        How many stages there are; 0 where the target cannot be kept.
    """
    used[:] = 0
    value_prefix, delay_s = cuts[0], cuts[1]
    built, count = _Built(k.num_layers, 0.0, 0.0, MINUS_ONE, ZERO), 0
    while built.stop > 0:
        stop = built.stop
        best_score, best_start, best_kind, best_replicas = -1.0, MINUS_ONE, MINUS_ONE, ZERO
        for kind in range(k.num_options):
            replicas, left = ZERO, min(replicas_left(k, kind, used), k.num_micro_batches)
            while replicas < left:
                replicas = next_replicas(replicas, left)
                if never_helps(k, kind, replicas):
                    continue
                start = _grow(k, built, kind, replicas, delay_s, target_s)
                if start == stop:
                    continue
                covered = value_prefix[stop] - value_prefix[start]
                score = (covered + 1e-30) / (option_price[kind] * replicas)
                if start == 0:
                    score += _COMPLETES * value_prefix[-1] / (option_price[kind] * replicas)
                if score > best_score:
                    best_score, best_start = score, start
                    best_kind, best_replicas = kind, replicas
        if best_start < 0:
            return 0
        stages[count, 0], stages[count, 1], stages[count, 2] = stop, best_kind, best_replicas
        held = in_flight(k.num_micro_batches, k.is_gpipe, best_replicas, built.total)
        behind_s, fill_s = append_stage(
            k, best_start, stop, best_kind, best_replicas, held,
            Built(built.next_kind, built.behind_s, built.fill_s),
        )  # fmt: skip
        used[k.class_of_option[best_kind]] += best_replicas * k.devices_of_option[best_kind]
        built = _Built(best_start, behind_s, fill_s, best_kind, built.total + best_replicas)
        count += 1
    reverse_stages(stages, count)
    return count


@merged
def _grow(k: Any, built: Any, kind: int, replicas: int, delay_s: Any, target_s: float) -> int:
    """First layer of the longest stage before what is built; its `stop` where there is none."""
    stop, behind_s, fill_s, next_kind, total = built
    held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, total)
    share = (k.num_micro_batches + replicas - 1) // replicas
    best_start: int = stop
    for start in range(stop - 1, -1, -1):
        memory = stage_bytes(k, start, stop, kind, replicas, held)
        compute = k.compute_prefix_s[stop, kind] - k.compute_prefix_s[start, kind]
        if memory > k.memory_bytes[kind] or share * compute > target_s:
            break
        reached_s, _ = append_stage(
            k, start, stop, kind, replicas, held, Built(next_kind, behind_s, fill_s)
        )
        if reached_s + delay_s[start] <= target_s:
            best_start = start
    return best_start
