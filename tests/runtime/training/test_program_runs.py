"""Runs of a user's program, against the same training as a loop in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.trust import UntrustedCodeError
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.updates import AVERAGE
from tests.runtime.elastic.small_runs import ElasticCase, elastic_problem
from tests.runtime.processes import processes_of
from tests.runtime.small_runs import chain_of, plan_of, problem_of
from tests.runtime.training.small_program import (
    BATCH,
    LAST_STEP,
    PLACE,
    Journal,
    make_with_journal,
    plain_training,
)

STEPS = 8


@pytest.mark.slow
def test_a_program_trains_what_a_plain_loop_trains_and_goes_on_under_another_plan(
    tmp_path: Path,
) -> None:
    """Two devices, then replicas of other stages; groups, schedule, clipping and average too."""
    problem, expected = problem_of("sequential"), plain_training(STEPS)
    settings = RunSettings(
        steps=5, program=PLACE, checkpoint=CheckpointSettings(folder=str(tmp_path / "saved"))
    )
    first = run_plan(problem, chain_of(problem, 4), settings, trust_code=True)
    replicas = plan_of(
        problem,
        {"a": (0, 2, "d0"), "b": (3, -1, "d1"), "c": (3, -1, "d2")},
        {("a", "b"): (0, 3), ("a", "c"): (1, 2)},
    )
    later = settings.changed(steps=STEPS, resume=True, verify=True)
    second = run_plan(problem, replicas, later, trust_code=True)
    assert [*first.losses, *second.losses] == pytest.approx(expected.losses, abs=1e-5)
    assert second.max_loss_difference == pytest.approx(0, abs=1e-5)
    saved = load_state_dict(tmp_path / "saved")
    assert saved.document.data_position == (STEPS, 2, 2 * BATCH)
    for name, parameter in expected.model.named_parameters():
        torch.testing.assert_close(saved.model[name], parameter.detach(), atol=1e-5, rtol=1e-4)
        average = saved.optimizer[name][AVERAGE]
        torch.testing.assert_close(average, expected.average[name].detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_no_sample_is_lost_where_the_batch_changes_and_no_program_where_a_run_goes_on(
    tmp_path: Path,
) -> None:
    settings = RunSettings(
        steps=2, program=PLACE, checkpoint=CheckpointSettings(folder=str(tmp_path / "saved"))
    )
    problem = problem_of("sequential")
    run_plan(problem, chain_of(problem, 4), settings, trust_code=True)
    halves = problem_of("sequential", global_batch_size=BATCH // 2)
    later = settings.changed(steps=4, resume=True, verify=True)
    with pytest.raises(HeterpsError, match=r"was trained with the program .*small_program.py:make"):
        run_plan(halves, chain_of(halves, 4), later.changed(program=None))
    hooks = RunHooks(on_message=lambda text: None)
    result = run_plan(halves, chain_of(halves, 4), later, hooks=hooks, trust_code=True)
    assert result.max_loss_difference == pytest.approx(0, abs=1e-5)
    # 32 samples of 40 were done: one step ends the epoch, the other begins the next.
    position = load_state_dict(tmp_path / "saved").document.data_position
    assert position == (4, 1, BATCH // 2)


@pytest.mark.slow
def test_a_program_goes_on_under_a_plan_that_comes_in_mid_run() -> None:
    """As in online runs: an idle device joins, another one becomes idle."""
    problem = problem_of("sequential")
    update = PlanUpdate(chain_of(problem, 2, 5, devices=("d2", "d1", "d3")), problem, 3)
    settings = RunSettings(steps=5, program=PLACE)
    result = run_plan(problem, chain_of(problem, 4), settings, updates=[update], trust_code=True)
    assert result.generations[-1] == 1
    assert list(result.losses) == pytest.approx(plain_training(5).losses, abs=1e-5)


@pytest.mark.slow
def test_a_program_goes_on_without_a_lost_device(tmp_path: Path) -> None:
    case = ElasticCase(elastic_problem(), tmp_path / "run", steps=STEPS)
    result = case.run(events=(RunEvent(step=4, lose="d1"),), program=PLACE, trust_code=True)
    assert len(result.recoveries) == 1
    assert list(result.losses) == pytest.approx(plain_training(STEPS).losses, abs=1e-5)


@pytest.mark.slow
def test_evaluations_are_those_of_one_process_and_a_callback_ends_the_run(tmp_path: Path) -> None:
    problem, expected = problem_of("sequential"), plain_training(LAST_STEP)
    settings = RunSettings(
        steps=STEPS,
        program=PLACE + "_evaluated",
        verify=True,
        checkpoint=CheckpointSettings(folder=str(tmp_path / "saved")),
    )
    replicas = plan_of(
        problem,
        {"a": (0, 3, "d0"), "b": (0, 3, "d1"), "c": (4, -1, "d2")},
        {("a", "c"): (0, 3), ("b", "c"): (1, 2)},
    )
    seen: list[int] = []
    hooks = RunHooks(on_evaluation=lambda found: seen.append(found.step))
    result = run_plan(problem, replicas, settings, hooks=hooks, trust_code=True)
    assert list(result.losses) == pytest.approx(expected.losses, abs=1e-5)
    assert result.max_loss_difference == pytest.approx(0, abs=1e-5)
    assert seen == [2, 4, 6]
    for found in result.evaluations:
        loss, share = expected.evaluations[found.step - 1]
        assert found.figures == pytest.approx({"loss": loss, "accuracy": share}, abs=1e-5)
    assert load_state_dict(tmp_path / "saved").document.step == LAST_STEP


def test_a_program_that_nobody_trusts_does_not_run(tmp_path: Path) -> None:
    problem, path = problem_of("sequential"), tmp_path / "train.py"
    path.write_text("raise AssertionError('it has run')")
    with pytest.raises(UntrustedCodeError, match=r"train.py:make, which is not trusted"):
        run_plan(problem, chain_of(problem, 4), RunSettings(program=f"{path}:make"))


def test_a_program_does_not_run_on_engine_torch() -> None:
    problem = problem_of("sequential")
    with pytest.raises(HeterpsError, match="program: not with engine torch"):
        run_plan(problem, chain_of(problem, 4), RunSettings(program=PLACE, engine="torch"))


@pytest.mark.slow
def test_a_run_with_reading_processes_trains_the_same_and_leaves_none(tmp_path: Path) -> None:
    problem = problem_of("sequential")
    settings = RunSettings(
        steps=5, program=f"{PLACE}_with_workers", run_directory=str(tmp_path / "run")
    )
    result = run_plan(problem, chain_of(problem, 4), settings, trust_code=True)
    assert list(result.losses) == pytest.approx(plain_training(5).losses, abs=1e-5)
    assert processes_of(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.alone
def test_a_lost_device_is_noticed_at_once_and_takes_its_reading_processes_with_it(
    tmp_path: Path,
) -> None:
    case = ElasticCase(elastic_problem(), tmp_path / "run", steps=STEPS)
    result = case.run(
        events=(RunEvent(step=4, lose="d1"),), program=f"{PLACE}_with_workers", trust_code=True
    )
    (recovery,) = result.recoveries
    assert recovery.detected_s is not None
    assert recovery.detected_s < 1
    assert list(result.losses) == pytest.approx(plain_training(STEPS).losses, abs=1e-5)
    assert processes_of(tmp_path / "run") == []


@pytest.mark.slow
@pytest.mark.parametrize("is_counted", [True, False])
def test_the_memory_of_a_moving_average_is_counted_or_said_not_to_be(is_counted: bool) -> None:
    problem = problem_of("sequential", averages_parameters=is_counted)
    remarks: list[str] = []
    result = run_plan(
        problem, chain_of(problem, 4), RunSettings(steps=3, program=PLACE), trust_code=True,
        hooks=RunHooks(on_message=remarks.append),
    )  # fmt: skip
    assert [text for text in remarks if "averages_parameters" in text] == remarks
    assert len(remarks) == (0 if is_counted else 1)
    for layers, report in zip((range(4), range(4, 8)), result.devices, strict=True):
        assert report.memory is not None
        parameters = sum(problem.profile.layers[index].num_parameters for index in layers)
        held = parameters * (problem.job.optimizer_bytes_per_parameter + (0 if is_counted else 4))
        # Beside it, AdamW's counts of steps.
        assert report.memory.at_peak.optimizer == pytest.approx(held, abs=64)


def journal_of(folder: Path) -> Journal:
    """What the newest checkpoint says of the program's own state."""
    program = make_with_journal()
    remarks = OwnState(program.state).load(load_state_dict(folder).document.program_state)
    assert remarks == []
    found = program.state["journal"]
    assert isinstance(found, Journal)
    return found


def check_journal(folder: Path, losses: Sequence[float]) -> None:
    """All callbacks were called once, in one row of random numbers."""
    found, expected = journal_of(folder), Journal()
    assert list(found.losses) == list(range(1, STEPS + 1))
    assert list(found.losses.values()) == pytest.approx(list(losses), abs=1e-5)
    for step, loss in enumerate(losses, start=1):
        expected.note(step, {"loss": loss})
    assert torch.equal(found.generator.get_state(), expected.generator.get_state())


@pytest.mark.slow
def test_a_program_goes_on_with_its_own_state(tmp_path: Path) -> None:
    problem, folder = problem_of("sequential"), tmp_path / "saved"
    settings = RunSettings(
        steps=5,
        program=f"{PLACE}_with_journal",
        checkpoint=CheckpointSettings(folder=str(folder)),
    )
    run_plan(problem, chain_of(problem, 4), settings, trust_code=True)
    later = settings.changed(steps=STEPS, resume=True)
    run_plan(problem, chain_of(problem, 4), later, trust_code=True)
    check_journal(folder, plain_training(STEPS).losses)
    # Another program has other state: what is new begins anew, what is gone is said.
    remarks: list[str] = []
    hooks = RunHooks(on_message=remarks.append)
    run_plan(
        problem, chain_of(problem, 4), later.changed(steps=STEPS + 1, program=PLACE), hooks=hooks,
        trust_code=True,
    )  # fmt: skip
    assert "the program has no state 'journal': what was saved of it is lost" in remarks


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["d1", "d0"])
def test_a_program_has_its_own_state_also_where_a_device_is_lost(tmp_path: Path, lost: str) -> None:
    """Nobody else holds the layers of the lost one: all go back to the newest checkpoint."""
    folder = tmp_path / "saved"
    case = ElasticCase(elastic_problem(), tmp_path / "run", steps=STEPS)
    result = case.run(
        events=(RunEvent(step=6, lose=lost),),
        program=f"{PLACE}_with_journal",
        checkpoint=CheckpointSettings(folder=str(folder), every=2),
        trust_code=True,
    )
    assert len(result.recoveries) == 1
    check_journal(folder, plain_training(STEPS).losses)
