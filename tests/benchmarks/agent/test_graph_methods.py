"""Every line of the graph tables keeps its budget and gives placements that fit."""

from __future__ import annotations

import pytest

from benchmarks.agent.comparison import Measured, measure
from benchmarks.agent.graph_methods import EARLIEST_FINISH, SAMPLES_16, cost, entries
from heterps_agents.graphs.network import GraphScorer
from heterps_envs.problem_sets.graphs import generate_graphs

LINES = entries(GraphScorer(hidden=8, node_width=8).exported({}), quick=True)


@pytest.fixture(scope="module")
def measured() -> dict[str, Measured]:
    (graph,) = generate_graphs(1, 3, nodes=(10, 12), devices=(3, 3))
    return measure(LINES, graph, cost, seed=0)


def test_budgets_in_evaluations_are_kept(measured: dict[str, Measured]) -> None:
    for entry in LINES:
        if entry.evaluations is not None:
            assert measured[entry.name]["evaluations"] <= entry.evaluations, entry.name


def test_samples_count_as_evaluations(measured: dict[str, Measured]) -> None:
    assert measured[SAMPLES_16]["evaluations"] >= 16


def test_annealing_is_never_worse_than_its_start(measured: dict[str, Measured]) -> None:
    start = measured[EARLIEST_FINISH]["cost"]
    assert start is not None
    for entry in LINES:
        if entry.method == "annealing":
            found = measured[entry.name]["cost"]
            assert found is not None
            assert found <= start
