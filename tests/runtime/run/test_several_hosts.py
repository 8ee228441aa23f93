"""Two launchers on two hosts: one run, one result, one error."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.runtime.networks import Network, ends, free_port, listening_addresses, network, start
from tests.runtime.processes import kill_all, processes_of, ranks_of
from tests.runtime.runs_on_hosts import plan_file, start_run
from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import plan_of_cuts

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network() as made:
        yield made


def _wait_for_ranks(plan: Path) -> None:
    deadline_s = time.monotonic() + LIMIT_S / 2
    while len(ranks_of(plan.parent / "run" / "host-1")) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.1)


@pytest.mark.slow
def test_two_hosts_train_as_one_process_whatever_a_stranger_does(
    hosts: Network, tmp_path: Path
) -> None:
    """They have different numbers of devices. The stranger knows where they meet."""
    plan, port = plan_file(tmp_path), free_port()
    options = "--steps", "40", "--json", "--verify"
    where = hosts.hosts[0].address, str(port)
    stranger = start(hosts.stranger, "-m", "tests.runtime.network.stranger", *where, secret=None)
    processes = [start_run(hosts, plan, rank, port, *options) for rank in (0, 1)]
    first, second = ends(processes)
    assert first[0] == 0, first[2]
    assert second[0] == 0, second[2]
    answer = json.loads(first[1])
    assert answer["max_loss_difference"] < 1e-5
    assert [entry["device"] for entry in answer["devices"]] == ["d0", "d1", "d2"]
    assert second[1] == "", "host 0 prints the results"
    assert "host 1 ran d1, d2" in second[2]
    ((_, found, errors),) = ends([stranger], 10)
    assert json.loads(found) == {
        "guesses": ["WrongSecretError"] * 2,
        "store": "DistNetworkError",
        "connections": 1000,
    }, errors
    assert first[2].count(f"{hosts.stranger.address} does not know this run's secret") == 1
    assert processes_of(tmp_path) == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_host_that_dies_is_noticed_as_soon_as_its_connections_break(
    hosts: Network, tmp_path: Path
) -> None:
    plan, port = plan_file(tmp_path), free_port()
    processes = [start_run(hosts, plan, rank, port, "--steps", "1000000") for rank in (0, 1)]
    _wait_for_ranks(plan)
    if hosts.are_apart:
        for host in hosts.hosts:
            assert listening_addresses(host) <= {"127.0.0.1", host.address}
    own = [found.pid for found in processes_of(plan.parent / "run" / "host-1")]
    began_s = time.monotonic()
    kill_all((processes[1].pid, *own))
    (code, _, errors), _ = ends(processes)
    assert time.monotonic() - began_s < 8, "it takes a second or two to end all processes"
    assert code == 2
    assert "host 1 has gone: its connection broke" in errors
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_host_with_another_plan_ends_both_before_workers_start(
    hosts: Network, tmp_path: Path
) -> None:
    plan, port = plan_file(tmp_path), free_port()
    processes = [
        start_run(hosts, plan, 0, port, "--steps", "3"),
        start_run(hosts, plan, 1, port, "--steps", "4"),
    ]
    for code, _, errors in ends(processes):
        assert code == 2
        assert "--steps: 4 here, 3 on host 0" in errors
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
    assert [code for code, _, _ in ends(processes)] == [0, 0]
    one, other = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert one == other
    assert float(one["none"]) > 0
    assert one["wrong-output"] == "rank 1 (d1): IndexError: Target 3 is out of bounds."
