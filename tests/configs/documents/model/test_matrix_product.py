"""Matrix products of layers: short texts in files, equal ones as one."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_configs.documents.model.matrix_product import MatrixProduct, merged_products
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.yaml_files import parse_yaml
from heterps_configs.errors import DocumentError

SCORES = MatrixProduct(
    rows=2048, inner=128, columns=2048, count=32, factors="activations", is_fused=True
)
TEXTS = {
    "2048x4096x11008": MatrixProduct(rows=2048, inner=4096, columns=11008),
    "2 x 2048x4096x11008": MatrixProduct(rows=2048, inner=4096, columns=11008, count=2),
    "activations 351 x 1x64x1": MatrixProduct(
        rows=1, inner=64, columns=1, count=351, factors="activations"
    ),
    "fused activations 32 x 2048x128x2048": SCORES,
}


def profile_of(**fields: Any) -> ModelProfile:
    layer: dict[str, Any] = {"name": "a", "kind": "Linear", "num_parameters": 10}
    layer |= {"forward_flops": 20, "backward_flops": 40}
    layer |= {"activation_bytes": 8, "output_bytes": 4}
    return ModelProfile.from_mapping({"name": "tiny", "layers": [layer | fields]})


@pytest.mark.parametrize("text", TEXTS)
def test_a_product_is_a_short_text_in_a_file(text: str) -> None:
    assert MatrixProduct.model_validate(text) == TEXTS[text]
    assert TEXTS[text].short_text == text
    assert profile_of(matrix_products=[text]).to_mapping()["layers"][0]["matrix_products"] == [text]


def test_a_product_may_be_a_mapping_too() -> None:
    fields: dict[str, Any] = {"rows": 2048, "inner": 128, "columns": 2048, "count": 32}
    fields |= {"factors": "activations", "is_fused": True}
    assert profile_of(matrix_products=[fields]).layers[0].matrix_products == (SCORES,)


def test_products_come_back_from_a_file_where_they_take_one_line() -> None:
    profile = profile_of(matrix_products=tuple(TEXTS.values()), num_kernels=7)
    text = profile.to_yaml()
    assert "matrix_products: [2048x4096x11008, 2 x 2048x4096x11008, activations" in text
    assert ModelProfile.from_mapping(parse_yaml(text, "memory")) == profile


@pytest.mark.parametrize("text", ["2048x4096", "0x4x4", "two x 4x4x4", "4x4x4 activations", ""])
def test_what_is_no_product_is_an_error(text: str) -> None:
    with pytest.raises(DocumentError, match=r"layers\.0\.matrix_products\.0.*must be"):
        profile_of(matrix_products=[text])


def test_a_layer_without_them_is_written_as_before() -> None:
    mapping = profile_of().to_mapping()
    assert "matrix_products" not in mapping["layers"][0]
    assert "num_kernels" not in mapping["layers"][0]
    assert profile_of().layers[0].matrix_products == ()
    assert profile_of().layers[0].num_kernels == 0


def test_they_do_not_change_what_the_layers_are() -> None:
    known = profile_of(matrix_products=["1x10x1"], num_kernels=3)
    assert known.layers_fingerprint() == profile_of().layers_fingerprint()


def test_equal_products_become_one_with_their_counts() -> None:
    twice = MatrixProduct(rows=4, inner=2, columns=3, count=2)
    other = MatrixProduct(rows=4, inner=3, columns=2)
    fused = twice.changed(count=1, factors="activations")
    assert merged_products([twice, other, fused, twice]) == (twice.changed(count=4), other, fused)
    assert merged_products([]) == ()


def test_a_multiply_add_is_two_flops() -> None:
    assert SCORES.flops == 2 * 32 * 2048 * 128 * 2048
