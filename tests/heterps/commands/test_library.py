"""`heterps list`, `copy` and `schema`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_agents.interface.papers import EVIDENCE

Heterps = Callable[..., Any]


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


@pytest.mark.slow
def test_a_copied_cluster_can_be_edited_and_used(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    assert heterps("copy", "a100-v100", tmp_path).code == 0
    copied = tmp_path / "a100-v100.yaml"
    copied.write_text(copied.read_text().replace("name: a100-v100", "name: mine", 1))
    placed = heterps("place", blocks, "--cluster", copied, "--json").data
    assert placed["plan"]["cluster"] == "mine"


def test_copy_does_not_overwrite_unless_told(heterps: Heterps, tmp_path: Path) -> None:
    heterps("copy", "a100-v100", tmp_path)
    assert heterps("copy", "a100-v100", tmp_path).code == 2
    assert heterps("copy", "a100-v100", tmp_path, "--overwrite").code == 0


def test_schemas_are_written_for_every_document(heterps: Heterps, tmp_path: Path) -> None:
    outcome = heterps("schema", tmp_path)
    written = {Path(line).name for line in outcome.out.split()}
    assert {"cluster.schema.json", "plan.schema.json"} <= written
