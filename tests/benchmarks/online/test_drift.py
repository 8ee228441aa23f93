"""Drifted problems, what deployments show of them, and ways to adapt."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.online.drift_cases import TablesBelief, deployed, drifted, step_time_s
from benchmarks.online.drift_methods import Case, climb, exact, explore, recalibrate
from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import decode
from heterps_envs.problem_sets.chains import generate


@pytest.fixture
def case() -> Case:
    tables = generate(1, seed=5, layers=(8, 10), classes=(2, 3))[0]
    start = solve(kernel_tables(tables)).code
    assert start is not None
    return Case(tables, drifted(tables, np.random.default_rng(3)), start)


def test_every_replica_is_measured_forward_and_backward(case: Case) -> None:
    times = deployed(case.start, case.truth, np.random.default_rng(0))
    num_replicas = sum(stage.replicas for stage in decode(case.start))
    assert sum(len(own) for own in times) == 2 * num_replicas


def test_a_belief_predicts_what_was_deployed(case: Case) -> None:
    rng, belief = np.random.default_rng(0), TablesBelief(case.believed)
    for _ in range(20):
        belief.observe(deployed(case.start, case.truth, rng))
    believed_s = step_time_s(case.start, kernel_tables(belief.tables()))
    truth_s = step_time_s(case.start, kernel_tables(case.truth))
    assert believed_s == pytest.approx(truth_s, rel=0.03)


def test_adapting_ends_near_the_optimum_of_the_truth(case: Case) -> None:
    kernel = kernel_tables(case.truth)
    optimum_s = solve(kernel).step_time_s
    for method in (explore, lambda c, rng: recalibrate(c, rng, exact)):
        kept = list(itertools.islice(method(case, np.random.default_rng(1)), 4))
        assert step_time_s(kept[-1], kernel) / optimum_s < 1.05


def test_a_hill_climb_keeps_placements_that_fit(case: Case) -> None:
    kernel = kernel_tables(case.truth)
    kept = list(itertools.islice(climb(case, np.random.default_rng(1)), 30))
    assert all(np.isfinite(step_time_s(code, kernel)) for code in kept)
    assert step_time_s(kept[-1], kernel) <= 1.05 * step_time_s(kept[0], kernel)
