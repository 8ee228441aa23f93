"""The planner `unlearned-beam`: the policy's own decoder, with scores that nobody learned.

It says what the decoder alone is worth: the states that it merges, the targets that it closes in
on, and the cuts that it refines. A candidate's score is the value that its stage covers, by the
prices of a linear programme (`heterps_envs.bounds`), over the price of its devices for as long as
the target; or a random number.
"""

from __future__ import annotations

import math
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from heterps_agents.decode import ROUNDS, TARGETS_PER_ROUND
from heterps_agents.objective import Goal
from heterps_agents.planner import Budget
from heterps_agents.policy import Policy
from heterps_agents.ppo import PolicyPlanner
from heterps_agents.registry import register
from heterps_agents.search_planner import Code, SearchPlanner
from heterps_envs.bounds import price_bound
from heterps_envs.closed_form import KernelTables
from heterps_envs.problem import CostTables

Floats = NDArray[np.float32]

# Without any limit; and where only seconds are limited, the first width and how it grows as long as
# the seconds that are left should suffice.
DEFAULT_WIDTH, LARGEST_WIDTH = 64, 4096
FIRST_WIDTH, GROWTH, LEAST_GROWTH = 4, 4.0, 1.5
# Beams for the objective throughput, and about as many more for price as there are class subsets.
BEAMS, PRICE_BEAMS = ROUNDS * TARGETS_PER_ROUND, 204
# How sharply the scores prefer what is worth more for its price.
SHARPNESS = 4.0
# Columns of candidate features (`heterps_envs.stage_placement`).
_EFFICIENCY = 2


class Scorer(Protocol):
    """What the decoder asks of a policy."""

    def log_probabilities(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64]
    ) -> Floats:
        """(N,) as `Policy.log_probabilities`."""
        ...


@register("unlearned-beam")
def unlearned_beam(seed: int = 0) -> SearchPlanner:
    """The planner `unlearned-beam`."""
    return SearchPlanner("unlearned-beam", beam_code, seed)


def beam_code(
    tables: CostTables,
    kernel: KernelTables,
    goal: Goal,
    budget: Budget,
    seed: int,
    *,
    start: Code | None = None,
) -> Code | None:
    """By price: code of the best placement found, see `heterps_agents.search_planner.Search`."""
    return _search(PriceScorer(), tables, kernel, goal, budget, seed, start)


def random_beam_code(
    tables: CostTables,
    kernel: KernelTables,
    goal: Goal,
    budget: Budget,
    seed: int,
    *,
    start: Code | None = None,
) -> Code | None:
    """With random scores, see `beam_code`."""
    return _search(RandomScorer(seed), tables, kernel, goal, budget, seed, start)


def _search(
    scorer: Scorer,
    tables: CostTables,
    kernel: KernelTables,
    goal: Goal,
    budget: Budget,
    seed: int,
    start: Code | None,
) -> Code | None:
    """One decoding as wide as the evaluations allow, or wider and wider ones while time is left."""
    if math.isinf(price_bound(tables)[0]):
        return start

    def decoder(width: int) -> PolicyPlanner:
        return PolicyPlanner(seed, cast(Policy, scorer), width)

    best = np.zeros(kernel.num_layers, np.int16) if start is None else start
    width, share = _first_width(goal, budget), 0.0
    while not budget.is_exhausted and width <= LARGEST_WIDTH:
        best = decoder(width).best_code(tables, kernel, goal, budget, best)
        before, share = share, budget.time_share
        growth = min(GROWTH, (1.0 - share) / max(share - before, 1e-9))
        if not budget.has_time_limit or growth < LEAST_GROWTH:
            break
        width = int(growth * width)
    return best if math.isfinite(goal.cost(best, kernel)) else None


def _first_width(goal: Goal, budget: Budget) -> int:
    left = budget.evaluations_left
    if left is not None:
        return min(LARGEST_WIDTH, max(1, left // (PRICE_BEAMS if goal.is_price else BEAMS)))
    return FIRST_WIDTH if budget.has_time_limit else DEFAULT_WIDTH


class PriceScorer:
    """Scores that stand for a policy's: the likelier, the more value for the price."""

    def log_probabilities(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64]
    ) -> Floats:
        """(N,) as `Policy.log_probabilities`."""
        efficiency = np.maximum(candidates[:, _EFFICIENCY], 1e-3)
        return _normalised(np.asarray(SHARPNESS * np.log(efficiency), np.float32), row)


class RandomScorer:
    """Scores that stand for a policy's: logits that are uniform random numbers.

    Args:
        seed: Of the numbers.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def log_probabilities(
        self, candidates: Floats, state: Floats, row: NDArray[np.int64]
    ) -> Floats:
        """(N,) as `Policy.log_probabilities`."""
        return _normalised(np.float32(SHARPNESS) * self._rng.random(len(row), np.float32), row)


def _normalised(logits: Floats, row: NDArray[np.int64]) -> Floats:
    """Logarithms of the softmax over the candidates of each row."""
    starts = np.flatnonzero(np.diff(row, prepend=-1))
    logits = logits - np.maximum.reduceat(logits, starts)[row]
    total = np.add.reduceat(np.exp(logits), starts)
    return np.asarray(logits - np.log(total)[row], np.float32)
