"""Elastic runs on two hosts: one is lost and comes back, the other is lost and the run resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.fleet.messages import Welcome
from heterps_runtime.fleet.others import SERVICE
from heterps_runtime.network.connection import Connection
from heterps_runtime.network.dial import Host0
from heterps_runtime.network.gate import Gate, Hello
from heterps_runtime.network.lines import Lines
from heterps_runtime.specification.build import build_specification
from heterps_runtime.state.checkpoint_files import checkpoint_path, complete_checkpoints
from tests.runtime.elastic.small_runs import wait_until
from tests.runtime.networks import SECRET, Host, Network, ends, free_port, network
from tests.runtime.processes import kill_all, processes_of, ranks_of
from tests.runtime.runs_on_hosts import plan_file, start_run
from tests.runtime.small_runs import chain_of, problem_of

LIMIT_S = 120.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network() as made:
        yield made


def _options(folder: Path, steps: int) -> tuple[str, ...]:
    settings = folder / "settings.yaml"
    settings.write_text("checkpoint: {every: 5}\nelastic: {heartbeat_s: 60}\n")
    saving = "--checkpoint", str(folder / "saved"), "--settings", str(settings)
    return "--elastic", "--steps", str(steps), "--json", *saving


def _saved_step(folder: Path) -> int:
    """Of the newest checkpoint; 0 where there is none."""
    names = [path.name for path in complete_checkpoints(folder / "saved")]
    return max((int(name.rpartition("-")[2]) for name in names), default=0)


def _wait_for_step(folder: Path, step: int) -> None:
    """Until a checkpoint of that step or a later one is there."""
    assert wait_until(lambda: _saved_step(folder) >= step, LIMIT_S)


def _read_until(process: subprocess.Popen[str], texts: Collection[str]) -> str:
    """What it says on its standard error until every text was there, or to its end."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if all(text in said for text in texts):
            break
    return said


def test_a_run_goes_on_without_host_1_takes_it_in_again_and_equals_one_process(
    hosts: Network, tmp_path: Path
) -> None:
    """In mid-run all of its processes die at once, and with them the only copy of some layers.

    Many steps are left when host 1 is there again: a plan with its devices pays.
    """
    plan, port = plan_file(tmp_path, slowdowns=(1.0,) * 4, step_s=0.04), free_port()
    run, options = tmp_path / "run", (*_options(tmp_path, 45), "--verify")
    processes = [start_run(hosts, plan, rank, port, *options) for rank in (0, 1)]
    _wait_for_step(tmp_path, 10)
    kill_all([processes[1].pid, *(found.pid for found in processes_of(run / "host-1"))])
    processes.append(start_run(hosts, plan, 1, port, *options))
    # The steps behind those that host 0 does alone wait until all of host 1 is there.
    _wait_for_step(tmp_path, _saved_step(tmp_path) + 5)
    alone = ranks_of(run)["d0"]
    os.kill(alone, signal.SIGSTOP)
    said = _read_until(processes[0], [f"{name} has come" for name in ("d1", "d2", "d3")])
    os.kill(alone, signal.SIGCONT)
    (code, output, rest), _, (code_1, _, errors_1) = ends(processes)
    errors = said + rest
    assert code == 0, errors
    assert code_1 == 0, errors_1
    answer = json.loads(output)
    assert answer["max_loss_difference"] < 1e-5
    lost, *joined = answer["recoveries"]
    assert set(lost["lost"]) == {"d1", "d2", "d3"}
    assert lost["from_step"] >= 10, "from the checkpoint, not from the beginning"
    assert {name for each in joined for name in each["joined"]} & {"d1", "d2", "d3"}
    assert "d1 is lost: its host has gone" in errors
    assert "d1 has come" in errors
    assert "host 0 has the results" in errors_1
    assert processes_of(tmp_path) == []


def test_without_host_0_another_host_ends_and_says_what_resumes(tmp_path: Path) -> None:
    """Host 0 has a plan for it, and vanishes: this process plays its part."""
    plan, host_0 = plan_file(tmp_path), Host0("127.0.0.1", free_port(), SECRET.encode())
    problem = problem_of("sequential")
    chain = chain_of(problem, 3, 6)
    schedule, settings = build_schedule(problem, chain), RunSettings(steps=10)
    specification = build_specification(problem, chain, schedule, settings, devices=chain.devices)
    steps, agent = _options(tmp_path, 10), tmp_path / "run" / "host-1"
    saved = checkpoint_path(tmp_path / "saved", 5)

    def vanish(connection: Connection, hello: Hello) -> None:
        welcome = Welcome(specification=specification.model_dump_json())
        Lines(connection).send(welcome.model_dump())
        wait_until(lambda: bool(processes_of(agent)), LIMIT_S)
        saved.mkdir(parents=True)
        connection.cut()

    with Gate(host_0, print) as gate:
        gate.serve(SERVICE, vanish)
        alone = Network((Host(), Host()), Host(), are_apart=False)
        ((code, _, errors),) = ends([start_run(alone, plan, 1, host_0.port, *steps)])
    assert code == 2, errors
    assert f"host 0 ({host_0}) has gone: the connection broke; " in errors
    assert f"the same command on every host with --resume goes on from {saved}" in errors
    assert processes_of(tmp_path) == []
