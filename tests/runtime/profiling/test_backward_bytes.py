"""What backward passes of layers hold for a while, by hand and against whole stages."""

from __future__ import annotations

import pytest
import torch

from heterps_runtime.models.data import make_batch
from heterps_runtime.profiling.backward_bytes import parts_of_pass, whole_pass
from heterps_runtime.profiling.observed_stage import ObservedModel, ObservedStage
from tests.runtime.small_models import profile_of

SIZE = 4


def _stage(name: str, defers: bool = False) -> tuple[ObservedStage, ObservedModel]:
    profile = profile_of(name)
    model = ObservedModel.of(profile, SIZE)
    return ObservedStage(model, 0, profile.num_layers - 1, defers), model


@pytest.mark.parametrize("name", ["sequential", "llama"])
def test_a_first_pass_holds_no_more_than_its_gradients_beyond_what_was_kept(name: str) -> None:
    stage, model = _stage(name)
    inputs, target = make_batch(model.source, 0, SIZE, seed=0)
    found = whole_pass(stage, inputs, target)
    for layer, num_bytes in zip(model.profile.layers, found.values(), strict=True):
        assert 0 <= num_bytes <= 4 * layer.num_parameters, layer.name
    assert max(found.values()) > 0


def test_a_linear_layer_leaves_all_gradients_to_its_second_part() -> None:
    stage, model = _stage("sequential", defers=True)
    inputs, target = make_batch(model.source, 0, SIZE, seed=0)
    found = parts_of_pass(stage, inputs, target)
    for layer, entry in zip(model.profile.layers, found.values(), strict=True):
        if layer.kind == "Linear":
            assert entry.early_gradients == 0
            # Gradients come before what they were computed from goes, in the order of the jobs.
            assert 0 < entry.first_weight <= 4 * layer.num_parameters
        assert entry.later_input <= entry.first_input + 1e-9


def test_embeddings_and_normalisations_get_their_gradients_in_the_first_part() -> None:
    stage, model = _stage("llama", defers=True)
    inputs, target = make_batch(model.source, 0, SIZE, seed=0)
    found = parts_of_pass(stage, inputs, target)
    assert found[0].early_gradients == 4 * model.profile.layers[0].num_parameters
    for layer, entry in zip(model.profile.layers[1:], list(found.values())[1:], strict=True):
        assert 0 < entry.early_gradients < 0.1 * 4 * layer.num_parameters


def test_jobs_of_an_observed_stage_make_the_gradients_of_a_whole_pass() -> None:
    (whole, model), (parts, _) = _stage("sequential"), _stage("sequential", defers=True)
    inputs, target = make_batch(model.source, 0, SIZE, seed=0)
    whole_pass(whole, inputs, target)
    parts_of_pass(parts, inputs, target)  # two micro-batches
    gradients = {n: p.grad for n, p in parts.stage.parameters_by_name().items()}
    for name, parameter in whole.stage.parameters_by_name().items():
        one, two = parameter.grad, gradients[name]
        assert one is not None
        assert two is not None
        assert one.shape == two.shape
        assert torch.isfinite(two).all()
