"""Problems to develop by are of another generator than those that are trained on and quoted."""

from dataclasses import replace

import numpy as np
import pytest

from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.development import DEVELOPMENT_CHAINS, TIGHT_MEMORY
from heterps_envs.problem_sets.real_chains import real_chains


@pytest.mark.parametrize("name", DEVELOPMENT_CHAINS)
def test_a_set_has_its_sizes_and_its_problems_have_optima(name: str) -> None:
    draw = DEVELOPMENT_CHAINS[name]
    for tables in draw.problems(12):
        assert draw.layers[0] <= tables.num_layers <= draw.layers[1]
        assert draw.classes[0] <= tables.num_classes <= draw.classes[1]
        assert draw.count_range[0] <= tables.device_count.min()
        assert tables.device_count.max() <= draw.count_range[1]
        assert tables.output_bytes[-1] == 0
        assert (tables.output_bytes[:-1] > 0).all()
        assert solve(kernel_tables(tables)).status == "optimal"


def test_longer_lists_extend_shorter_ones_and_sets_differ() -> None:
    first, second, _ = DEVELOPMENT_CHAINS.values()
    assert fingerprint(first.problems(9)[:4]) == fingerprint(first.problems(4))
    assert first.problems(1)[0].num_layers != second.problems(1)[0].num_layers


def test_layers_are_those_of_shipped_models() -> None:
    real = [entry.tables for entry in real_chains().problems]
    known = {round(float(value)) for tables in real for value in tables.gradient_bytes}
    for tables in DEVELOPMENT_CHAINS["development"].problems(12):
        found = {round(float(value)) for value in tables.gradient_bytes}
        # llama-70b fits on no shipped cluster.
        assert found <= known or max(found) > 1e9


def test_some_problems_are_short_of_memory() -> None:
    problems = DEVELOPMENT_CHAINS["development"].problems(60)

    def infeasible_share(scale: float) -> float:
        scaled = (replace(one, memory_bytes=one.memory_bytes * scale) for one in problems)
        return float(np.mean([solve(kernel_tables(one)).code is None for one in scaled]))

    assert infeasible_share(1.0) == 0.0
    assert 0.1 < infeasible_share(1 / TIGHT_MEMORY[1]) < 0.8
