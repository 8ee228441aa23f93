"""`heterps place-graph`: layers and operators on concrete devices, and one line for bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_agents.graphs.network import GraphScorer
from heterps_configs.documents.operator_graph import OperatorGraph, OperatorNode

Heterps = Callable[..., Any]


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "mine.npz"
    GraphScorer(16, 8, 1).exported({}).save(path)
    return path


@pytest.fixture
def operators(tmp_path: Path) -> Path:
    """A fork of two operators on two accelerators, as a document."""
    nodes = [
        OperatorNode(name=name, accelerator_s=1.0, memory_bytes=10.0, communication_s=0.01)
        for name in ("in", "left", "right", "out")
    ]
    graph = OperatorGraph(
        name="fork",
        num_accelerators=2,
        accelerator_memory_bytes=100.0,
        nodes=tuple(nodes),
        edges=((0, 1), (0, 2), (1, 3), (2, 3)),
    )
    path = tmp_path / "fork.yaml"
    graph.to_file(path)
    return path


def test_an_operator_graph_is_placed_and_written(
    heterps: Heterps, operators: Path, policy: Path, tmp_path: Path
) -> None:
    file = tmp_path / "placement.json"
    outcome = heterps("place-graph", operators, "--policy", policy, "-o", file, "--json")
    assert outcome.code == 0
    answer = outcome.data
    assert answer == json.loads(file.read_text())
    assert [node["name"] for node in answer["nodes"]] == ["in", "left", "right", "out"]
    left, right = (answer["nodes"][index]["device"] for index in (1, 2))
    assert left != right  # side by side
    assert 3.0 < answer["step_time_s"] < 3.1
    assert answer["step_time_s"] <= answer["earliest_finish_step_time_s"]
    assert sum(device["busy_s"] for device in answer["devices"]) == pytest.approx(4.0)
    assert sum(device["memory_bytes"] for device in answer["devices"]) == pytest.approx(40.0)


def test_many_idle_devices_are_one_row(heterps: Heterps, operators: Path, policy: Path) -> None:
    graph = OperatorGraph.from_file(operators).changed(num_accelerators=16)
    graph.to_file(operators)
    text = heterps("place-graph", operators, "--policy", policy).out
    assert "14 idle" in text
    assert len(text.splitlines()) < 12


def test_the_layers_of_a_model_are_placed_on_a_cluster(
    heterps: Heterps, blocks: Path, policy: Path
) -> None:
    outcome = heterps(
        "place-graph", blocks, "-c", "local-emulated", "--policy", policy, "--evaluations", 200
    )
    assert outcome.code == 0
    for word in ("step time", "earliest finish", "annealing alone", "memory"):
        assert word in outcome.out


def test_seconds_end_a_placement(heterps: Heterps, operators: Path, policy: Path) -> None:
    outcome = heterps("place-graph", operators, "--policy", policy, "--cpu-seconds", 0.05, "--json")
    assert outcome.code == 0
    assert outcome.data["evaluations"] >= 1


def test_the_answer_is_the_best_placement_that_is_shown(heterps: Heterps, policy: Path) -> None:
    asked = ("place-graph", "ctr", "-c", "a100-v100", "--policy", policy, "--evaluations", 1)
    answer = heterps(*asked, "--json").data
    assert answer["annealing_step_time_s"] < answer["search_step_time_s"]  # else nothing is shown
    assert answer["found_by"] == "annealing alone"
    assert answer["step_time_s"] == answer["annealing_step_time_s"]
    busiest_s = max(device["busy_s"] for device in answer["devices"])
    assert busiest_s <= answer["step_time_s"]  # the nodes are those of the better placement
    text = heterps(*asked).out
    assert "annealing alone found it" in text
    assert "-" not in "".join(line[18:] for line in text.splitlines()[-3:])  # none is shorter
    assert "1 evaluation," in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "no such file; a model needs --cluster"),
        (["gpt2", "-c", "nowhere"], "unknown cluster"),
        (["{operators}", "--effort", "best"], "unknown effort 'best'"),
        (["{operators}", "--global-batch", "8"], "a job needs a model"),
        (["{operators}", "--accelerators", "2"], "the file says how many"),
        (["{operators}", "--policy", "generalist"], "chains of layers"),
        (["{operators}", "--cpu-seconds", "0"], "cpu_seconds 0: expected"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    heterps: Heterps, operators: Path, arguments: list[str], message: str
) -> None:
    filled = [text.format(operators=operators) for text in arguments]
    outcome = heterps("place-graph", *filled)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_a_profile_of_pipedream_needs_a_number_of_accelerators(
    heterps: Heterps, tmp_path: Path
) -> None:
    path = tmp_path / "profile.txt"
    path.write_text("")
    outcome = heterps("place-graph", path)
    assert outcome.code == 2
    assert "--accelerators" in outcome.err


def test_what_a_job_says_beside_its_batch_is_ignored_and_that_is_said(
    heterps: Heterps, policy: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("global_batch_size: 32\nmin_throughput_samples_per_s: 1e9\n")
    with pytest.warns(UserWarning, match="^min_throughput_samples_per_s of the job: ignored;"):
        outcome = heterps(
            "place-graph", "perceptron", "-c", "gpu-cpu", "--job", job, "--policy", policy,
            "--evaluations", 20,
        )  # fmt: skip
    assert outcome.code == 0
