"""Two launchers on the loopback, as on two hosts: one run, one result, one error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_runtime.specification.hosts import free_port
from tests.runtime.processes import processes_of, ranks_of
from tests.runtime.small_runs import chain_of, problem_of
from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import plan_of_cuts

LIMIT_S = 120.0


def _files(folder: Path) -> Path:
    """A plan of three stages on two nodes of one and of two devices, with its model and cluster."""
    problem = problem_of("sequential")
    link = Link(latency_s=2e-3, bandwidth_bytes_per_s=1e6)
    (node,) = problem.cluster.nodes

    def part(name: str, devices: tuple[DeviceGroup, ...]) -> Node:
        return Node(name=name, devices=devices, link=link)

    cluster = Cluster(
        name=problem.cluster.name,
        device_types=problem.cluster.device_types,
        nodes=(part("one", node.devices[:1]), part("two", node.devices[1:])),
        inter_node_link=link,
    )
    cluster.to_file(folder / "cluster.yaml")
    problem.profile.to_file(folder / "model.yaml")
    references = {"model_reference": "model.yaml", "cluster_reference": "cluster.yaml"}
    chain_of(problem, 3, 6).changed(**references).to_file(folder / "plan.yaml")
    return folder / "plan.yaml"


def _start(plan: Path, rank: int, port: int, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "heterps", "run", str(plan), "--nodes", "2", "--node-rank",
        str(rank), "--rendezvous", f"127.0.0.1:{port}",
        # As on a shared file system.
        "--run-directory", str(plan.parent / "run"), *options,
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _ends(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; nothing is left behind."""
    try:
        texts = [process.communicate(timeout=LIMIT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, output, errors)
        for process, (output, errors) in zip(processes, texts, strict=True)
    ]


@pytest.mark.slow
def test_two_hosts_with_different_numbers_of_devices_train_as_one_process(tmp_path: Path) -> None:
    plan, port = _files(tmp_path), free_port()
    options = "--steps", "3", "--json", "--verify"
    first, second = _ends([_start(plan, rank, port, *options) for rank in (0, 1)])
    assert first[0] == 0, first[2]
    assert second[0] == 0, second[2]
    answer = json.loads(first[1])
    assert answer["max_loss_difference"] < 1e-5
    assert [entry["device"] for entry in answer["devices"]] == ["d0", "d1", "d2"]
    assert second[1] == "", "host 0 prints the results"
    assert "host 1 ran d1, d2" in second[2].replace("\n", " ")
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_killed_rank_of_one_host_ends_both_with_its_name(tmp_path: Path) -> None:
    plan, port = _files(tmp_path), free_port()
    processes = [_start(plan, rank, port, "--steps", "1000000") for rank in (0, 1)]
    workers: list[int] = []
    deadline_s = time.monotonic() + LIMIT_S / 2
    while len(workers) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.2)
        workers = list(ranks_of(tmp_path / "run" / "host-1").values())
    os.kill(workers[-1], signal.SIGKILL)
    first, second = _ends(processes)
    for code, _, errors in (first, second):
        assert code == 2, errors
        assert "was ended by SIGKILL" in errors
    assert "host 1: rank " in first[2]
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_host_with_another_plan_ends_both_before_workers_start(tmp_path: Path) -> None:
    plan, port = _files(tmp_path), free_port()
    processes = [_start(plan, 0, port, "--steps", "3"), _start(plan, 1, port, "--steps", "4")]
    for code, _, errors in _ends(processes):
        assert code == 2
        assert "--steps: 4 here, 3 on host 0" in errors.replace("\n", " ")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_users_own_loop_runs_across_two_launchers_of_torchrun(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan_of_cuts(1, num_layers=3).to_file(plan)
    port = free_port()
    processes = []
    for rank in range(2):
        address = ("--master-addr=127.0.0.1", f"--master-port={port}")
        meeting = ("--nnodes=2", f"--node-rank={rank}", *address)
        command = torchrun_command(plan, 1, "tests.runtime.faulty_script", meeting)
        processes.append(
            subprocess.Popen(
                [*command, str(tmp_path), "none", "wrong-output"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    assert [code for code, _, _ in _ends(processes)] == [0, 0]
    one, other = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert one == other
    assert float(one["none"]) > 0
    assert one["wrong-output"] == "rank 1 (d1): IndexError: Target 3 is out of bounds."
