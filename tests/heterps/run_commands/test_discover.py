"""`heterps discover` as a user runs it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps.run_commands.links import node_of_this_machine
from heterps_configs.library import load_cluster

Heterps = Callable[..., Any]


def test_the_file_of_this_machine_loads_and_says_what_is_assumed(
    heterps: Heterps, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    outcome = heterps("discover", "-o", path, "--name", "mine")
    assert outcome.code == 0
    cluster = load_cluster(str(path))
    assert cluster.name == "mine"
    assert f"cluster written to {path}" in outcome.out
    assert f"heterps place gpt2 -c {path}" in outcome.out
    for remark in heterps("discover", "--json").data["remarks"]:
        assert remark in outcome.out
    assert list(tmp_path.iterdir()) == [path], "no temporary file is left"


@pytest.mark.slow
def test_a_model_is_placed_on_what_was_discovered(heterps: Heterps, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    heterps("discover", "-o", path)
    placed = heterps("place", "gpt2", "-c", path, "--json", "--evaluations", 100)
    assert placed.code == 0
    assert placed.data["plan"]["cluster"] == load_cluster(str(path)).name


def test_links_are_measured_into_the_node_that_was_discovered(
    heterps: Heterps, tmp_path: Path
) -> None:
    """`heterps profile --links -c` looks for the node of this machine."""
    path = tmp_path / "cluster.yaml"
    heterps("discover", "-o", path)
    cluster = load_cluster(str(path))
    assert node_of_this_machine(cluster, str(path)) is cluster.nodes[0]


def test_without_a_file_the_answer_is_the_cluster_and_nothing_else(
    heterps: Heterps, tmp_path: Path
) -> None:
    outcome = heterps("discover")
    path = tmp_path / "printed.yaml"
    path.write_text(outcome.out)
    assert load_cluster(str(path)).nodes
    assert "host  " in outcome.err


def test_json_has_the_cluster_the_hosts_and_the_remarks(heterps: Heterps) -> None:
    data = heterps("discover", "--json").data
    assert set(data) == {"cluster", "hosts", "remarks"}
    assert data["hosts"][0]["processors"]["memory_bytes"] > 0


def test_a_file_that_is_there_is_kept_unless_forced(heterps: Heterps, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("precious")
    outcome = heterps("discover", "-o", path)
    assert outcome.code == 2
    assert "--force replaces it" in outcome.err
    assert path.read_text() == "precious"
    assert heterps("discover", "-o", path, "--force").code == 0
    assert load_cluster(str(path)).nodes


def test_nobody_is_asked_where_the_file_cannot_be_written(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for path in (tmp_path / "no-folder" / "c.yaml", tmp_path / "c.json", tmp_path):
        outcome = heterps("discover", "-o", path, "--hosts", "unreachable")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "--output" in outcome.err


@pytest.mark.parametrize("name", ["-oProxyCommand=touch owned", "--help", "a;touch owned"])
def test_no_host_is_an_option_or_a_command(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = heterps("discover", f"--hosts={name}")
    assert outcome.code == 2
    assert "is no name of a host" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_fail_are_one_line_and_no_file(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'Permission denied (publickey).' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    hosts = tmp_path / "hosts"
    hosts.write_text("a\nb  # another\n")
    outcome = heterps("discover", "--hosts-file", hosts, "-o", tmp_path / "c.yaml")
    assert outcome.code == 2
    assert outcome.err.splitlines()[-1] == (
        "error: 2 of 2 hosts did not answer: a: Permission denied (publickey).; "
        "b: Permission denied (publickey)."
    )
    assert not (tmp_path / "c.yaml").exists()


def test_a_name_that_no_document_takes_is_refused(heterps: Heterps) -> None:
    for name in ("two\nlines", "x" * 2000, "half of a character \udcff"):
        outcome = heterps("discover", "--name", name)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert heterps("discover", "--name", "").code == 0, "an empty name is the host's"
