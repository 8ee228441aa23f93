"""What building models of transformers imports is known by name before anything is imported."""

from __future__ import annotations

import sys

import pytest

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_runtime.huggingface.library import class_named, modules_of

INPUTS = (InputSpecification(name="x", shape=(4,), dtype="int64"),)


@pytest.mark.parametrize(
    ("model_type", "architecture"),
    [("llama", "LlamaForCausalLM"), ("xlm-roberta", "XLMRobertaForMaskedLM")],
)
def test_the_module_of_a_class_is_named(model_type: str, architecture: str) -> None:
    source = ModelSource(
        kind="huggingface",
        config={"model_type": model_type},
        architecture=architecture,
        inputs=INPUTS,
    )
    assert class_named(architecture).__module__ in modules_of(source)
    assert set(modules_of(source)) <= set(sys.modules)


@pytest.mark.parametrize("model_type", ["os; import x", "../../x", "a.b"])
def test_no_document_names_a_module_of_something_else(model_type: str) -> None:
    source = ModelSource(
        kind="huggingface",
        config={"model_type": model_type},
        architecture="LlamaForCausalLM",
        inputs=INPUTS,
    )
    assert modules_of(source) == ("transformers.models.auto.modeling_auto",)


def test_models_of_other_libraries_name_nothing() -> None:
    assert modules_of(None) == ()
    assert modules_of(ModelSource(kind="factory", factory="a:b", inputs=INPUTS)) == ()
