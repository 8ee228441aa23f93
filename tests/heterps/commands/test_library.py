"""`heterps list`, `copy` and `schema`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_agents.interface.papers import EVIDENCE

Heterps = Callable[..., Any]


@pytest.mark.slow
def test_list_names_everything_that_is_shipped(heterps: Heterps) -> None:
    listed = heterps("list", "--json").data
    assert "a100-v100-t4" in listed["clusters"]
    assert {"llama-7b", "gpt2", "ctr", "llama-tiny"} <= set(listed["models"])
    assert "generalist" in listed["policies"]
    assert {"exact", "ppo", "even"} <= set(listed["planners"])


def test_planners_and_systems_are_listed_with_their_papers(heterps: Heterps) -> None:
    listed = heterps("list", "planners", "--json").data
    assert {"exact", "sailor", "piper", "heterps-lstm"} <= set(listed["planners"])
    sailor = listed["papers"]["sailor"]
    assert (sailor["authors"], sailor["year"], sailor["venue"]) == ("Strati et al.", 2025, "SOSP")
    assert "benchmarks/published/sailor.py" in [each["where"] for each in sailor["evidence"]]
    text = " ".join(heterps("list", "planners").out.split())
    assert "Narayanan et al., 2019: PipeDream: Generalized" in text


def test_evidence_stands_where_it_is_said_to_be() -> None:
    root = Path(__file__).resolve().parents[3]
    files = {entry.where for entries in EVIDENCE.values() for entry in entries}
    assert all((root / file).is_file() for file in files)


def test_list_of_an_unknown_kind_suggests_a_near_one(heterps: Heterps) -> None:
    outcome = heterps("list", "cluster")
    assert outcome.code == 2
    assert "clusters" in outcome.err


def test_devices_are_listed_with_everything_that_the_catalogue_says(heterps: Heterps) -> None:
    text = heterps("list", "devices", "--detail").out
    a100 = " ".join(text.partition("\nA100-40G  nvidia ampere\n")[2].split())
    assert a100.startswith(
        "memory 40 GB at 1555 GB/s, host 25.6 GB/s "
        "peaks float32 19.5, tf32 156, float16 312, bfloat16 312 TFLOP/s "
        "links nvlink3 (186 GB/s), pcie4 (21.4 GB/s) "
        "price $2.745/h (2025-06): AWS on-demand p4d.24xlarge us-east-1 (21.96), divided by 8 "
        "calibrated on 13 tables of benson-guo/cephalo, 3 tables of eth-easl/sailor "
        "source NVIDIA A100 Tensor Core GPU data sheet, 40GB SXM"
    )
    assert "calibrated on cards like it (A10G, " in " ".join(text.split())
    listed = heterps("list", "devices", "--detail", "--json").data
    assert listed["devices"] == list(listed["device_types"])
    assert listed["device_types"]["L4"]["architecture"] == "ada"


def test_details_are_those_of_devices(heterps: Heterps) -> None:
    outcome = heterps("list", "links", "--detail")
    assert (outcome.code, outcome.out) == (2, "")
    assert "--detail is for `heterps list devices`" in outcome.err


def test_kinds_of_links_are_listed_with_the_error_of_their_fit(heterps: Heterps) -> None:
    rows = [line.split() for line in heterps("list", "links").out.splitlines()]
    assert ["pcie3", "54.2", "us", "10.7", "GB/s", "15.75", "GB/s", "4", "%"] in rows
    assert ["nvlink4", "15.1", "us", "339", "GB/s", "450", "GB/s"] in rows
    kinds = heterps("list", "links", "--json").data["link_kinds"]
    assert kinds["nvlink4"]["fit_error"] is None
    assert 0.1 < kinds["nvlink3"]["fit_error"] < 0.26


def test_a_cluster_with_named_links_is_placed_on(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    cluster = tmp_path / "mine.yaml"
    cluster.write_text(
        "{name: mine, nodes: [{name: n, devices: [{name: h, type: H100-80G, count: 2}], "
        "link: nvlink4}]}"
    )
    placed = heterps("place", blocks, "-c", cluster, "-p", "greedy", "--json").data
    assert placed["plan"]["cluster"] == "mine"
    cluster.write_text(cluster.read_text().replace("nvlink4", "nvlink9"))
    outcome = heterps("place", blocks, "-c", cluster)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{cluster}: nodes.0.link: unknown kind of link 'nvlink9'; known: none, nvl" in (
        outcome.err.replace("\n", "")
    )


@pytest.mark.slow
def test_a_copied_cluster_can_be_edited_and_used(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    assert heterps("copy", "a100-v100", tmp_path).code == 0
    copied = tmp_path / "a100-v100.yaml"
    copied.write_text(copied.read_text().replace("name: a100-v100", "name: mine", 1))
    placed = heterps("place", blocks, "-c", copied, "-p", "greedy", "--json").data
    assert placed["plan"]["cluster"] == "mine"


def test_copy_does_not_overwrite_unless_told(heterps: Heterps, tmp_path: Path) -> None:
    heterps("copy", "a100-v100", tmp_path)
    assert heterps("copy", "a100-v100", tmp_path).code == 2
    assert heterps("copy", "a100-v100", tmp_path, "--overwrite").code == 0


def test_schemas_are_written_for_every_document(heterps: Heterps, tmp_path: Path) -> None:
    outcome = heterps("schema", tmp_path)
    written = {Path(line).name for line in outcome.out.split()}
    assert {"cluster.schema.json", "plan.schema.json"} <= written
