"""Scores without learning, in the place of a policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.beam import Scorer
from heterps_agents.learned.unlearned_beam import (
    LARGEST_WIDTH,
    PriceScorer,
    RandomScorer,
    beam_code,
    widening_efforts,
)
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.environments.stage.state import NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES
from heterps_envs.problem_sets.chains import generate


@pytest.mark.parametrize("scorer", [PriceScorer(), RandomScorer(0)])
def test_scores_are_log_probabilities_of_each_row(scorer: Scorer) -> None:
    rng = np.random.default_rng(0)
    candidates = rng.random((6, NUM_CANDIDATE_FEATURES), np.float32)
    state, row = np.zeros((2, NUM_GLOBAL_FEATURES), np.float32), np.array([0, 0, 0, 0, 1, 1])
    scores = scorer.log_probabilities(candidates, state, row)
    assert scores.dtype == np.float32
    for which in (0, 1):
        assert np.exp(scores[row == which]).sum() == pytest.approx(1.0, rel=1e-5)


def test_more_value_for_the_price_scores_higher() -> None:
    candidates = np.zeros((4, NUM_CANDIDATE_FEATURES), np.float32)
    candidates[:, 2] = [0.0, 0.3, 0.9, 0.5]
    state = np.zeros((1, NUM_GLOBAL_FEATURES), np.float32)
    scores = PriceScorer().log_probabilities(candidates, state, np.zeros(4, np.int64))
    np.testing.assert_array_equal(np.argsort(scores), [0, 1, 3, 2])


def test_wide_beams_solve_most_small_problems() -> None:
    solved = []
    for tables in generate(12, seed=12, layers=(6, 12), classes=(2, 3), count_range=(1, 3)):
        kernel = kernel_tables(tables)
        optimum = solve(kernel)
        if optimum.code is None:
            continue
        code = beam_code(Question(tables, kernel, Goal(), Budget(5000)))
        assert code is not None
        solved.append(Goal().cost(code, kernel) < 1.001 * optimum.step_time_s)
    assert np.mean(solved) > 0.7


def test_beams_widen_as_long_as_there_is_time() -> None:
    tables = generate(1, seed=1)[0]
    kernel = kernel_tables(tables)
    beam_code(Question(tables, kernel, Goal(), Budget(300)))  # compiles
    short, longer = Budget(cpu_seconds=1e-3), Budget(cpu_seconds=1.0)
    for budget in (short, longer):
        beam_code(Question(tables, kernel, Goal(), budget))
    assert short.evaluations_used < longer.evaluations_used


def test_a_layer_that_fits_nowhere_ends_the_search_at_once() -> None:
    tables = generate(1, seed=1)[0]
    tables = replace(tables, state_bytes=np.full(tables.num_layers, 1e18))
    budget = Budget()
    assert beam_code(Question(tables, kernel_tables(tables), Goal(), budget)) is None
    assert budget.evaluations_used == 0


def test_efforts_get_wider_and_end() -> None:
    widths = [effort.width for effort in widening_efforts()]
    assert widths == sorted(set(widths))
    assert widths[-1] >= LARGEST_WIDTH
