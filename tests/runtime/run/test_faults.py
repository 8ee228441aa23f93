"""Faults of users' programs and models: one clear error on every rank, no hang, no orphan."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_runtime.models.build import register_factory
from heterps_runtime.own_loop.model import source_of
from heterps_runtime.own_loop.plan import compute_device, specification_of
from heterps_runtime.run.launcher import run_ranks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.faulty_script import FAULTS, LATE_S
from tests.runtime.imitations import TEXT
from tests.runtime.small_runs import DEVICES, chain_of, problem_of
from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import plan_of_cuts

LIMIT_S = 120.0


def _run(folder: Path, *faults: str) -> list[dict[str, str]]:
    """What each of two ranks wrote."""
    plan_of_cuts(1, num_layers=3).to_file(folder / "plan.yaml")
    run_ranks("tests.runtime.faulty_script", 2, folder, LIMIT_S, faults)
    ranks = sorted(folder.glob("rank-*.json"))
    return [json.loads(path.read_text()) for path in ranks]


def _run_by_torchrun(folder: Path, *faults: str) -> int:
    """Exit code; makes sure that no process is left."""
    plan = folder / "plan.yaml"
    plan_of_cuts(1, num_layers=3).to_file(plan)
    command = torchrun_command(plan, 2, module="tests.runtime.faulty_script")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, str(folder), *faults], stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(LIMIT_S)
            assert _is_empty(process.pid), "a process is left"
        finally:
            if not _is_empty(process.pid, 0.0):
                os.killpg(process.pid, signal.SIGKILL)
    return code


def _is_empty(group: int, wait_s: float = 5.0) -> bool:
    """Whether a process group has no member, at the latest after a while."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)


@pytest.mark.slow
def test_every_rank_raises_the_same_error_and_odd_models_train(tmp_path: Path) -> None:
    # One start of processes for all: what is found before training leaves the ranks together.
    ranks = _run(
        tmp_path, "opaque-boundary", "no-tensor-output", "no-tensor-boundary", "not-contiguous",
        "unpicklable", "none", "wrong-output",
    )  # fmt: skip
    found, other = ranks
    assert found == other
    assert (
        "rank 0 (d0): the plan was made for 'mine' with 3 layers; this model has 2: 0+1 .. 2"
        in (found["opaque-boundary"])
    )
    assert "the model returns no floating-point tensor" in found["no-tensor-output"]
    assert found["wrong-output"] == "rank 1 (d1): IndexError: Target 3 is out of bounds."
    expected = float(found["none"])
    for fault in ("no-tensor-boundary", "not-contiguous", "unpicklable"):
        assert float(found[fault]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_an_error_of_a_forward_pass_that_reads_like_a_lost_rank_is_shown(tmp_path: Path) -> None:
    found, other = _run(tmp_path, "imitates")
    assert found == other == {"imitates": f"rank 1 (d1): RuntimeError: {TEXT}"}


@pytest.mark.slow
def test_an_error_of_an_optimizer_that_reads_like_a_lost_rank_is_the_cause(tmp_path: Path) -> None:
    problem = problem_of("optimizer")
    settings = RunSettings(steps=3, run_directory=str(tmp_path))
    with pytest.raises(HeterpsError) as error:
        run_plan(problem, chain_of(problem, 4, devices=DEVICES[:2]), settings)
    assert str(error.value) == f"rank 1 (d1): RuntimeError: {TEXT}"


@pytest.mark.slow
def test_a_rank_without_memory_is_the_error_of_all_while_it_lives_on(tmp_path: Path) -> None:
    started_s = time.monotonic()
    ranks = _run(tmp_path, "lacks-memory")
    assert time.monotonic() - started_s < LATE_S, "the other rank waited for its end"
    found, other = ranks
    assert found == other
    assert "rank 1 (d1): RuntimeError: " in found["lacks-memory"]
    assert "can't allocate memory" in found["lacks-memory"]


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    assert _run_by_torchrun(tmp_path, "dies") == 1
    assert "exitcode  : 3" in (tmp_path / "log").read_text()


# -- what needs no process


def _source(fault: str) -> ModelSource:
    return source_of(FAULTS[fault], torch.zeros(16, 16), torch.zeros(16, dtype=torch.int64))


def _plan_for(model: str, **fields: object) -> Plan:
    profile = trace_source(_source(model), "mine", "float32")
    given = {"model_fingerprint": profile.layers_fingerprint(), **fields}
    return plan_of_cuts(1, num_layers=3).changed(**given)


def test_a_plan_of_another_model_with_as_many_layers_is_refused() -> None:
    plan = _plan_for("none")
    assert specification_of(plan, _source("none"), 0).plan.num_layers == 3
    with pytest.raises(PlanMismatchError, match="made for another model than this one"):
        specification_of(plan, _source("another-model"), 0)
    by_hand = plan.changed(model_fingerprint="")
    assert specification_of(by_hand, _source("another-model"), 0).plan.num_layers == 3


def test_a_plan_with_its_profile_at_hand_names_the_layer_that_differs(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    trace_source(_source("none"), "mine", "float32").to_file(path)
    plan = _plan_for("none", model_reference=str(path))
    with pytest.raises(PlanMismatchError, match=r"layer 1 is 1 with 272 parameters; .* 1 with 0"):
        specification_of(plan, _source("another-model"), 0)
    # Other costs of the same layers do not matter.
    other_costs = plan.changed(model_fingerprint="traced with other inputs")
    assert specification_of(other_costs, _source("none"), 0).plan.num_layers == 3


def test_a_device_that_is_not_at_hand_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    plan = plan_of_cuts(1, num_layers=3)
    assert compute_device(plan, 0, None) == torch.device("cpu")
    assert compute_device(plan, 0, "cpu") == torch.device("cpu")
    with pytest.raises(HeterpsError, match="cuda:0 is not at hand"):
        compute_device(plan, 0, "cuda:0")
    shipped = plan.changed(
        cluster_reference="local-emulated",
        stages=tuple(
            stage.changed(devices=(name,))
            for stage, name in zip(plan.stages, ("fast", "medium"), strict=True)
        ),
    )
    assert compute_device(shipped, 1, None) == torch.device("cpu")


@pytest.mark.parametrize("factory", ["here", "__main__:model"])
def test_a_model_of_this_process_alone_is_refused_before_workers_start(factory: str) -> None:
    problem = problem_of("sequential")
    assert problem.profile.source is not None
    if factory == "here":
        factory = register_factory(lambda: nn.Linear(8, 4))
    source = problem.profile.source.changed(factory=factory)
    changed = replace(problem, profile=problem.profile.changed(source=source))
    with pytest.raises(HeterpsError, match="known to this process only"):
        run_plan(changed, chain_of(changed, 3), RunSettings(steps=1))
