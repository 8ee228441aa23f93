"""Checkpoints of real runs: saved by many processes, loaded by other ones, after a crash too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import RunHooks
from heterps_runtime.run.launcher import run_ranks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.verify import REFERENCE_FILE, max_difference, reference_losses
from heterps_runtime.specification.build import build_specification, replanned
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification, next_plan_path
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_files import complete_checkpoints
from tests.runtime.processes import kill_all, ranks_of
from tests.runtime.small_runs import DEVICES, chain_of, plan_of, problem_of

STEPS, SAVED = 4, 2


def _cases() -> dict[str, tuple[Problem, Plan, Plan | None, str | None]]:
    """Problem, plan, the plan from step 1 on, and the case whose checkpoint it goes on from."""
    gpt2, resnet = problem_of("gpt2"), problem_of("resnet")
    ragged = problem_of(
        "sequential", global_batch_size=22, micro_batch_size=4, optimizer="sgd-momentum"
    )
    replicas = plan_of(
        ragged,
        {"a": (0, 1, "d0"), "b0": (2, -1, "d1"), "b1": (2, -1, "d2"), "b2": (2, -1, "d3")},
        {("a", "b0"): (0, 3), ("a", "b1"): (1, 4), ("a", "b2"): (2, 5)},
    )
    two_depths = plan_of(
        gpt2,
        {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, 2, "d2"), "d": (3, 3, "d3"),
         "e": (4, -1, "d2")},
        {("a", "b"): (0, 1, 3), ("c", "d", "e"): (2,)},
    )  # fmt: skip
    idle = chain_of(resnet, 3, devices=("d3", "d1"))
    return {
        "1 gpt2": (gpt2, chain_of(gpt2, 2, 3), chain_of(gpt2, 1, 3, 4), None),
        "2 gpt2, replicas of other depths": (gpt2, two_depths, None, "1 gpt2"),
        "3 replicas": (ragged, replicas, None, None),
        "4 replicas, the same plan": (ragged, replicas, None, "3 replicas"),
        "5 replicas, one chain": (ragged, chain_of(ragged, 3), None, "3 replicas"),
        "6 resnet": (resnet, chain_of(resnet, 2, 4), None, None),
        "7 resnet, first rank idle": (resnet, idle, None, "6 resnet"),
    }


def _write(folder: Path, name: str) -> None:
    problem, plan, later, origin = _cases()[name]
    (folder / name).mkdir()
    built = build_specification(
        problem,
        plan,
        build_schedule(problem, plan),
        RunSettings(steps=STEPS),
        devices=DEVICES,
        is_online=later is not None,
    )
    settings = CheckpointSettings(folder=str(_saved(folder, name)), every=SAVED)
    specification = built.changed(checkpoint=settings)
    if origin is not None:
        path = _saved(folder, origin) / f"step-{SAVED:06d}"
        resumed = {"first_step": SAVED, "resume_from": str(path)}
        specification = specification.changed(**resumed)
    specification.to_json_file(folder / name / SPECIFICATION_FILE)
    if later is not None:
        following = replanned(specification, problem, later, build_schedule(problem, later), 1)
        following.to_json_file(next_plan_path(folder / name, 1))


def _saved(folder: Path, name: str) -> Path:
    return folder.parent / "checkpoints" / name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, one after another in one set of four processes."""
    folder = tmp_path_factory.mktemp("resumed") / "runs"
    folder.mkdir()
    for name in _cases():
        _write(folder, name)
    run_ranks("tests.runtime.train_many", 4, folder, timeout_s=240)
    return folder


def _losses(folder: Path, name: str) -> list[float]:
    lines = json.loads((folder / name / "steps.json").read_text())
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in _cases() if _cases()[name][3]])
def test_curve_goes_on_under_another_plan(folder: Path, name: str) -> None:
    origin = _cases()[name][3]
    assert origin is not None
    whole, resumed = _losses(folder, origin), _losses(folder, name)
    assert len(whole) == STEPS
    assert len(resumed) == STEPS - SAVED
    is_same_order = _cases()[name][1] == _cases()[origin][1]
    assert max_difference(resumed, whole[SAVED:]) <= (0.0 if is_same_order else 1e-5)
    # One process goes on from the same checkpoint.
    reference = json.loads((folder / name / REFERENCE_FILE).read_text())
    assert max_difference(resumed, reference) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in _cases() if _cases()[name][3]])
def test_final_states_are_equal_whoever_saved_them(folder: Path, name: str) -> None:
    origin = _cases()[name][3]
    assert origin is not None
    first, second = (load_state_dict(_saved(folder, case)) for case in (origin, name))
    assert first.document.step == second.document.step == STEPS
    assert first.model.keys() == second.model.keys()
    assert first.optimizer.keys() == second.optimizer.keys()
    for key, tensor in first.model.items():
        torch.testing.assert_close(tensor, second.model[key], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_killed_run_goes_on_from_its_last_complete_checkpoint(tmp_path: Path) -> None:
    problem = problem_of("sequential")
    folder, runs = tmp_path / "checkpoints", tmp_path / "run"
    settings = CheckpointSettings(folder=str(folder), every=1)

    def kill_one(progress: StepProgress) -> None:
        if progress.step >= 3 and complete_checkpoints(folder):
            kill_all(sorted(ranks_of(runs).values())[-1:])

    with pytest.raises(HeterpsError, match=r"^rank \d"):
        run_plan(
            problem,
            chain_of(problem, 3),
            RunSettings(steps=10**5, run_directory=str(runs), checkpoint=settings, timeout_s=120),
            hooks=RunHooks(on_progress=kill_one),
        )
    first = load_state_dict(folder).document.step
    result = run_plan(
        problem,
        chain_of(problem, 2, 5),
        RunSettings(
            steps=first + 2,
            run_directory=str(runs),
            checkpoint=settings,
            resume=True,
            verify=True,
            timeout_s=120,
        ),
    )
    assert result.first_step == first
    assert result.checkpoint is not None
    assert result.checkpoint.endswith(f"step-{first + 2:06d}")
    assert result.max_loss_difference is not None
    assert result.max_loss_difference < 1e-5
    steps = [load_state_dict(path).document.step for path in complete_checkpoints(folder)]
    assert steps == [first, first + 1, first + 2]
    assert {path.name for path in folder.iterdir()} == {
        path.name for path in complete_checkpoints(folder)
    }
    specification = RunSpecification.from_json_file(runs / SPECIFICATION_FILE)
    whole = specification.changed(first_step=0, resume_from=None)
    assert max_difference(result.losses, reference_losses(whole)[first:]) < 1e-5
