"""Stages that are cut at functions of torch compute what the whole model computes."""

from __future__ import annotations

import pytest
import torch

from heterps_runtime.stages.stage import StagePart, build_stage
from tests.runtime.functional_models import INPUTS
from tests.runtime.small_models import profile_of, source_of
from tests.runtime.stages.test_stage import _assert_equal, _run_chain, _whole_model

NAMES = (*INPUTS, "t5", "swin", "convnext", "shortcut", "long_skip")


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
