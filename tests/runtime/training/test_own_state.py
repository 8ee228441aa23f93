"""The state of a user's own: saved as plain JSON, and the same again."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.program import TrainingProgram

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
STATES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


class Kept:
    """State as it is."""

    def __init__(self, state: Any = None) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        if state == "refused":
            raise KeyError("epoch")
        self.state = state


def again(state: Any) -> Any:
    """Through the text of a checkpoint's document."""
    text = json.dumps(OwnState({"own": Kept(state)}).encoded(), allow_nan=False)
    loaded = Kept()
    assert OwnState({"own": loaded}).load(json.loads(text)) == []
    return loaded.state


@given(STATES)
def test_plain_values_come_back_with_their_types(state: Any) -> None:
    found = again(state)
    assert found == state
    assert repr(found) == repr(state)


@pytest.mark.parametrize(
    "number_format", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_bit_by_bit(number_format: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 9).to(number_format)
    found = again({"a": (tensor,)})["a"][0]
    assert found.dtype == number_format
    assert found.shape == shape
    assert torch.equal(found, tensor)


def test_arrays_and_random_numbers_come_back() -> None:
    generator = np.random.default_rng(4)
    generator.random(3)
    state = again({"random": generator.bit_generator.state, "array": np.arange(6).reshape(2, 3)})
    other = np.random.default_rng()
    other.bit_generator.state = state["random"]
    assert other.random() == generator.random()
    np.testing.assert_array_equal(state["array"], np.arange(6).reshape(2, 3))
    assert math.isnan(again({"loss": math.nan})["loss"])


def test_what_cannot_be_saved_is_named() -> None:
    with pytest.raises(HeterpsError, match=r"own\.best\[1\] is of type object"):
        again({"best": [1, object()]})
    with pytest.raises(HeterpsError, match="a key of type tuple"):
        again({(1, 2): 3})
    with pytest.raises(HeterpsError, match=r"state 'own': cannot go on .* KeyError: 'epoch'"):
        again("refused")
    with pytest.raises(HeterpsError, match="state 'count': int has no state_dict"):
        TrainingProgram(state={"count": 3})  # type: ignore[dict-item]


def test_a_format_of_numbers_is_looked_up_and_never_asked_of_torch() -> None:
    """torch imports a module that it is asked for by name."""
    saved = {"own": {"tensor": "", "format": "onnx", "shape": [0]}}
    with pytest.raises(HeterpsError, match="expected a dtype of torch"):
        OwnState({"own": Kept()}).load(saved)


def test_other_names_are_told() -> None:
    saved = OwnState({"old": Kept(1), "both": Kept(2)}).encoded()
    both, new = Kept(), Kept(7)
    assert OwnState({"both": both, "new": new}).load(saved) == [
        "the checkpoint has no state 'new': it begins anew",
        "the program has no state 'old': what was saved of it is lost",
    ]
    assert (both.state, new.state) == (2, 7)
