"""Devices that are linked with each other, and what is said where none of them hold a model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.library import load_profile
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.islands import islands_of, no_island_holds_it
from heterps_envs.options import bounding_tables
from heterps_envs.problem import Problem

LINK = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
OPEN = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")


def problem_on(memory_bytes: int, *between: tuple[str, str], inside: object = "none") -> Problem:
    """BERT on three nodes: `a` with two devices, `b` and `c` with one each."""
    kind = {"type": "T4", "memory_bytes": memory_bytes}
    nodes = [
        {"name": "a", "link": inside, "devices": [{"name": "a", "count": 2, **kind}]},
        *({"name": name, "devices": [{"name": name, **kind}]} for name in "bc"),
    ]
    cluster = {
        "name": "apart",
        "nodes": nodes,
        "inter_node_link": "none",
        "link_overrides": [{"between": list(pair), "link": LINK} for pair in between],
    }
    job = Job(global_batch_size=8, micro_batch_size=1, dtype="float32")
    return Problem(load_profile("bert-large"), Cluster.from_mapping(cluster), job)


def test_devices_are_together_that_are_linked_over_others() -> None:
    assert islands_of(problem_on(10**10)) == [{"a-0"}, {"a-1"}, {"b"}, {"c"}]
    assert islands_of(problem_on(10**10, inside=LINK)) == [{"a-0", "a-1"}, {"b"}, {"c"}]
    # Two devices without a link to each other, both linked with a third.
    assert islands_of(problem_on(10**10, ("a", "b"))) == [{"a-0", "a-1", "b"}, {"c"}]
    assert len(islands_of(problem_on(10**10, ("a", "b"), ("b", "c")))) == 1


@pytest.mark.parametrize("strategy", [Strategy(), OPEN])
def test_that_no_linked_devices_hold_the_model_is_said_only_where_none_do(
    strategy: Strategy,
) -> None:
    # Its state takes 5.4 GB.
    alone = replace(problem_on(3 * 10**9), strategy=strategy)
    assert no_island_holds_it(alone, bounding_tables(alone))
    assert explain_infeasible(alone).startswith("no devices that are linked with each other hold")
    linked = replace(problem_on(3 * 10**9, ("a", "b"), ("b", "c")), strategy=strategy)
    assert not no_island_holds_it(linked, bounding_tables(linked))
    enough = replace(problem_on(10**10), strategy=strategy)
    assert not no_island_holds_it(enough, bounding_tables(enough))
    assert "some devices of 'apart' have no link to each other" in explain_infeasible(enough)
