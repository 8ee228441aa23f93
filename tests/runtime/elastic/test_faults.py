"""What may happen to an elastic run: it goes on with the losses of a run that nothing happened to.

Every test leaves no process behind, and checks what is said.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, ElasticSettings
from heterps_configs.errors import NotEnoughDevicesError
from heterps_runtime.elastic.records import MembershipChange
from heterps_runtime.results.result import RunResult
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    checkpoint_path,
    complete_checkpoints,
)
from tests.runtime.elastic.small_runs import (
    LIMIT_S,
    STEP_S,
    Chains,
    ElasticCase,
    Groups,
    elastic_problem,
    send,
    uninterrupted,
    wait_until,
)
from tests.runtime.processes import processes_of, ranks_of
from tests.runtime.small_runs import DEVICES, problem_of

ENDLESS = ElasticSettings(heartbeat_s=LIMIT_S, stall_s=LIMIT_S)

pytestmark = pytest.mark.slow
# Heartbeats that are missed on a busy machine are faults of their own, and where the parent of a
# run is held up, its ranks are steps ahead when it strikes.
by_the_clock = pytest.mark.alone


@pytest.fixture
def case(tmp_path: Path) -> Iterator[ElasticCase]:
    """Three devices, and none of their processes afterwards."""
    case = ElasticCase(elastic_problem(), tmp_path / "run")
    yield case
    assert wait_until(lambda: not processes_of(case.directory), 10)


def check_losses(case: ElasticCase, result: RunResult) -> None:
    assert list(result.losses) == pytest.approx(uninterrupted(case.problem, case.steps), abs=1e-5)


def killed_in(case: ElasticCase) -> list[str]:
    """Devices whose processes were killed, as the run has said it."""
    return re.findall(r"(\w+) is lost: ended by SIGKILL", case.text)


def check_usable(case: ElasticCase, folder: Path) -> int:
    """The newest checkpoint can be read by plain torch, and trained on from; returns its step."""
    newest = complete_checkpoints(folder)[-1]
    step = CheckpointDocument.of(newest).step
    assert load_state_dict(newest).document.step == step
    expected = uninterrupted(case.problem, step + 3)
    found = uninterrupted(case.problem, step + 3, newest, step)
    assert found == pytest.approx(expected[step:], abs=1e-5)
    return step


@by_the_clock
def test_a_device_is_killed_and_another_one_hangs(case: ElasticCase) -> None:
    case.steps = 16
    events = (RunEvent(step=3, lose="d1"), RunEvent(step=8, stop="d2"))
    result = case.run(events=events, limits=ElasticSettings(heartbeat_s=3.0))
    check_losses(case, result)
    assert [(r.lost, r.decision) for r in result.recoveries] == [
        (("d1",), "a chain of 2"),
        (("d2",), "a chain of 1"),
    ]
    assert "d1 is lost: ended by SIGKILL" in case.text
    assert "d2 is lost: no sign of life for 3 s" in case.text
    # Nobody else holds the layers of either, and there is no checkpoint: all steps come again.
    assert [recovery.from_step for recovery in result.recoveries] == [0, 0]
    assert set(result.generations) == {2}


def test_ranks_of_groups_are_killed_one_after_the_other(tmp_path: Path) -> None:
    """Groups of two replicas that share state, then groups in a chain, then one device."""
    problem = problem_of("llama", slowdowns=(1.0,) * 4, step_s=STEP_S)
    case = ElasticCase(problem, tmp_path / "run", steps=14, devices=DEVICES)
    plans = Groups(problem)
    events = tuple(RunEvent(step=s, lose=d) for s, d in ((4, "d1"), (7, "d2"), (10, "d0")))
    settings = CheckpointSettings(folder=str(tmp_path / "saved"), every=2)
    plan = plans.plan_for(DEVICES)
    result = case.run(plans, plan=plan, events=events, checkpoint=settings)
    check_losses(case, result)
    assert killed_in(case) == ["d1", "d2", "d0"]
    # What a lost rank alone had is read, and not all of the state. Where gloo has ended the process
    # of another at the break, more is lost than one, and a rank that is lost after that may have
    # nothing alone. On a busy machine the newest checkpoint may be incomplete when a rank is
    # killed: then all of the one before is read, or nothing of the first.
    num_parameters = sum(layer.num_parameters for layer in problem.profile.layers)
    read = [r.bytes_by_source["local"] for r in result.recoveries if len(r.lost) == 1]
    assert any(0 < num_bytes < 0.9 * 3 * 4 * num_parameters for num_bytes in read), read
    assert not processes_of(case.directory)


@by_the_clock
def test_a_device_that_gets_slow_is_not_taken_for_dead(case: ElasticCase) -> None:
    """Its step takes longer than heartbeats may be missing."""
    heartbeat_s, own_s = 2.0, 4 * STEP_S / 3
    slow = RunEvent(step=4, slow="d1", factor=1.5 * heartbeat_s / own_s)
    case.steps = 5
    result = case.run(events=[slow], limits=ElasticSettings(heartbeat_s=heartbeat_s))
    check_losses(case, result)
    assert result.step_times_s[-1] > heartbeat_s
    assert not result.recoveries
    assert "lost" not in case.text


def test_two_devices_are_lost_at_once_and_a_third_in_the_recovery(tmp_path: Path) -> None:
    """The third is killed when the plan for the others is about to be answered."""
    directory = tmp_path / "run"
    case = ElasticCase(elastic_problem(), directory, devices=("d0", "d1", "d2", "d3"))

    def strike(change: MembershipChange) -> None:
        send(directory, "d3", signal.SIGKILL)

    events = [RunEvent(step=4, lose=name) for name in ("d1", "d2")]
    settings = CheckpointSettings(folder=str(tmp_path / "saved"), every=2)
    result = case.run(Chains(case.problem, before=strike), events=events, checkpoint=settings)
    check_losses(case, result)
    lost = {name for recovery in result.recoveries for name in recovery.lost}
    assert lost == {"d1", "d2", "d3"}
    assert result.recoveries[-1].decision == "a chain of 1"
    assert check_usable(case, tmp_path / "saved") == case.steps
    assert not processes_of(directory)


@by_the_clock
def test_the_last_device_goes_on_in_a_new_process_when_its_own_has_crashed(tmp_path: Path) -> None:
    """Nothing is wrong with it: gloo ends a process where a connection breaks at a bad moment."""
    case = ElasticCase(elastic_problem(), tmp_path / "run", devices=("d0",))
    crashes = [signal.SIGABRT]

    def strike(num_done: int) -> None:
        if num_done >= 5 and crashes:
            send(case.directory, "d0", crashes.pop())

    case.on_step = strike
    settings = CheckpointSettings(folder=str(tmp_path / "saved"), every=2)
    result = case.run(checkpoint=settings)
    check_losses(case, result)
    assert "d0 is lost: ended by SIGABRT" in case.text
    assert "waiting for devices" in case.text
    (recovery,) = result.recoveries
    assert recovery.from_step in (2, 4)


@by_the_clock
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_failure_while_the_new_generation_meets_begins_another(
    number: signal.Signals, case: ElasticCase
) -> None:
    def strike(*_: object) -> None:
        send(case.directory, "d2", number)

    result = case.run(
        events=[RunEvent(step=3, lose="d1")],
        on_plan=strike,
        limits=ElasticSettings(heartbeat_s=3.0),
    )
    check_losses(case, result)
    assert result.recoveries[-1].first_step_s < 15.0
    assert result.recoveries[-1].decision == "a chain of 1"
    assert {name for r in result.recoveries for name in r.lost} == {"d1", "d2"}


@by_the_clock
def test_a_damaged_shard_takes_the_run_to_the_checkpoint_before_it(
    case: ElasticCase, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    settings = CheckpointSettings(folder=str(folder), every=4, keep=3)
    case.steps = 20
    damaged: list[Path] = []

    def strike(num_done: int) -> None:
        newest = checkpoint_path(folder, 8)
        if num_done >= 9 and newest.exists() and not damaged:
            for shard in newest.glob("*.safetensors"):
                content = bytearray(shard.read_bytes())
                content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)
                shard.write_bytes(content)
                damaged.append(shard)
            send(case.directory, "d1", signal.SIGKILL)

    case.on_step = strike
    result = case.run(checkpoint=settings)
    assert damaged
    check_losses(case, result)
    (recovery,) = result.recoveries
    assert recovery.from_step == 4
    assert recovery.steps_repeated >= 5
    assert "step-000008" in case.text
    assert check_usable(case, folder) == case.steps


@by_the_clock
def test_a_full_disk_ends_no_run_and_a_later_checkpoint_is_written(
    case: ElasticCase, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    case.devices, case.steps = ("d0", "d1"), 40
    limits: list[int] = []

    def limit(num_bytes: int) -> None:
        """So large may the files of the workers become; beyond, the system refuses to write."""
        limits.append(num_bytes)
        for pid in ranks_of(case.directory).values():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))

    def fill(num_done: int) -> None:
        if num_done >= 3 and not limits:
            limit(5000)

    def make_room(text: str) -> None:
        if "File too large" in text and len(limits) == 1:
            limit(resource.RLIM_INFINITY)

    case.on_step, case.on_message = fill, make_room
    result = case.run(checkpoint=CheckpointSettings(folder=str(folder), every=2))
    check_losses(case, result)
    assert not result.recoveries
    assert f"cannot be written to {folder}: " in case.text
    assert check_usable(case, folder) == case.steps


def test_a_device_comes_and_is_taken_in_at_a_step_boundary(case: ElasticCase) -> None:
    """Training waits for it, because its process takes longer to start than the whole run."""
    case.steps = 40
    _wait_for_newcomer(case)
    result = case.run(events=[RunEvent(step=3, join="d3")], limits=ENDLESS)
    check_losses(case, result)
    (recovery,) = result.recoveries
    assert (recovery.joined, recovery.lost) == (("d3",), ())
    assert recovery.decision == "a chain of 4"
    assert recovery.steps_repeated == 0
    assert set(recovery.bytes_by_source) >= {"replica"}
    assert "d3 has come" in case.text


def test_a_device_that_comes_back_before_there_is_a_plan_waits_for_it(case: ElasticCase) -> None:
    """It has no part in the generation that its lost process was in."""

    def wait(change: MembershipChange) -> None:
        if "d1" not in change.alive:
            assert wait_until(lambda: "d1 has come" in case.text, 60)
        time.sleep(0.3)

    case.devices, case.steps = ("d0", "d1"), 4
    events = [RunEvent(step=2, lose="d1"), RunEvent(step=2, join="d1")]
    result = case.run(Chains(case.problem, before=wait), events=events, limits=ENDLESS)
    check_losses(case, result)
    assert set(result.generations) <= {0, 1}
    assert "connecting anew" not in case.text
    log = (case.directory / "rank-1.log").read_text()
    assert "generation 0 is broken" not in log.rpartition("process ")[2]


@pytest.mark.parametrize("victim", ["d1", "d3"])
def test_a_failure_while_states_move_to_a_newcomer(victim: str, case: ElasticCase) -> None:
    """One that hands its layers over is lost, or the one that they go to."""
    _wait_for_newcomer(case)
    killed: list[str] = []

    def strike(*_: object) -> None:
        if not killed:
            killed.append(victim)
            send(case.directory, victim, signal.SIGKILL)

    result = case.run(
        events=[RunEvent(step=3, join="d3")],
        on_plan=strike,
        limits=ENDLESS,
    )
    check_losses(case, result)
    assert f"{victim} is lost: ended by SIGKILL" in case.text
    assert result.recoveries[-1].decision == "a chain of 3"


def _wait_for_newcomer(case: ElasticCase) -> None:
    """One rank is stopped, and with it all, until the newcomer is ready."""
    stopped: list[int] = []

    def stop(num_done: int) -> None:
        if num_done >= 3 and not stopped:
            stopped.append(num_done)
            send(case.directory, "d0", signal.SIGSTOP)

    def go_on(text: str) -> None:
        if "d3 has come" in text:
            send(case.directory, "d0", signal.SIGCONT)

    case.on_step, case.on_message = stop, go_on


@by_the_clock
def test_too_few_devices_end_the_run_and_name_the_checkpoint(
    case: ElasticCase, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    with pytest.raises(NotEnoughDevicesError, match="2 devices; at least 3"):
        case.run(
            Chains(case.problem, least=3),
            events=[RunEvent(step=6, lose="d1")],
            checkpoint=CheckpointSettings(folder=str(folder), every=2),
        )
    step = check_usable(case, folder)
    assert step >= 4
    result = case.run(checkpoint=CheckpointSettings(folder=str(folder)), resume=True)
    assert result.first_step == step
    expected = uninterrupted(case.problem, case.steps)[step:]
    assert list(result.losses) == pytest.approx(expected, abs=1e-5)


def test_without_its_controller_a_run_ends_and_leaves_a_usable_checkpoint(
    case: ElasticCase, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    command = [
        sys.executable,
        "-m",
        "tests.runtime.elastic.small_runs",
        str(case.directory),
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            assert any(int(line) >= 7 for line in parent.stdout)
        finally:
            parent.kill()
    assert wait_until(lambda: not processes_of(case.directory), 15)
    assert check_usable(case, folder) >= 2
