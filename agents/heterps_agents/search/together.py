"""Searches one after another: each goes on from the best that is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from heterps_agents.interface.question import Question
from heterps_agents.search.annealing import POLISH_TEMPERATURE, anneal
from heterps_agents.search.genetic import genetic_code
from heterps_envs.arrays import Code


def searched(question: Question, codes: Sequence[Code], evaluations: int) -> Code | None:
    """The best of some codes and of what genetic search, and then annealing, make of them.

    Args:
        question: Its budget is charged.
        codes: Known ones, none or more; they need not fit.
        evaluations: Of each of the two searches.

    Returns:
        None where nothing was found that fits.
    """
    _, kernel, goal, budget, seed, *_ = question
    start = min(codes, key=question.cost, default=None)
    own = budget.part(evaluations)
    found = genetic_code(question._replace(budget=own, start=start))
    budget.spend(own.evaluations_used)
    known = [code for code in (start, found) if code is not None]
    best = min(known, key=question.cost, default=np.zeros(kernel.num_layers, np.int32))
    polished = anneal(
        best, kernel, goal, budget, seed,
        temperature=POLISH_TEMPERATURE, max_evaluations=evaluations, on_better=question.found,
    )  # fmt: skip
    return polished if math.isfinite(question.cost(polished)) else None
