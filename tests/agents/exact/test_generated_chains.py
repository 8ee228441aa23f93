"""What the generator promises of its chains, checked by the exact solver."""

import dataclasses

import numpy as np

from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import TIGHT_SHARE, generate


def with_memory(tables: CostTables, scale: float) -> CostTables:
    return dataclasses.replace(tables, memory_bytes=tables.memory_bytes * scale)


def test_every_problem_has_a_placement() -> None:
    for entry in generate(60, seed=2):
        assert np.isfinite(price_bound(entry)[0])
        assert solve(kernel_tables(entry)).status == "optimal"


def test_a_stated_share_has_little_more_than_the_least_memory() -> None:
    problems = generate(100, seed=5, layers=(8, 16), classes=(2, 3), count_range=(1, 3))
    too_little = [solve(kernel_tables(with_memory(entry, 1 / 1.3))) for entry in problems]
    tight = sum(result.status == "infeasible" for result in too_little)
    assert TIGHT_SHARE - 0.1 < tight / len(problems) < TIGHT_SHARE + 0.15
