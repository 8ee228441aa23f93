"""The certificates that solvers write, re-checked by code that knows no solver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.splits.contiguous import split_contiguous
from heterps_agents.splits.solve import split_graph
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import InfeasibleError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_envs.certificates.split import SplitCertificate, check_split_certificate
from tests.envs.small_graphs import least_load_s, random_graph

SEEDS = st.integers(0, 100_000)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_split_is_confirmed_as_far_as_its_prices_go(seed: int) -> None:
    """Small graphs: prices leave a gap that only the integer programme closes, or none."""
    graph = random_graph(seed)
    try:
        split = split_graph(graph, target_gap=0.0)
    except InfeasibleError:
        return
    report = check_split_certificate(graph, split.assignment, split.certificate)
    best_s = least_load_s(graph)
    assert report.problems == ()
    assert report.lower_bound_s <= best_s * (1 + 1e-9)
    assert report.max_load_s == pytest.approx(split.max_load_s)
    if split.evidence != "integer programme":
        assert report.is_bound_checked
    assert report.lower_bound_s >= split.certificate.limit_s * (1 - 1e-12)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_contiguous_split_is_confirmed(seed: int) -> None:
    graph = random_graph(seed)
    try:
        split = split_contiguous(graph)
    except InfeasibleError:
        return
    report = check_split_certificate(graph, split.assignment, split.certificate)
    assert report.problems == ()
    assert report.is_bound_checked


def test_a_weak_contiguous_bound_is_confirmed_too() -> None:
    confirmed = 0
    for seed in range(40):
        graph = random_graph(seed)
        try:
            split = split_contiguous(graph, max_ideals=1)
        except InfeasibleError:
            continue
        report = check_split_certificate(graph, split.assignment, split.certificate)
        assert report.problems == ()
        confirmed += report.is_bound_checked
    assert confirmed > 20


def long_chain() -> OperatorGraph:
    """Forty nodes of unequal seconds for three accelerators and a CPU."""
    nodes = [
        {
            "name": f"n{index}",
            "accelerator_s": 1 + index * 7 % 11,
            "cpu_s": 10 * (1 + index * 7 % 11),
            "communication_s": 0.5 + index * 5 % 3,
        }
        for index in range(40)
    ]
    edges = [(index, index + 1) for index in range(39)] + [(3, 30), (10, 35)]
    return OperatorGraph.from_mapping(
        {"name": "long", "num_accelerators": 3, "num_cpus": 1, "nodes": nodes, "edges": edges}
    )


def test_prices_that_are_changed_are_refused() -> None:
    graph = long_chain()
    split = split_graph(graph, target_gap=0.03)
    assert split.evidence == "prices"
    report = check_split_certificate(graph, split.assignment, split.certificate)
    assert report.is_valid
    assert report.is_bound_checked
    assert report.gap <= split.gap + 1e-6
    prices = list(split.certificate.prices)
    prices[5] += 0.2 * sum(prices)
    for change in (
        {"prices": tuple(prices)},
        {"limit_s": split.max_load_s * 1.01},
        {"cpu_worth": 0.0},
    ):
        changed = split.certificate.changed(**change)
        report = check_split_certificate(graph, split.assignment, changed)
        assert not report.is_bound_checked
        assert report.problems[0].startswith("the prices prove nothing: within ")


def test_a_node_that_is_moved_is_refused() -> None:
    graph = long_chain()
    split = split_graph(graph, target_gap=0.03)
    moved = list(split.assignment)
    heaviest = max(range(40), key=lambda index: graph.nodes[index].accelerator_s)
    moved[heaviest] = (moved[heaviest] + 1) % 3
    report = check_split_certificate(graph, moved, split.certificate)
    assert [problem[:19] for problem in report.problems] == ["the largest load is"]


def test_published_splits_are_confirmed() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "dnn-partitioning/throughput-inputs"
    for name in ("bert24_inference", "bert24_training", "bert_l-3_inference"):
        for path in folder.glob(f"*/{name}.json"):
            graph = load_dnn_partitioning(path)
            free, row = split_graph(graph), split_contiguous(graph)
            for assignment, certificate in (
                (free.assignment, free.certificate),
                (row.assignment, row.certificate),
            ):
                again = SplitCertificate.model_validate_json(certificate.model_dump_json())
                report = check_split_certificate(graph, assignment, again)
                assert report.is_valid
                assert report.is_bound_checked
                assert report.gap < 0.01
