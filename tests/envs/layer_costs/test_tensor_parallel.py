"""What one device of a tensor-parallel group holds and computes."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import FinerSplit, KeyValueSplit, TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.group_slice import (
    GroupSlice,
    query_head_ranges,
    unit_ranges,
    used_key_values,
)
from heterps_envs.layer_costs.tensor_parallel import (
    Splits,
    SplitUnits,
    split_profile,
    sum_seconds,
)

PARTS = {
    "parameters": "num_parameters",
    "forward_flops": "forward_flops",
    "backward_flops": "backward_flops",
    "activation_bytes": "activation_bytes",
    "memory_traffic_bytes": "memory_traffic_bytes",
    "sparse_parameters": "sparse_parameters",
    "tied_parameters": "tied_parameters",
    "shared_bytes": "shared_bytes",
    "deferred_bytes": "deferred_bytes",
}


@st.composite
def _layers(draw: st.DrawFn) -> LayerProfile:
    """A layer whose whole numbers can be handed out in 8 parts."""
    parts = {name: 8 * draw(st.integers(0, 1000)) for name in PARTS}
    rest = {name: draw(st.integers(0, 1000)) for name in PARTS}
    split = TensorSplit(unit="heads", num_units=8, forward_sums=(64.0,), **parts)
    numbers = {PARTS[name]: parts[name] + rest[name] for name in PARTS}
    return LayerProfile(name="a", kind="Block", output_bytes=64, tensor_split=split, **numbers)


@given(layer=_layers(), degree=st.sampled_from([1, 2, 4, 8]))
def test_the_devices_of_a_group_hold_together_the_whole_and_the_rest_each(
    layer: LayerProfile, degree: int
) -> None:
    one = split_profile(ModelProfile(name="m", layers=(layer,)), degree).layers[0]
    for name, whole in PARTS.items():
        divided = getattr(layer.tensor_split, name)
        rest = getattr(layer, whole) - divided
        assert degree * (getattr(one, whole) - rest) == pytest.approx(divided)
    assert one.output_bytes == layer.output_bytes


def _profile(num_units: int) -> ModelProfile:
    split = TensorSplit(
        unit="heads",
        num_units=num_units,
        parameters=60,
        activation_bytes=20,
        forward_sums=(64.0, 64.0),
        backward_sums=(32.0,),
    )
    layer = LayerProfile(
        name="a",
        kind="Block",
        num_parameters=64,
        forward_flops=1,
        backward_flops=2,
        activation_bytes=30,
        output_bytes=64,
        parameter_sizes=(40, 20, 4),
        tensor_split=split,
    )
    taken = {"device_type": "v100", "micro_batch_size": 1}
    return ModelProfile(
        name="m",
        layers=(layer,),
        measurements=(
            Measurement(**taken, forward_s=(1.0,), backward_s=(2.0,)),
            Measurement(**taken, tensor_parallel=2, forward_s=(0.6,), backward_s=(1.1,)),
        ),
    )


def test_alone_a_device_has_the_whole_profile() -> None:
    profile = _profile(4)
    assert split_profile(profile, 1) == profile


def test_layers_of_a_degree_are_found_once() -> None:
    splits = Splits(_profile(4))
    assert splits.at(2) == split_profile(splits.profile, 2)
    assert splits.at(2) is splits.at(2)


def test_a_group_of_more_devices_than_units_leaves_the_layer_whole_and_sums_nothing() -> None:
    profile = _profile(4)
    # Of four units one of three devices has two.
    assert split_profile(profile, 3).layers[0].num_parameters == 4 + 60 // 2
    assert split_profile(profile, 4).layers[0].num_parameters == 4 + 60 // 4
    assert split_profile(profile, 5).layers[0] == profile.layers[0].changed(tensor_split=None)
    link = Link(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    forward_s, backward_s = sum_seconds(profile, Job(), 5, link)
    assert (forward_s[0], backward_s[0]) == (0, 0)


def test_equal_layers_are_split_alike_and_keep_their_names() -> None:
    layer = _profile(4).layers[0]
    layers = tuple(layer.changed(name=name) for name in "abc")
    split = split_profile(ModelProfile(name="m", layers=layers), 2).layers
    assert [each.name for each in split] == ["a", "b", "c"]
    assert {each.changed(name="a") for each in split} == {split[0]}
    assert split[1].num_parameters < layer.num_parameters


def test_a_split_profile_has_the_measurements_of_that_degree() -> None:
    assert [x.forward_s for x in split_profile(_profile(4), 2).measurements] == [(0.6,)]
    assert split_profile(_profile(4), 4).measurements == ()


def test_matrices_are_split_and_small_parameters_are_not() -> None:
    assert split_profile(_profile(4), 2).layers[0].parameter_sizes == (20, 10, 4)


def test_sums_are_ring_all_reduces_of_a_micro_batch() -> None:
    # Two sums of 3 x 64 bytes over 4 devices: 2 x 6 messages of 48 bytes; backward 6 of 24.
    link = Link(latency_s=0.5, bandwidth_bytes_per_s=12.0)
    job = Job(micro_batch_size=3, global_batch_size=3, dtype="float32")
    forward_s, backward_s = sum_seconds(_profile(4), job, 4, link)
    assert forward_s[0] == pytest.approx(12 * (0.5 + 4.0))
    assert backward_s[0] == pytest.approx(6 * (0.5 + 2.0))


@given(
    heads=st.integers(1, 12),
    columns=st.integers(13, 100),
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=4),
)
def test_devices_get_whole_heads_and_whole_columns_as_a_run_deals_them(
    heads: int, columns: int, shares: list[int]
) -> None:
    own = tuple(share / sum(shares) for share in shares)
    finer = FinerSplit(num_units=columns, parameters=7 * columns, activation_bytes=3.0 * columns)
    split = TensorSplit(
        unit="heads",
        num_units=heads,
        parameters=5 * heads + finer.parameters,
        activation_bytes=2.0 * heads + finer.activation_bytes,
        finer=(finer,),
    )
    layer = LayerProfile(
        name="a", kind="Block", num_parameters=split.parameters + 11, forward_flops=1,
        backward_flops=2, activation_bytes=split.activation_bytes + 4, output_bytes=0,
        tensor_split=split,
    )  # fmt: skip
    for rank in range(len(own)):
        slice_ = GroupSlice(rank, own)
        held = split_profile(ModelProfile(name="m", layers=(layer,)), len(own), slice_).layers[0]
        if heads < len(own):
            assert held.num_parameters == layer.num_parameters
            continue
        counts = [
            stop - start
            for start, stop in (unit_ranges(units, own)[rank] for units in (heads, columns))
        ]
        assert held.num_parameters == 11 + 5 * counts[0] + 7 * counts[1]
        assert held.activation_bytes == pytest.approx(4 + 2 * counts[0] + 3 * counts[1])


def test_only_groups_that_units_do_not_divide_into_have_unlike_devices() -> None:
    units = SplitUnits.of(_profile(4))
    assert [degree for degree in range(1, 7) if units.leave_rests(degree)] == [3]


_SHARES = st.lists(st.integers(1, 9), min_size=2, max_size=12)


@given(key_values=st.integers(1, 6), queries=st.integers(2, 7), parts=_SHARES)
def test_a_device_has_all_queries_of_some_keys_and_values_or_some_of_one(
    key_values: int, queries: int, parts: list[int]
) -> None:
    heads, shares = key_values * queries, tuple(part / sum(parts) for part in parts)
    if heads < len(shares):
        return
    ranges = query_head_ranges(heads, key_values, shares)
    covered = sorted(head for start, stop in ranges for head in range(start, stop))
    assert covered == list(range(heads))
    for start, stop in ranges:
        assert start < stop
        first, last = used_key_values((start, stop), heads, key_values)
        assert last - first == 1 or (start, stop) == (first * queries, last * queries)
    # A device with a larger share has no fewer.
    counts = [stop - start for start, stop in ranges]
    for one, other in permutations(range(len(parts)), 2):
        assert parts[one] <= parts[other] or counts[one] >= counts[other]


def test_devices_beyond_the_keys_and_values_share_them_as_evenly_as_they_can() -> None:
    def counts(heads: int, key_values: int, *parts: int) -> list[int]:
        shares = tuple(part / sum(parts) for part in parts)
        return [stop - start for start, stop in query_head_ranges(heads, key_values, shares)]

    assert counts(28, 4, *[1] * 8) == [4, 4, 4, 4, 3, 3, 3, 3]  # Qwen2 7B
    assert counts(32, 8, *[1] * 16) == [2] * 16
    assert counts(8, 2, 1, 1, 1) == [4, 2, 2]
    assert counts(8, 2, 1, 1, 2) == [2, 2, 4]
    assert counts(8, 2, 3, 1, 3, 1) == [3, 1, 3, 1]
    # No more devices than keys and values: whole ones, as without sharing.
    assert counts(28, 4, 3, 1) == [21, 7]


def _sharing() -> TensorSplit:
    """Eight query heads of 10 parameters, two of keys and values of 6."""
    key_values = KeyValueSplit(num_units=2, parameters=12, activation_bytes=4.0, forward_flops=40.0)
    return TensorSplit(
        unit="heads",
        num_units=8,
        parameters=80 + 12,
        activation_bytes=16.0 + 4.0,
        forward_flops=800.0 + 40.0,
        key_values=key_values,
    )


def _layer_of(split: TensorSplit) -> ModelProfile:
    layer = LayerProfile(
        name="a", kind="Block", num_parameters=split.parameters + 5,
        forward_flops=split.forward_flops + 1, backward_flops=2,
        activation_bytes=split.activation_bytes + 3, output_bytes=0, tensor_split=split,
    )  # fmt: skip
    return ModelProfile(name="m", layers=(layer,))


@pytest.mark.parametrize(
    ("shares", "queries", "key_values"),
    [
        ((0.5, 0.5), [4, 4], [1, 1]),
        ((0.25,) * 4, [2, 2, 2, 2], [1, 1, 1, 1]),
        ((0.5, 0.25, 0.25), [4, 2, 2], [1, 1, 1]),
        ((0.125,) * 8, [1] * 8, [1] * 8),
    ],
)
def test_each_device_has_the_keys_and_values_of_its_queries(
    shares: tuple[float, ...], queries: list[int], key_values: list[int]
) -> None:
    profile = _layer_of(_sharing())
    for rank, (own, used) in enumerate(zip(queries, key_values, strict=True)):
        place = GroupSlice(rank, shares)
        held = split_profile(profile, len(shares), place).layers[0]
        assert held.num_parameters == 5 + 10 * own + 6 * used
        assert held.activation_bytes == pytest.approx(3 + 2 * own + 2 * used)
        assert held.forward_flops == pytest.approx(1 + 100 * own + 20 * used)
    if len(set(shares)) == 1:
        largest = split_profile(profile, len(shares)).layers[0]
        assert largest.num_parameters == 5 + 10 * max(queries) + 6 * max(key_values)


def test_a_profile_that_knows_no_shared_keys_and_values_leaves_the_layer_whole_as_before() -> None:
    known = _layer_of(_sharing())
    data = known.to_mapping()
    split = data["layers"][0]["tensor_split"]
    del split["key_values"]
    before = ModelProfile.from_mapping(
        data | {"layers": [{**data["layers"][0], "tensor_split": {**split, "num_units": 2}}]}
    )
    assert before.layers[0].tensor_split == _sharing().by_key_values()
    assert split_profile(before, 2).layers == split_profile(known, 2).layers
    assert split_profile(before, 4).layers[0].num_parameters == 97
    assert split_profile(known, 4).layers[0].num_parameters == 5 + 20 + 6


def test_groups_whose_devices_cannot_share_keys_and_values_evenly_have_unlike_ones() -> None:
    units = SplitUnits.of(_layer_of(_sharing()))
    assert [degree for degree in range(1, 10) if units.leave_rests(degree)] == [3, 5, 6, 7]
