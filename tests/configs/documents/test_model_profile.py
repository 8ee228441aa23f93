"""Model profiles: layers, measurements, and what identifies them."""

from typing import Any

import pytest

from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import DocumentError


def profile_data(num_layers: int = 2, **fields: Any) -> dict[str, Any]:
    layer = {
        "kind": "Linear",
        "num_parameters": 10,
        "forward_flops": 20,
        "backward_flops": 40,
        "activation_bytes": 8,
        "output_bytes": 4,
    }
    return {
        "name": "tiny",
        "layers": [{"name": f"layer-{i}", **layer} for i in range(num_layers)],
        **fields,
    }


def measurement(**fields: Any) -> dict[str, Any]:
    seconds = {"forward_s": [0.1, 0.2], "backward_s": [0.2, 0.4]}
    return {"device_type": "host-cpu", "micro_batch_size": 1, **seconds, **fields}


def problems_of(data: Any) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as caught:
        ModelProfile.from_mapping(data, "tiny.yaml")
    return caught.value.problems


def test_tied_parameters_are_counted_once() -> None:
    data = profile_data(3)
    data["layers"][2].update(tied_to="layer-0", tied_parameters=data["layers"][2]["num_parameters"])
    assert ModelProfile.from_mapping(data).num_parameters == 20


def test_measurements_do_not_change_what_the_layers_are() -> None:
    bare = ModelProfile.from_mapping(profile_data())
    measured = bare.changed(
        measurements=(Measurement.from_mapping(measurement()),), command="profile"
    )
    assert bare.layers_fingerprint() == measured.layers_fingerprint()
    assert bare.fingerprint() != measured.fingerprint()


def test_a_copy_knows_nothing_of_what_was_found_out_about_the_first_profile() -> None:
    bare = ModelProfile.from_mapping(profile_data(3))
    assert bare.layers_fingerprint()
    assert bare.first_alike == (0, 0, 0)
    layers = tuple(
        layer.changed_unchecked(output_bytes=index) for index, layer in enumerate(bare.layers)
    )
    copy = bare.changed_unchecked(layers=layers)
    assert copy.first_alike == (0, 1, 2)
    assert copy.layers_fingerprint() == bare.changed(layers=layers).layers_fingerprint()
    assert copy.layers_fingerprint() != bare.layers_fingerprint()


def test_other_layers_have_another_fingerprint() -> None:
    other = profile_data()
    other["layers"][1]["output_bytes"] = 5
    assert (
        ModelProfile.from_mapping(profile_data()).layers_fingerprint()
        != ModelProfile.from_mapping(other).layers_fingerprint()
    )


def test_layer_names_are_unique() -> None:
    data = profile_data(3)
    data["layers"][2]["name"] = "layer-0"
    assert problems_of(data) == ("layers.2.name: 'layer-0' is taken by layers.0",)


def test_every_measurement_has_one_value_for_each_layer() -> None:
    data = profile_data(
        measurements=[measurement(), measurement(forward_s=[0.1], optimizer_s=[1, 2, 3])]
    )
    assert problems_of(data) == (
        "measurements.1.forward_s: 1 values for 2 layers",
        "measurements.1.optimizer_s: 3 values for 2 layers",
    )


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-0.1, "must be at least 0, got -0.1"),
        (2e9, "must be at most 1000000000, got 2000000000.0"),
        (float("nan"), "must be a finite number, got nan"),
        (float("inf"), "must be a finite number, got inf"),
        (True, "must be a plain number of seconds, such as 1e-4, got True"),
    ],
)
def test_a_time_is_a_number_of_seconds_that_can_be(value: object, expected: str) -> None:
    data = profile_data(measurements=[measurement(backward_s=[0.1, value])])
    assert problems_of(data) == (f"measurements.0.backward_s.1: {expected}",)


def test_a_field_of_a_layer_has_its_unit_in_the_message() -> None:
    data = profile_data(1)
    data["layers"][0]["output_bytes"] = "4 KiB"
    del data["layers"][0]["kind"]
    assert problems_of(data) == (
        "layers.0.kind: is missing",
        "layers.0.output_bytes: must be a plain whole number of bytes, such as 40e9, got '4 KiB'",
    )


def test_a_model_has_layers() -> None:
    assert problems_of(profile_data(0)) == ("layers: needs at least 1 entry",)


def test_no_part_of_a_layer_exceeds_the_layer() -> None:
    data = profile_data()
    data["layers"][1]["tensor_split"] = {"unit": "heads", "num_units": 4, "activation_bytes": 9}
    assert problems_of(data) == (
        "layers.1.tensor_split.activation_bytes: 9 is more than the layer's activation_bytes, 8",
    )


def test_sizes_of_parameters_are_no_more_than_the_layer_has() -> None:
    data = profile_data()
    data["layers"][1]["parameter_sizes"] = [8, 2]
    ModelProfile.from_mapping(data)
    data["layers"][1]["parameter_sizes"] = [80, 2]
    assert problems_of(data) == (
        "layers.1.parameter_sizes: they sum to 82, more than the layer's num_parameters, 10",
    )


def test_what_is_sent_over_a_cut_is_no_more_than_crosses_it() -> None:
    data = profile_data(3)
    data["layers"][0]["sent"] = [[2, 3], [1, 1]]
    data["layers"][1]["sent"] = [[1, 1]]
    ModelProfile.from_mapping(data)
    data["layers"][1]["sent"] = [[1, 2]]
    assert problems_of(data) == (
        "layers.1.output_bytes: 4, and what is sent over the cut behind the layer (sent) has 5",
    )
