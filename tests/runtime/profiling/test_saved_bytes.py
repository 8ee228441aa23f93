"""Saved bytes: what layers keep by themselves adds up to what whole stages keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.memory import layer_memory
from heterps_runtime.models.data import make_batch
from heterps_runtime.profiling.layer_timing import Window
from heterps_runtime.profiling.observed_stage import ObservedModel, ObservedStage
from heterps_runtime.profiling.samples import SizeSamples
from tests.runtime.small_models import profile_of

SIZE = 4


def _really_kept(model: ObservedModel, first: int, last: int) -> float:
    """Bytes of all storages of one forward pass: saved, received and sent, each once."""
    stage = ObservedStage(model, first, last)
    inputs, target = make_batch(model.source, 0, SIZE, seed=0)
    received = stage.random_input(SIZE)
    module = stage.stage.module
    held = [*module.parameters(), *module.buffers(), *inputs.values(), target]
    ignored = {tensor.untyped_storage().data_ptr() for tensor in held}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made = stage.run_forward(inputs, target, received)
    sent = [] if stage.stage.is_last else made.roots
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in (*kept, *received, *sent)
    }
    return float(sum(size for key, size in storages.items() if key not in ignored))


def _weighed(profile: ModelProfile, model: ObservedModel) -> Measurement:
    """A measurement of bytes alone."""
    samples = SizeSamples(distinct=profile.first_equal_layers())
    Window(model, 0, profile.num_layers - 1, "sgd").weigh(SIZE, samples)
    layers = [samples.of(index) for index in range(profile.num_layers)]
    nothing = (0.0,) * profile.num_layers
    return Measurement(
        device_type="host-cpu",
        micro_batch_size=SIZE,
        forward_s=nothing,
        backward_s=nothing,
        activation_bytes=tuple(entry.activation_bytes for entry in layers),
        shared_bytes=tuple(entry.shared_bytes for entry in layers),
        peak_bytes=tuple(entry.peak_bytes for entry in layers),
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "vit", "resnet", "ctr"])
def test_measured_layers_add_up_to_what_a_stage_keeps(name: str) -> None:
    profile = profile_of(name)
    model = ObservedModel.of(profile, SIZE)
    entry = _weighed(profile, model)
    profile = profile.changed(measurements=(entry,))
    job = Job(global_batch_size=SIZE, micro_batch_size=SIZE, dtype="float32")
    memory = layer_memory(profile, [device_type_named("host-cpu")], job)
    last = profile.num_layers - 1
    for first, end in ((0, last), (0, last // 2), (last // 2 + 1, last)):
        told = memory.kept_bytes(first, end, 0) + max(entry.shared_bytes[first : end + 1])
        # A Flatten hands on a view: one small tensor counts on both of its sides.
        really = pytest.approx(_really_kept(model, first, end), rel=0.01, abs=256)
        assert told == really, (first, end)


@pytest.mark.slow
def test_masks_and_rotary_tables_are_told_apart() -> None:
    profile = profile_of("llama")
    model = ObservedModel.of(profile, SIZE)
    shared = _weighed(profile, model).shared_bytes
    assert shared[0] == 0
    assert min(shared[1:5]) > 0


def test_passes_need_bytes_for_a_while() -> None:
    profile = profile_of("sequential")
    model = ObservedModel.of(profile, SIZE)
    peaks = _weighed(profile, model).peak_bytes
    for layer, peak in zip(profile.layers, peaks, strict=True):
        if layer.num_parameters:
            # The new gradient of the weights, before it is added to the old one.
            assert peak >= 4 * layer.num_parameters * 0.8
