"""Sets of stages that the bound cannot rule out."""

from __future__ import annotations

from collections import Counter

import pytest

from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.step_bounds.executable import least_executable_s
from heterps_envs.step_bounds.surviving import StageSpan, surviving_sets
from tests.envs.small_problems import chain_problem


@pytest.fixture(scope="module")
def two_layers() -> Problem:
    """One device has no room for both."""
    return chain_problem(
        [1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,), parameters=[10, 10],
        memory_bytes=[100],
    )  # fmt: skip


def test_the_only_set_of_stages_is_found(two_layers: Problem) -> None:
    assert surviving_sets(two_layers, 20.0) == [(StageSpan(0, 1, 0, 1), StageSpan(1, 2, 0, 1))]


def test_there_is_none_where_nothing_is_faster_than_the_bound(two_layers: Problem) -> None:
    assert surviving_sets(two_layers, least_executable_s(two_layers)) == []


def test_nothing_is_looked_for_when_the_time_is_over(two_layers: Problem) -> None:
    assert surviving_sets(two_layers, 20.0, lambda: True) == []


@pytest.mark.parametrize("family", ["home-boxes", "volunteers"])
def test_sets_have_all_layers_and_no_more_devices_than_there_are(family: str) -> None:
    problem = field_problem(FieldCase(family, 1), SEEDS["development"])
    least_s = least_executable_s(problem)
    found = surviving_sets(problem, 1.05 * least_s)
    assert found
    assert len(set(found)) == len(found)
    for spans in found:
        layers = {layer for span in spans for layer in range(span.first_layer, span.stop)}
        assert layers == set(range(problem.profile.num_layers))
        used = Counter[int]()
        for span in spans:
            used[span.device_class] += span.degree
        counts = [len(entry.devices) for entry in problem.classes]
        assert all(used[kind] <= counts[kind] for kind in used)
