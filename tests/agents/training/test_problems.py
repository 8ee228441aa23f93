"""Problems to learn from: their references, and how a pool stays fresh."""

import numpy as np
import pytest

from heterps_agents.exact.frontier import solve_frontier
from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.problems import (
    ProblemSource,
    perturbed,
    pool_of,
    refresh,
    with_frontier,
    with_optimum,
    with_reference,
)
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.problem_sets.chains import generate
from tests.agents.training.conftest import CHAINS


def test_references_are_the_optimum_and_its_bottleneck() -> None:
    entry = with_optimum(generate(1, seed=3)[0])
    assert entry is not None
    assert 0 < entry.bottleneck_s < entry.step_time_s


def test_anchors_are_the_exact_frontier() -> None:
    tables = generate(1, seed=6, layers=(6, 8), classes=(3, 3))[0]
    found = with_frontier(tables, longest_exact_s=10.0)
    assert found is not None
    points = solve_frontier(kernel_tables(tables)).points
    assert [one.step_time_s for one in found.anchors] == [one.step_time_s for one in points]
    assert with_frontier(tables, longest_exact_s=1e-9) is None


def test_problems_whose_optimum_takes_long_start_from_the_greedy_rule() -> None:
    tables = generate(3, seed=3)
    for entry in tables:
        quick, long = with_reference(entry, 10.0), with_reference(entry, 1e-6)
        assert quick is not None
        assert long is not None
        assert quick.step_time_s <= long.step_time_s * (1 + 1e-9)


@pytest.mark.slow
def test_refreshing_leaves_problems_that_are_in_use() -> None:
    source = ProblemSource(CHAINS)
    pool = pool_of(source.take(10), CHAINS.target_range, CHAINS.layers[1], CHAINS.classes[1])
    before = pool.step_time_s.copy()
    used = np.array([0, 3, 4])
    optima = OptimalPlacements(10, CHAINS.layers[1])
    refresh(pool, optima, source, used, 4, np.random.default_rng(0))
    changed = np.flatnonzero(pool.step_time_s != before)
    assert len(changed) == 4
    assert not set(changed) & set(used)
    assert set(np.flatnonzero(optima.first_layer[:, 0] == 0)) == set(changed)


def test_drifted_problems_begin_with_the_problems_themselves() -> None:
    tables = generate(2, seed=5)
    drifted = perturbed(tables, 6, seed=0, class_sigma=0.1, layer_sigma=0.05)
    assert drifted[:2] == tables
    ratio = drifted[2].forward_s / tables[0].forward_s
    assert 0.5 < ratio.min() < ratio.max() < 2
    np.testing.assert_array_equal(drifted[2].memory_bytes, tables[0].memory_bytes)
