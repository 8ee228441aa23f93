"""Measured profiles: complete, positive, equal where layers are equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_runtime.profiling.profiler import Conditions, measure
from heterps_runtime.profiling.samples import ProfileSamples
from tests.runtime.small_models import profile_of

Call = tuple[int, int, str]


@pytest.fixture(scope="module")
def measured() -> tuple[ModelProfile, list[Call]]:
    """A Llama's profile, and what its progress was."""
    calls: list[Call] = []
    profile = measure(
        profile_of("llama"),
        "host-cpu",
        [2],
        Conditions(repeats=3),
        progress=lambda *call: calls.append(call),
    )
    return profile, calls


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gpt2", "sequential", *(pytest.param(name, marks=pytest.mark.slow) for name in ("t5", "ctr"))],
)
def test_every_layer_gets_times_for_every_size(name: str) -> None:
    profile = profile_of(name)
    measured = measure(profile, "host-cpu", [2, 3], Conditions(repeats=3, layer_limit_s=0.1))
    assert [entry.micro_batch_size for entry in measured.measurements] == [2, 3]
    for entry in measured.measurements:
        assert entry.device_type == "host-cpu"
        assert min(entry.forward_s) > 0
        assert max(entry.backward_s) > 0
        for layer, seconds in zip(profile.layers, entry.optimizer_s, strict=True):
            assert (seconds > 0) == (layer.num_parameters > 0)
    assert measured.layers == profile.layers


def test_equal_layers_share_one_measurement(measured: tuple[ModelProfile, list[Call]]) -> None:
    entry = measured[0].measurements[0]
    assert len(set(entry.forward_s[1:5])) == 1
    assert len(set(entry.backward_s[1:5])) == 1


def test_a_new_measurement_replaces_the_old_one_of_the_same_kind() -> None:
    profile = profile_of("sequential")
    once = measure(profile, "host-cpu", [2], Conditions(repeats=3))
    both = measure(once, "other", [2], Conditions(repeats=3))
    again = measure(both, "host-cpu", [2], Conditions(repeats=3))
    assert [entry.device_type for entry in again.measurements] == ["other", "host-cpu"]


def test_progress_goes_from_the_first_visit_to_the_last(
    measured: tuple[ModelProfile, list[Call]],
) -> None:
    calls = measured[1]
    assert calls[0] == (0, calls[0][1], "model.embed_tokens .. model.norm+lm_head, warm-up")
    assert calls[-1] == (calls[0][1], calls[0][1], "")
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_threads_are_as_before() -> None:
    before = torch.get_num_threads()
    measure(
        profile_of("sequential"), "host-cpu", [1], Conditions(repeats=3, num_threads=before + 1)
    )
    assert torch.get_num_threads() == before


def test_every_number_is_there_with_its_spread(measured: tuple[ModelProfile, list[Call]]) -> None:
    profile = measured[0]
    entry = profile.measurements[0]
    for field in ("forward_spread_s", "backward_spread_s", "activation_bytes", "peak_bytes"):
        assert len(getattr(entry, field)) == profile.num_layers
    assert entry.num_repeats >= 3 * 4
    # Below 0 where a stage takes less than its layers one by one.
    assert len(entry.stage_forward_s) == profile.num_layers
    assert any(entry.stage_forward_s)
    for whole, part in zip(entry.backward_s, entry.weight_gradient_s, strict=True):
        assert 0 <= part <= whole
    assert entry.date
    assert "thread(s)" in entry.host


def test_an_interrupted_profile_goes_on_without_measuring_again(tmp_path: Path) -> None:
    partial = tmp_path / "profile.yaml.partial"
    profile = profile_of("sequential")

    def interrupt(done: int, total: int, text: str) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(
            profile, "host-cpu", [2], Conditions(repeats=3), partial=partial, progress=interrupt
        )
    before = ProfileSamples.model_validate_json(partial.read_text())
    assert len(before.done) == 3
    visits: list[int] = []
    measured = measure(
        profile,
        "host-cpu",
        [2],
        Conditions(repeats=3),
        partial=partial,
        progress=lambda done, total, text: visits.append(done),
    )
    assert measured.measurements[0].num_repeats == 3 * 4
    assert not partial.exists()


def test_an_interrupted_profile_of_another_device_is_refused(tmp_path: Path) -> None:
    partial = tmp_path / "profile.yaml.partial"
    profile = profile_of("sequential")

    def interrupt(done: int, total: int, text: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(
            profile, "host-cpu", [2], Conditions(repeats=3), partial=partial, progress=interrupt
        )
    with pytest.raises(HeterpsError, match="device_type 'host-cpu', but 'other' is asked for"):
        measure(profile, "other", [2], Conditions(repeats=3), partial=partial)
    with pytest.raises(HeterpsError, match="an interrupted profile with model 'sequential'"):
        measure(profile_of("in_place"), "host-cpu", [2], Conditions(repeats=3), partial=partial)
    partial.write_text("{}")
    with pytest.raises(HeterpsError, match="delete it to start anew"):
        measure(profile, "host-cpu", [2], Conditions(repeats=3), partial=partial)


@pytest.mark.slow
def test_packing_is_measured_where_several_tensors_cross_a_cut() -> None:
    profile = measure(profile_of("ctr"), "host-cpu", [2], Conditions(repeats=3, layer_limit_s=0.05))
    cut_s = profile.measurements[0].cut_s
    assert len(cut_s) == profile.num_layers
    assert max(cut_s) > 0
    assert cut_s[-1] == 0


def test_a_profile_without_source_and_an_absent_device_are_refused() -> None:
    profile = profile_of("sequential")
    with pytest.raises(HeterpsError, match="has no source"):
        measure(profile.changed(source=None), "host-cpu", [1])
    with pytest.raises(HeterpsError, match="cannot be used here"):
        measure(profile, "gpu", [1], Conditions(device="cuda:77"))
