"""Certificates of splits: what is confirmed holds, by trying everything; what is wrong is named."""

from __future__ import annotations

import ast
import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import DocumentError
from heterps_envs.certificates import split as split_certificate
from heterps_envs.certificates.plain_groups import PlainSplit, plain_split, split_problems
from heterps_envs.certificates.plain_ideals import is_in_row, no_row_below
from heterps_envs.certificates.plain_sets import can_hold_more, layers_of
from heterps_envs.certificates.split import SplitCertificate, check_split_certificate
from heterps_envs.graphs.operators import device_loads, max_load
from tests.envs.small_graphs import (
    all_assignments,
    is_contiguous,
    least_contiguous_load_s,
    least_load_s,
    random_graph,
)

SEEDS = st.integers(0, 100_000)


def two_devices(**changes: Any) -> OperatorGraph:
    """Four nodes in a row, one second each; the first and last are of one class."""
    node = {"accelerator_s": 1, "cpu_s": 10, "memory_bytes": 1, "communication_s": 0.25}
    nodes = [{"name": f"n{index}", **node} for index in range(4)]
    for index in (0, 3):
        nodes[index]["color_class"] = 7
    graph = {
        "name": "four",
        "num_accelerators": 2,
        "accelerator_memory_bytes": 3,
        "nodes": nodes,
        "edges": [(0, 1), (1, 2), (2, 3)],
    }
    return OperatorGraph.from_mapping(graph | changes)


def certified(**changes: Any) -> SplitCertificate:
    """Of `two_devices` split as 0 1 1 0: two seconds each, and n0 and n2 sent across."""
    known = {
        "max_load_s": 2.5,
        "lower_bound_s": 2.5,
        "evidence": "prices",
        "limit_s": 2.49999999,
        # Who holds the class has it alone, or all.
        "prices": (1.0, 0.0, 0.0),
        "order": (0, 1, 2),
    }
    return SplitCertificate.from_mapping(known | changes)


def load_of_set(parts: PlainSplit, inside: set[int]) -> float:
    """Of an accelerator; nets that no accelerator has the memory for are always cut."""
    cut_s = [
        net.seconds
        for net in parts.nets
        if net.members & inside and (net.is_never_whole or not net.members <= inside)
    ]
    return sum(parts.accelerator_s[group] for group in inside) + sum(cut_s)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_loads_are_those_of_the_other_formulation(seed: int) -> None:
    graph = random_graph(seed)
    parts = plain_split(graph)
    for choice in itertools.islice(all_assignments(graph), 20):
        assert split_problems(graph, choice) == []
        assert parts.loads_s(choice) == pytest.approx(device_loads(graph, choice))
        assert is_in_row(graph, choice) == is_contiguous(graph, choice)


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_what_a_device_can_hold_is_found_by_trying_every_set(seed: int) -> None:
    graph = random_graph(seed)
    parts = plain_split(graph)
    size = len(parts.members)
    rng = np.random.default_rng(seed)
    value = rng.normal(1, 2, size).tolist()
    limit_s = float(
        rng.uniform(0.3, 1.1) * max(10.0, sum(node.accelerator_s for node in graph.nodes))
    )
    sets = [
        {group for group in range(size) if chosen[group]}
        for chosen in itertools.product((False, True), repeat=size)
    ]
    loads = [load_of_set(parts, inside) for inside in sets]
    worth = [sum(value[group] for group in inside) for inside in sets]
    most, nearly = (
        max(w for w, load_s in zip(worth, loads, strict=True) if load_s <= limit_s * slack)
        for slack in (1, 1 + 1e-4)
    )
    layers = layers_of(parts.nets, rng.permutation(size).tolist())
    assert layers is not None
    assert can_hold_more(layers, value, parts.accelerator_s, limit_s, most - 1e-6) is True
    # Cells of the load are optimistic: sets a bit over the limit may count.
    assert can_hold_more(layers, value, parts.accelerator_s, limit_s, nearly + 1e-9) is False


@settings(max_examples=100, deadline=None)
@given(SEEDS)
def test_no_prices_confirm_a_bound_above_the_best_split(seed: int) -> None:
    """Random prices, limits, orders and left-out nets, most of them wrong."""
    graph = random_graph(seed)
    best_s = least_load_s(graph)
    if not 0 < best_s < math.inf:
        return
    choice = next(all_assignments(graph))
    rng = np.random.default_rng(seed)
    size = len(plain_split(graph).members)
    prices = rng.uniform(0, 1, size) if rng.random() < 0.6 else np.eye(size)[rng.integers(size)]
    claimed = SplitCertificate(
        max_load_s=max_load(graph, choice),
        lower_bound_s=0.0,
        limit_s=best_s * rng.choice([0.5, 0.9, 1.0, 1.0, 1.1]),
        prices=tuple(prices.tolist()),
        cpu_worth=float(rng.uniform(0, 1)),
        order=tuple(rng.permutation(size).tolist()),
        ignored_s=float(rng.choice([0.0, 1.0])),
    )
    report = check_split_certificate(graph, choice, claimed)
    assert report.lower_bound_s <= best_s * (1 + 1e-9)
    assert report.max_load_s == pytest.approx(max_load(graph, choice))


@settings(max_examples=80, deadline=None)
@given(SEEDS)
def test_rows_below_a_load_are_found_by_trying_everything(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_contiguous_load_s(graph)
    if not 0 < best_s < math.inf:
        return
    assert no_row_below(graph, best_s * (1 - 1e-9), 10_000) is True
    assert no_row_below(graph, best_s * (1 + 1e-9), 10_000) is False
    assert no_row_below(graph, best_s, 1) is None


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_contiguous_split_is_proven_best_or_refused(seed: int) -> None:
    graph = random_graph(seed)
    rows = [choice for choice in all_assignments(graph) if is_contiguous(graph, choice)]
    if not rows:
        return
    loads = [max_load(graph, choice) for choice in rows]
    for load_s, choice in list(zip(loads, rows, strict=True))[:5]:
        claimed = SplitCertificate(max_load_s=load_s, lower_bound_s=load_s, is_contiguous=True)
        report = check_split_certificate(graph, choice, claimed)
        assert report.is_valid == (load_s <= min(loads) * (1 + 1e-6))
        assert report.is_bound_checked == report.is_valid


def test_a_true_certificate_is_confirmed_and_survives_json() -> None:
    read = SplitCertificate.from_mapping(json.loads(certified().model_dump_json()))
    assert read == certified()
    report = check_split_certificate(two_devices(), (0, 1, 1, 0), read)
    assert report.is_valid
    assert report.is_bound_checked
    assert report.max_load_s == 2.5
    assert report.gap == pytest.approx(0, abs=1e-6)
    assert report.unchecked == ()


@pytest.mark.parametrize(
    ("changes", "assignment", "reason"),
    [
        ({"prices": (0.0, 1.0, 1.0)}, (0, 1, 1, 0), "the prices prove nothing"),
        ({"limit_s": 2.6}, (0, 1, 1, 0), "the prices prove nothing"),
        ({"prices": (1.0, 0.0)}, (0, 1, 1, 0), "each of the 3 groups once"),
        ({"order": (0, 1, 1)}, (0, 1, 1, 0), "each of the 3 groups once"),
        ({"ignored_s": 0.5}, (0, 1, 1, 0), "the prices prove nothing"),
        ({"max_load_s": 2.0}, (0, 1, 1, 0), r"load is 2\.5 s on device 0, not 2 s"),
        ({"lower_bound_s": 2.6}, (0, 1, 1, 0), r"above the split's own load of 2\.5 s"),
        ({}, (0, 1, 1, 1), r"colour class 7 \(n0, n3, ...\) is on the devices \[0, 1\]"),
        ({}, (0, 1, 0, 0), r"largest load is 3\.5 s"),
        ({}, (0, 0, 0, 0), "device 0 holds 4 B, 1 B too many"),
        ({}, (0, 1, 2, 0), "device 2 does not exist"),
        ({}, (0, 1, 1), "3 devices for 4 nodes"),
        ({"is_contiguous": True}, (0, 1, 1, 0), "not contiguous: the forward pass comes back"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_named(
    changes: dict[str, Any], assignment: tuple[int, ...], reason: str
) -> None:
    report = check_split_certificate(two_devices(), assignment, certified(**changes))
    assert not report.is_valid
    assert len(report.problems) >= 1
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(report.problems)


@pytest.mark.parametrize(
    ("cpu_worth", "reason"),
    [
        (2.0, ""),
        (0.0, "one CPU can hold more than"),
        (3.0, "one accelerator can hold more than"),
        (4.0, "the CPUs alone may hold everything"),
    ],
)
def test_what_a_cpu_holds_is_taken_off(cpu_worth: float, reason: str) -> None:
    """A CPU as fast as the accelerator takes two of four seconds, without paying for nets."""
    nodes = [node.model_dump() | {"cpu_s": 1} for node in two_devices().nodes]
    graph = two_devices(nodes=nodes, num_accelerators=1, num_cpus=1)
    claimed = certified(prices=(2.0, 1.0, 1.0), limit_s=2.4, cpu_worth=cpu_worth, evidence="")
    report = check_split_certificate(graph, (0, 1, 1, 0), claimed)
    assert report.is_valid == (reason == "")
    assert reason in " ".join(report.problems)
    assert report.lower_bound_s == (2.0 if reason else 2.4)


def test_nodes_that_no_accelerator_runs_are_on_cpus() -> None:
    nodes = [node.model_dump() | {"color_class": None} for node in two_devices().nodes[:3]]
    nodes[1] |= {"supported_on_accelerator": False, "cpu_s": 3}
    graph = two_devices(nodes=nodes, edges=[(0, 1), (1, 2)], num_accelerators=1, num_cpus=1)
    # In a row: the first or the last node is with the second on the CPU.
    assert no_row_below(graph, 13 * (1 - 1e-9), 100) is True
    assert no_row_below(graph, 13 * (1 + 1e-9), 100) is False
    assert split_problems(graph, (0, 0, 1)) == ["n1 does not run on device 0"]
    assert plain_split(graph).shared_out_s() == 3


def test_a_bound_that_nothing_supports_is_not_confirmed() -> None:
    claimed = certified(limit_s=0.0, evidence="integer programme")
    report = check_split_certificate(two_devices(), (0, 1, 1, 0), claimed)
    assert report.is_valid
    assert not report.is_bound_checked
    assert report.lower_bound_s == 2.0
    assert report.gap == pytest.approx(0.25)
    assert report.unchecked == ("the bound of 2.5 s (integer programme)",)


def test_too_many_ideals_are_said() -> None:
    claimed = SplitCertificate(max_load_s=2.25, lower_bound_s=2.25, is_contiguous=True)
    graph = two_devices(
        nodes=[node.model_dump() | {"color_class": None} for node in two_devices().nodes]
    )
    report = check_split_certificate(graph, (0, 0, 1, 1), claimed, max_ideals=3)
    assert report.unchecked[0] == "contiguous splits: more than 3 ideals, or too much"
    assert report.lower_bound_s == 2.0
    assert check_split_certificate(graph, (0, 0, 1, 1), claimed).is_bound_checked


def test_a_certificate_with_unknown_fields_is_refused() -> None:
    with pytest.raises(DocumentError, match="price"):
        SplitCertificate.from_mapping({"max_load_s": 1, "lower_bound_s": 1, "price": 3})


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_work_that_is_shared_out_is_a_bound(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_load_s(graph)
    bound_s = plain_split(graph).shared_out_s()
    assert bound_s <= best_s * (1 + 1e-12)
    devices = graph.num_accelerators + graph.num_cpus
    fastest = [
        min(node.accelerator_s, math.inf if node.cpu_s is None else node.cpu_s)
        for node in graph.nodes
    ]
    assert bound_s >= sum(fastest) / devices * (1 - 1e-9)


def test_the_check_imports_nothing_but_documents_and_itself() -> None:
    room = "heterps_envs.certificates"
    own = {f"{room}.{name}" for name in ("plain_groups", "plain_ideals", "plain_sets", "split")}
    folder = Path(split_certificate.__file__).parent
    for name in own:
        path = folder / f"{name.rpartition('.')[2]}.py"
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("heterps_"):
                module = str(node.module)
                is_light = module.startswith("heterps_configs.") or module == "heterps_envs.arrays"
                assert is_light or module in own
