"""Whole runs: predicted against measured, online re-planning, and the ways in which a run fails."""

from __future__ import annotations

import json
import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_configs.units import bytes_text
from heterps_envs.online.correction import drift
from heterps_runtime.execution.memory_check import peak_bytes
from heterps_runtime.results.measurements import Measurements
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import RESULT_FILE, RunResult
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from tests.runtime.processes import parent_of, processes_of, ranks_of
from tests.runtime.small_runs import chain_of, problem_of


@pytest.mark.slow
def test_a_plan_may_come_in_for_the_last_step_alone() -> None:
    """The memory of its one step is not measured, and that of the plan before is not its own."""
    problem = problem_of("sequential")
    update = PlanUpdate(chain_of(problem, 4, devices=("d0", "d1")), problem, 3)
    result = run_plan(
        problem, chain_of(problem, 3, 6), RunSettings(steps=4, verify=True), updates=(update,)
    )
    assert result.generations == (0, 0, 0, 1)
    assert result.max_loss_difference == pytest.approx(0, abs=1e-5)
    assert result.memory_curves == ()
    assert [report.memory for report in result.devices] == [None] * len(result.devices)


def test_a_run_outlives_the_process_that_it_is_verified_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*arguments: object) -> None:
        assert RunResult.from_file(tmp_path / RESULT_FILE).verification_error is None
        raise HeterpsError("timeout_s: the run was ended")

    monkeypatch.setattr("heterps_runtime.run.run_plan.run_reference", failed)
    problem = problem_of("sequential")
    settings = RunSettings(steps=2, verify=True, run_directory=str(tmp_path))
    result = run_plan(problem, chain_of(problem, 4), settings)
    assert len(result.losses) == 2
    assert (result.is_verified, result.max_loss_difference) == (False, None)
    assert result.verification_error == "timeout_s: the run was ended"
    assert RunResult.from_file(tmp_path / RESULT_FILE).losses == result.losses


@pytest.mark.slow
@pytest.mark.alone
def test_emulated_run_takes_what_the_simulator_says_and_adapts_to_a_drift(tmp_path: Path) -> None:
    # The host needs about 0.2 ms for what takes these devices 4 ms and more.
    problem = problem_of("sequential", slowdowns=(4, 4, 8, 8), step_s=0.01)
    seen: list[Measurements] = []

    def controller(measurements: Measurements) -> PlanUpdate | None:
        seen.append(measurements)
        if measurements.step < 9 or measurements.generation > 0:
            return None
        return PlanUpdate(chain_of(problem, 4, devices=("d0", "d3")), problem)

    result = run_plan(
        problem,
        chain_of(problem, 3, 6),
        RunSettings(
            steps=30,
            verify=True,
            run_directory=str(tmp_path),
            online=OnlineSettings(measure_every=5),
        ),
        events=[RunEvent(step=5, slow="d1", factor=3)],
        hooks=RunHooks(controller=controller),
    )
    assert result.times_of == "emulated devices"
    assert abs(result.relative_error) < 0.05
    assert result.max_loss_difference is not None
    assert result.max_loss_difference < 1e-5
    assert [entry.device for entry in result.devices] == ["d0", "d1", "d2", "d3"]
    factors = drift(problem, next(m for m in seen if m.step >= 9).stage_measurements())
    assert factors["d1"] == pytest.approx(3, rel=0.05)
    assert factors["d0"] == pytest.approx(1, rel=0.05)
    (replan,) = result.replans
    assert replan.bytes_moved > 0
    assert replan.measured_step_time_s == pytest.approx(replan.predicted_step_time_s, rel=0.05)
    assert {entry.device for entry in result.stages} == {"d0", "d3"}
    slow = result.median_step_time_s(7, replan.step - 1)
    assert slow > 1.5 * result.measured_step_time_s
    assert {event.action for event in result.timeline} >= {"forward", "backward", "step"}
    assert {entry.device for entry in result.devices if entry.memory} == {"d0", "d1", "d2", "d3"}


@pytest.mark.slow
def test_failure_of_one_rank_is_one_clear_error_and_leaves_no_process(tmp_path: Path) -> None:
    problem = problem_of("broken")
    with pytest.raises(
        HeterpsError,
        match=r"^rank 1 \(d1\): RuntimeError: this layer always fails with a second line$",
    ):
        run_plan(problem, chain_of(problem, 2), RunSettings(steps=2, run_directory=str(tmp_path)))
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_run_beyond_an_emulated_memory_limit_names_device_stage_and_bytes(tmp_path: Path) -> None:
    problem = problem_of("sequential", slowdowns=(4, 4, 8, 8))
    plan = chain_of(problem, 3, 6)
    need = peak_bytes(problem.profile, plan, problem.cluster)["d1"].peak_bytes
    (node,) = problem.cluster.nodes
    groups = tuple(
        group.changed(memory_bytes=need - 1) if group.name == "d1" else group
        for group in node.devices
    )
    cluster = Cluster(
        name="limited",
        device_types=problem.cluster.device_types,
        nodes=(node.changed(devices=groups),),
    )
    message = (
        r"^rank 1 \(d1\): d1 is out of memory in .* 's1', micro-batch \d: "
        rf"needs {bytes_text(need)}, 1 B more than the {bytes_text(need - 1)} allowed$"
    )
    limited = replace(problem, cluster=cluster)
    plan = chain_of(limited, 3, 6)
    with pytest.raises(HeterpsError, match=message):
        run_plan(limited, plan, RunSettings(steps=3, run_directory=str(tmp_path)))
    assert processes_of(tmp_path) == []
    # All ranks said the same.
    errors = [json.loads(path.read_text()) for path in tmp_path.glob("error-*.json")]
    assert len(errors) == 3
    assert len({error["message"] for error in errors}) == 1


@pytest.mark.slow
def test_killed_rank_is_named_and_leaves_no_process(tmp_path: Path) -> None:
    problem = problem_of("sequential")

    def kill_one(progress: StepProgress) -> None:
        if progress.step == 1:
            os.kill(ranks_of(tmp_path)["d1"], signal.SIGKILL)

    with pytest.raises(HeterpsError, match=r"^rank 1 was ended by SIGKILL"):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=10**6, run_directory=str(tmp_path), timeout_s=120),
            hooks=RunHooks(on_progress=kill_one),
        )
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_where_the_process_that_forks_ranks_is_killed_none_is_left(tmp_path: Path) -> None:
    problem = problem_of("sequential")

    def kill_it(progress: StepProgress) -> None:
        if progress.step == 1:
            (template,) = {parent_of(pid) for pid in ranks_of(tmp_path).values()}
            os.kill(template, signal.SIGKILL)

    with pytest.raises(HeterpsError, match=r"^the process that starts the ranks was ended"):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=10**6, run_directory=str(tmp_path), timeout_s=60),
            hooks=RunHooks(on_progress=kill_it),
        )
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_interrupt_ends_all_processes(tmp_path: Path) -> None:
    problem = problem_of("sequential")

    def interrupt(progress: StepProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=10**6, run_directory=str(tmp_path)),
            hooks=RunHooks(on_progress=interrupt),
        )
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_port_in_use_is_refused() -> None:
    problem = problem_of("sequential")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(HeterpsError, match=f"port {port} is in use"):
            run_plan(problem, chain_of(problem, 3), RunSettings(steps=1, port=port))


def test_plan_for_another_model_is_refused() -> None:
    problem, other = problem_of("sequential"), problem_of("ctr")
    with pytest.raises(PlanMismatchError, match="was made for the model 'ctr'"):
        run_plan(problem, chain_of(other, 3), RunSettings(steps=1))


def test_plan_for_another_job_is_refused() -> None:
    problem = problem_of("sequential")
    other = problem_of("sequential", schedule="gpipe")
    reason = "another job than the problem's: schedule: gpipe in the plan, 1f1b in the problem$"
    with pytest.raises(PlanMismatchError, match=reason):
        run_plan(problem, chain_of(other, 3), RunSettings(steps=1))


def test_model_without_a_source_is_refused() -> None:
    problem = problem_of("sequential")
    bare = replace(problem, profile=problem.profile.changed(source=None))
    with pytest.raises(HeterpsError, match=r"has no 'source': .*module:function"):
        run_plan(bare, chain_of(bare, 3), RunSettings(steps=1))


def test_only_an_emulated_device_can_be_slowed_down() -> None:
    problem = problem_of("sequential")
    with pytest.raises(HeterpsError, match="'d1' is none; allowed: none in this cluster"):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=1),
            events=[RunEvent(slow="d1", factor=2)],
        )


@pytest.mark.parametrize(
    ("slowdowns", "link", "message"),
    [
        (None, ("d0", "d1"), "only links of emulated devices"),
        ((1, 1, 1, 1), ("d0", "d9"), "d0->d9 does not; devices of this cluster: d0, d1, d2, d3"),
        ((1, 1, 1, 1), ("d0", "d0"), "a link leads from one device to another"),
    ],
)
def test_only_links_between_emulated_devices_can_be_slowed_down(
    slowdowns: tuple[float, ...] | None, link: tuple[str, str], message: str
) -> None:
    problem = problem_of("sequential", slowdowns=slowdowns)
    with pytest.raises(HeterpsError, match=message):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=1),
            events=[RunEvent(slow="->".join(link), factor=2)],
        )


def test_a_device_that_is_lost_needs_an_elastic_run() -> None:
    problem = problem_of("sequential")
    lost = RunEvent(step=3, lose="d1")
    with pytest.raises(HeterpsError, match="the event lose 'd1' needs --elastic"):
        run_plan(problem, chain_of(problem, 3), RunSettings(steps=1), events=[lost])
