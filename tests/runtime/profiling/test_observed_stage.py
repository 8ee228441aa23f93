"""Observed stages: what observing costs is no part of a layer; unobserved passes are the same."""

from __future__ import annotations

import pytest
import torch

from heterps_runtime.models.data import make_batch
from heterps_runtime.process.stopwatch import Stopwatch
from heterps_runtime.profiling import observed_stage
from heterps_runtime.profiling.observed_stage import (
    ObservedModel,
    ObservedStage,
    Stamps,
    hook_cost_s,
)
from tests.runtime.small_runs import profile_of


def test_calling_a_hook_costs_something_that_is_measured_once() -> None:
    assert hook_cost_s() >= 0
    assert hook_cost_s() == hook_cost_s()


def test_hooks_are_no_part_of_the_seconds_of_a_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed_stage, "hook_cost_s", lambda: 0.25)
    stamps = Stamps(began=0.0, entered={2: 1.0, 1: 3.0, 0: 3.5}, hooks={2: 1, 1: 3}, ended=5.0)
    # The second layer has more hooks than seconds: it takes nothing, and not less.
    assert stamps.layer_seconds(Stopwatch("cpu")) == {2: 1.75, 1: 0.0, 0: 1.5}


def test_a_pass_that_is_not_observed_computes_the_same_and_enters_no_layer() -> None:
    profile = profile_of("sequential")
    stage = ObservedStage(ObservedModel.of(profile, 2), 0, profile.num_layers - 1)
    assert profile.source is not None
    inputs, target = make_batch(profile.source, 0, 2, seed=0)
    seen, found = list[int](), {}
    stage.on_layer = lambda index, tensors: seen.append(index)
    for stage.is_observed in (False, True):
        stage.stage.zero_grad()
        made = stage.run_forward(inputs, target, ())
        stage.run_backward(made, [torch.ones_like(root) for root in made.roots], all_of_it=True)
        is_entered = set(made.forward.entered) | set(made.backward.entered)
        assert is_entered == (set(stage.layer_range) if stage.is_observed else set())
        assert set(seen) == is_entered
        assert made.backward.freed >= made.backward.ended >= made.backward.began
        found[stage.is_observed] = [
            parameter.grad.clone()
            for parameter in stage.stage.parameters()
            if parameter.grad is not None
        ]
    assert found[True]
    assert all(torch.equal(a, b) for a, b in zip(found[True], found[False], strict=True))
