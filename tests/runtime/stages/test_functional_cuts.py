"""Stages that are cut at functions of torch compute what the whole model computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heterps_configs.documents.run_settings import RunSettings
from heterps_runtime.models.build import build_module
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.recording_messages import packed, unpacked
from heterps_runtime.models.recordings import record
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.tracing.trace import trace_source
from tests.runtime import functional_models
from tests.runtime.functional_models import INPUTS
from tests.runtime.parity_checks import check_parity, problem_with
from tests.runtime.small_models import profile_of, source_of
from tests.runtime.small_runs import chain_of
from tests.runtime.stages.test_stage import _assert_equal, _run_chain, _whole_model

NAMES = (*INPUTS, "t5", "swin", "convnext", "shortcut", "long_skip")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_layer_can_be_a_stage_of_its_own(name: str) -> None:
    output, gradients, _ = _whole_model(name, 3)
    stages = [
        build_stage(source_of(name), profile_of(name), StagePart(index, index, 3, seed=0))
        for index in range(profile_of(name).num_layers)
    ]
    chained, collected = _run_chain(stages, name, 3)
    torch.testing.assert_close(chained, output, rtol=0, atol=1e-6)
    _assert_equal(collected, gradients)


def test_dropout_in_functions_does_not_depend_on_the_cuts() -> None:
    source = factory_source(f"{functional_models.__name__}:dropping_functions", ["x=8:float32"])
    profile = trace_source(source, "dropping_functions")
    inputs, _ = make_batch(source, 0, 3, seed=0)
    last, found = profile.num_layers - 1, []
    for ranges in ([(0, last)], [(0, 1), (2, last)], [(i, i) for i in range(last + 1)]):
        received: tuple[Tensor, ...] = ()
        for layers in ranges:
            stage = build_stage(source, profile, StagePart(*layers, 3, seed=0))
            received = stage(inputs, received, (0, 1, 2))
        found.append(received[0])
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert profile.num_layers == 5


def test_recordings_with_functions_can_be_sent() -> None:
    for name in ("functions_in_place", "functions_that_split", "mixture"):
        source = source_of(name)
        recording = record(source, build_module(source), 2)
        content = packed([recording])
        assert content is not None
        assert unpacked(content) == [recording]


@pytest.mark.slow
def test_a_run_in_one_process_equals_training_without_a_plan() -> None:
    for model in ("u_net", "residual", "digits", "functions_in_place", "activations"):
        problem = problem_with(model, "1f1b", (4, 4, 2))
        check_parity(problem, chain_of(problem, *range(1, min(4, problem.profile.num_layers))))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["u_net", "swin"])
def test_processes_that_send_results_of_functions_train_the_same(model: str) -> None:
    problem = problem_with(model, "1f1b", (4, 4))
    result = run_plan(
        problem,
        chain_of(problem, 2, problem.profile.num_layers - 2),
        RunSettings(steps=3, verify=True),
    )
    assert result.max_loss_difference is not None
    assert result.max_loss_difference < 1e-5
