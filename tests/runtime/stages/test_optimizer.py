"""The job's optimizers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps_configs.documents.job import Optimizer
from heterps_runtime.stages.optimizer import LEARNING_RATE, build_optimizer


@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd-momentum"])
def test_each_kind_has_its_usual_learning_rate(name: Optimizer) -> None:
    optimizer = build_optimizer(name, [nn.Parameter(torch.zeros(2))])
    assert optimizer is not None
    assert optimizer.param_groups[0]["lr"] == LEARNING_RATE[name]


def test_learning_rate_and_momentum_are_those_asked_for() -> None:
    optimizer = build_optimizer("sgd-momentum", [nn.Parameter(torch.zeros(2))], 0.5)
    assert optimizer is not None
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]) == (0.5, 0.9)


def test_nothing_to_optimise_needs_no_optimizer() -> None:
    assert build_optimizer("adamw", []) is None
