"""The planner `unlearned-beam`: the learned placer with scores that nobody learned.

It says what the search alone is worth: the states that beams merge, the targets that they close in
on, and what is improved afterwards. A candidate's score is the value that its stage covers, by the
prices of a linear programme (`heterps_envs.closed_form.bounds`), over the price of its devices for
as long as the target; or a random number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.learned.beam import Scorer
from heterps_agents.learned.efforts import efforts
from heterps_agents.learned.search import learned_code
from heterps_agents.search.starts import simple_start
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import price_bound

Floats = NDArray[np.float32]

# Beams become so much wider from one effort to the next, up to this width.
GROWTH, LARGEST_WIDTH = 4, 4096
# How sharply the scores prefer what is worth more for its price.
SHARPNESS = 4.0
# Column of candidate features (`heterps_envs.environments.stage.env`).
_EFFICIENCY = 2


@search_planner("unlearned-beam", simple_start)
def beam_code(question: Question) -> Code | None:
    """By price: code of the best placement found."""
    return _search(PriceScorer(), question)


def random_beam_code(question: Question) -> Code | None:
    """With random scores, see `beam_code`."""
    return _search(RandomScorer(question.seed), question)


def widening_efforts() -> Iterator[Effort]:
    """The efforts of the learned placer, and then ever wider ones."""
    yield from efforts().values()
    effort = efforts()["high"]
    while effort.width < LARGEST_WIDTH:
        effort = effort.changed(
            first_width=GROWTH * effort.first_width,
            width=GROWTH * effort.width,
            price_width=GROWTH * effort.price_width,
        )
        yield effort


def _search(scorer: Scorer, question: Question) -> Code | None:
    """Each effort goes on from the best placement so far, while anything of the budget is left."""
    if math.isinf(price_bound(question.tables)[0]):
        return question.start
    for effort in widening_efforts() if question.budget.is_limited else efforts().values():
        if question.budget.is_exhausted:
            break
        question = question._replace(start=learned_code(scorer, question, effort))
    return question.start if math.isfinite(question.cost(question.start)) else None


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
