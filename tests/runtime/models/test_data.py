"""Synthetic samples depend on (seed, step, index) alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.data import make_batch
from tests.runtime.small_models import NAMES, source_of


@given(
    first=st.integers(0, 50),
    size=st.integers(1, 9),
    offset=st.integers(0, 8),
    step=st.integers(0, 9),
)
def test_any_slice_holds_the_samples_of_the_whole(
    first: int, size: int, offset: int, step: int
) -> None:
    source = source_of("ctr")
    inputs, target = make_batch(source, step, size, seed=1, first_sample=first)
    whole_inputs, whole_target = make_batch(source, step, size + offset, seed=1, first_sample=first)
    assert torch.equal(target, whole_target[:size])
    assert all(torch.equal(inputs[name], whole_inputs[name][:size]) for name in inputs)


def test_seed_and_step_change_the_samples() -> None:
    source = source_of("llama")
    batches = [make_batch(source, step, 4, seed)[1] for step, seed in ((0, 0), (1, 0), (0, 1))]
    assert not any(
        torch.equal(batches[i], batches[j]) for i in range(3) for j in range(3) if i != j
    )


@pytest.mark.parametrize("name", NAMES)
def test_shapes_types_and_ranges_are_those_of_the_source(name: str) -> None:
    source = source_of(name)
    assert source.target is not None
    inputs, target = make_batch(source, 0, 3, seed=0)
    tensors = [*((entry, inputs[entry.name]) for entry in source.inputs), (source.target, target)]
    for entry, tensor in tensors:
        assert tensor.shape == (3, *entry.shape)
        assert str(tensor.dtype) == f"torch.{entry.dtype}"
        if entry.dtype == "int64" and entry.num_classes is not None:
            assert 0 <= int(tensor.min()) <= int(tensor.max()) < entry.num_classes


def test_a_language_model_predicts_the_next_token() -> None:
    inputs, target = make_batch(source_of("llama"), 0, 2, seed=0)
    assert torch.equal(inputs["input_ids"][:, 1:], target[:, :-1])


def test_clicks_are_zero_or_one() -> None:
    _, target = make_batch(source_of("ctr"), 0, 50, seed=0)
    assert set(target.flatten().tolist()) == {0.0, 1.0}


def test_a_source_without_target_cannot_be_trained() -> None:
    source = source_of("llama").changed(target=None)
    with pytest.raises(HeterpsError, match="no target"):
        make_batch(source, 0, 2, seed=0)


def test_tokens_that_stand_for_an_image_are_in_front_and_nowhere_else() -> None:
    tokens = InputSpecification(
        name="ids", shape=(50,), dtype="int64", num_classes=6, placeholder=4, num_placeholders=20
    )
    source = ModelSource(
        kind="factory",
        factory="m:f",
        inputs=(tokens, InputSpecification(name="pixels", shape=(2,))),
        target=InputSpecification(name="labels", shape=(50,), dtype="int64", num_classes=6),
    )
    ids = make_batch(source, step=0, batch_size=8, seed=0)[0]["ids"]
    assert (ids[:, :20] == 4).all()
    assert not (ids[:, 20:] == 4).any()


def test_letters_of_a_sound_are_never_the_blank() -> None:
    source = ModelSource(
        kind="factory",
        factory="m:f",
        inputs=(InputSpecification(name="sound", shape=(9,)),),
        target=InputSpecification(name="letters", shape=(30,), dtype="int64", num_classes=3),
        loss="ctc",
    )
    letters = make_batch(source, step=0, batch_size=8, seed=0)[1]
    assert sorted(set(letters.flatten().tolist())) == [1, 2]


def test_samples_stay_the_same_from_release_to_release() -> None:
    # A run that goes on from an older checkpoint sees the samples that are due.
    source = ModelSource(
        kind="factory",
        factory="m:f",
        inputs=(InputSpecification(name="x", shape=(2,)),),
        target=InputSpecification(name="y", shape=(3,), dtype="int64", num_classes=100),
    )
    inputs, target = make_batch(source, step=1, batch_size=1, seed=7)
    assert inputs["x"].tolist() == [pytest.approx([0.34736177, -2.33785605])]
    assert target.tolist() == [[3, 2, 18]]
