"""The frozen sets stay what they are; the real ones hold what is shipped and what is published."""

from pathlib import Path

import numpy as np
import pytest

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.library import shipped
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.graphs import graphs_fingerprint
from heterps_envs.problem_sets.test_sets import (
    DRAWN_CHAINS,
    DRAWN_GRAPHS,
    chain_collection,
    chain_set,
    graph_collection,
    graph_set,
)


@pytest.mark.parametrize("name", DRAWN_CHAINS)
def test_a_drawn_set_never_changes(name: str) -> None:
    problems = chain_set(name)
    assert len(problems) == DRAWN_CHAINS[name].num_problems
    assert fingerprint(problems) == DRAWN_CHAINS[name].fingerprint
    assert all(np.isfinite(price_bound(entry)[0]) for entry in problems)


@pytest.mark.parametrize("name", DRAWN_GRAPHS)
def test_a_drawn_set_of_graphs_never_changes(name: str) -> None:
    problems = graph_set(name)
    assert len(problems) == DRAWN_GRAPHS[name].num_problems
    assert graphs_fingerprint(problems) == DRAWN_GRAPHS[name].fingerprint


def test_fewer_problems_of_a_set_are_its_first() -> None:
    few = DRAWN_CHAINS["in-range"].problems(5)
    assert fingerprint(few) == fingerprint(chain_set("in-range")[:5])


def test_the_real_set_is_every_shipped_model_on_every_shipped_cluster_that_holds_it() -> None:
    found = chain_collection("real")
    named = [entry.name for entry in found.problems]
    pairs = {f"{model} on {name}" for model in shipped("models") for name in shipped("clusters")}
    assert {*named, *found.left_out} == pairs
    assert len(named) + len(found.left_out) == len(pairs)
    assert found.left_out["llama-70b on gpu-cpu"].startswith("needs 2.")
    assert all(np.isfinite(price_bound(entry.tables)[0]) for entry in found.problems)
    assert chain_collection("real") is found


@pytest.mark.slow
def test_the_real_graphs_are_the_pairs_whose_memory_and_devices_suffice() -> None:
    found = graph_collection("real")
    named = [entry.name for entry in found.problems]
    pairs = {f"{model} on {name}" for model in shipped("models") for name in shipped("clusters")}
    assert {*named, *found.left_out} == pairs
    assert found.left_out["gpt2 on eight-types"] == "has 24 devices, more than 16"
    assert found.left_out["llama-70b on gpu-cpu"] == "no packing fits, even with one sample"
    assert graph_collection("real") is found


def test_an_unknown_set_is_named() -> None:
    with pytest.raises(UnknownNameError, match="in-range"):
        chain_set("in-rnge")
    with pytest.raises(UnknownNameError, match="in-range"):
        graph_set("in-rnge")


def test_published_workloads_need_their_folder(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="needs the folder of published workloads"):
        chain_set("published")
    with pytest.raises(HeterpsError, match="holds none of the folders sailor, galvatron"):
        chain_set("published", str(tmp_path))
    with pytest.raises(HeterpsError, match="needs the folder of published workloads"):
        graph_set("published")
    with pytest.raises(HeterpsError, match="holds none of the folders dnn-partitioning, pipedream"):
        graph_set("published", tmp_path)
