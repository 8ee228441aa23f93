"""Merged profiles: nothing is lost, the later of two wins, other models are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.matrix_product import MatrixProduct
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_runtime.profiling.merged_profiles import merge_profiles

PRODUCT = MatrixProduct(rows=1, inner=1, columns=1)


def _layer(name: str, parameters: int = 4) -> LayerProfile:
    return LayerProfile(
        name=name, kind="Linear", num_parameters=parameters, forward_flops=1, backward_flops=2,
        activation_bytes=8, output_bytes=4,
    )  # fmt: skip


def _measurement(
    device: str, size: int = 1, date: str = "2026-01-01", s: float = 1.0
) -> Measurement:
    return Measurement(
        device_type=device, micro_batch_size=size, date=date, host="somewhere",
        forward_s=(s, s), backward_s=(s, s),
    )  # fmt: skip


def _profile(*measurements: Measurement) -> ModelProfile:
    return ModelProfile(name="m", layers=(_layer("a"), _layer("b")), measurements=measurements)


def test_all_measurements_are_kept_with_their_dates_and_hosts() -> None:
    merged, left_out = merge_profiles(
        [
            ("x.yaml", _profile(_measurement("cpu", 1), _measurement("cpu", 2))),
            ("y.yaml", _profile(_measurement("gpu", 1, "2026-02-03"))),
        ]
    )
    found = {(entry.device_type, entry.micro_batch_size): entry for entry in merged.measurements}
    assert set(found) == {("cpu", 1), ("cpu", 2), ("gpu", 1)}
    assert found["gpu", 1].date == "2026-02-03"
    assert found["cpu", 2].host == "somewhere"
    assert left_out == ()


@given(dates=st.lists(st.sampled_from(["", "2025-12-31", "2026-01-01", "2026-01-02"]), min_size=1))
def test_of_several_for_one_key_the_latest_wins(dates: list[str]) -> None:
    files = [
        (f"{n}.yaml", _profile(_measurement("cpu", date=date, s=n + 1.0)))
        for n, date in enumerate(dates)
    ]
    merged, left_out = merge_profiles(files)
    (entry,) = merged.measurements
    last = max(n for n, date in enumerate(dates) if date == max(dates))
    assert entry.forward_s[0] == last + 1.0
    assert len(left_out) == len(dates) - 1


def test_what_was_left_out_is_said() -> None:
    older, newer = _measurement("cpu", s=1.0), _measurement("cpu", date="2026-05-05", s=2.0)
    _, left_out = merge_profiles([("new.yaml", _profile(newer)), ("old.yaml", _profile(older))])
    assert left_out == (
        "cpu, float32, micro-batch 1: kept that of new.yaml (2026-05-05), "
        "left out that of old.yaml (2026-01-01)",
    )


def test_different_models_are_refused_by_their_first_differing_layer() -> None:
    other = ModelProfile(name="m", layers=(_layer("a"), _layer("c")))
    with pytest.raises(HeterpsError, match="layer 1 is 'c' with name 'c', there 'b' with 'b'"):
        merge_profiles([("x", _profile()), ("y", other)])
    wider = ModelProfile(name="m", layers=(_layer("a"), _layer("b", 5)))
    with pytest.raises(HeterpsError, match="layer 1 is 'b' with num_parameters 5"):
        merge_profiles([("x", _profile()), ("y", wider)])
    longer = ModelProfile(name="m", layers=(_layer("a"), _layer("b"), _layer("c")))
    with pytest.raises(HeterpsError, match="the first one more is 'c'"):
        merge_profiles([("x", _profile()), ("y", longer)])
    half = _profile().changed(dtype="bfloat16")
    with pytest.raises(HeterpsError, match="its bytes are for bfloat16"):
        merge_profiles([("x", _profile()), ("y", half)])


def test_what_only_one_trace_knew_is_kept_and_no_difference() -> None:
    newer = _profile(_measurement("b")).changed(
        layers=(
            _layer("a").changed(parameter_sizes=(4,), matrix_products=(PRODUCT,), num_kernels=3),
            _layer("b").changed(tensor_split=TensorSplit(unit="heads", num_units=2)),
        )
    )
    for pair in ((_profile(_measurement("a")), newer), (newer, _profile(_measurement("a")))):
        merged, _ = merge_profiles([("x", pair[0]), ("y", pair[1])])
        assert merged.layers == newer.layers
        assert len(merged.measurements) == 2


def test_another_way_to_compute_the_same_is_no_other_model() -> None:
    products = ((PRODUCT,), (PRODUCT.changed(is_fused=True),))
    one, other = (
        _profile(_measurement(device)).changed(
            layers=(
                _layer("a").changed(matrix_products=found, num_kernels=len(device)),
                _layer("b"),
            )
        )
        for device, found in zip(("cpu", "cuda"), products, strict=True)
    )
    merged, _ = merge_profiles([("x", one), ("y", other)])
    assert merged.layers == one.layers
    assert len(merged.measurements) == 2
