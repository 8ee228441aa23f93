"""What backward passes hold for a while: between measured micro-batch sizes, and in stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile
from heterps_envs.layer_costs.backward_peaks import BackwardPeaks, backward_peaks
from heterps_envs.layer_costs.memory import layer_memory

TYPE = "host-cpu"


def _layer(name: str, sent: tuple[tuple[int, float], ...], output_bytes: float) -> LayerProfile:
    return LayerProfile(
        name=name,
        kind="Linear",
        num_parameters=10,
        forward_flops=1.0,
        backward_flops=2.0,
        activation_bytes=0.0,
        output_bytes=output_bytes,
        saved_input_bytes=0.0,
        saved_output_bytes=0.0,
        sent=sent,
    )


def _measurement(size: int, first_backward: float, later: float) -> Measurement:
    nothing = (0.0,)
    return Measurement(
        device_type=TYPE,
        micro_batch_size=size,
        forward_s=nothing,
        backward_s=nothing,
        first_backward_bytes=(first_backward,),
        first_input_bytes=(later,),
        later_input_bytes=(later,),
        first_weight_bytes=(first_backward,),
        early_gradient_bytes=nothing,
    )


def _bytes_at(size: int, *measurements: Measurement) -> BackwardPeaks:
    profile = ModelProfile(name="one", layers=(_layer("a", (), 0.0),), measurements=measurements)
    job = Job(global_batch_size=size, micro_batch_size=size, dtype="float32", optimizer="sgd")
    return backward_peaks(profile, [device_type_named(TYPE)], job)


@given(st.floats(0, 39), st.integers(1, 16))
def test_a_line_between_sizes_is_never_below_the_largest_difference(kept: float, size: int) -> None:
    """40 of gradient come before `kept` bytes of each sample go, in two parts."""

    def most(samples: int) -> float:
        return max(10.0, 40.0 - kept * samples, 0.0)

    found = _bytes_at(size, *(_measurement(each, most(each), 2.0 * each) for each in (2, 8)))
    assert found.first_backward[0, 0] >= most(size) - 1e-9
    assert found.later_input[0, 0] == pytest.approx(2.0 * size)


def test_what_nobody_has_measured_is_not_a_number() -> None:
    found = _bytes_at(1)
    assert np.isnan(found.first_backward).all()
    assert np.isnan(found.early_gradient).all()


def test_a_measured_size_is_taken_as_it_is() -> None:
    found = _bytes_at(4, _measurement(2, 30.0, 5.0), _measurement(4, 20.0, 7.0))
    assert found.first_backward[0, 0] == 20.0
    assert found.later_input[0, 0] == 7.0


def _with_a_tensor_that_passes_by() -> ModelProfile:
    """Layer 0 sends 8 bytes to layer 3, layers 1 and 2 send 4 each to the next one."""
    layers = (
        _layer("a", ((3, 8.0),), 8.0),
        _layer("b", ((1, 4.0),), 12.0),
        _layer("c", ((1, 4.0),), 12.0),
        _layer("d", (), 0.0),
    )
    return ModelProfile(name="four", layers=layers)


def test_what_passes_a_stage_by_counts_once() -> None:
    job = Job(global_batch_size=1, micro_batch_size=1, dtype="float32")
    profile = _with_a_tensor_that_passes_by()
    memory = layer_memory(profile, [device_type_named(TYPE)], job)
    scale = profile.activation_scale("float32")
    # Layer 2 receives 8 and 4, and sends the 8 on, beside 4 of its own.
    assert memory.kept_bytes(2, 2, 0) == pytest.approx((12 + 4) * scale)
    assert memory.kept_bytes(1, 2, 0) == pytest.approx((8 + 4) * scale)


def test_only_cuts_of_several_tensors_are_packed() -> None:
    job = Job(global_batch_size=1, micro_batch_size=1, dtype="float32")
    profile = _with_a_tensor_that_passes_by()
    memory = layer_memory(profile, [device_type_named(TYPE)], job)
    assert (memory.packed_bytes > 0).tolist() == [False, True, True, False]


def test_profiles_that_do_not_say_what_is_sent_have_one_tensor_at_each_cut() -> None:
    job = Job(global_batch_size=1, micro_batch_size=1, dtype="float32")
    profile = load_profile("llama-tiny")
    memory = layer_memory(profile, [device_type_named(TYPE)], job)
    assert not memory.packed_bytes.any()
    assert memory.passing.shape == (3, 0)
