"""What ranks tell one another arrives as it was sent, and anything else names the rank."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.elastic.state_sources import Holding, SavedNames
from heterps_runtime.models.dtypes import as_json
from heterps_runtime.process.memory_report import MemoryByKind
from heterps_runtime.specification.devices import Place
from heterps_runtime.state.layout import TensorLayout
from heterps_runtime.state.migrate import Wanted
from heterps_runtime.transport.typed_messages import (
    MOST_BYTES,
    MessageError,
    check_sizes,
    decoded,
)

LAYOUTS = {"a.weight": (TensorLayout("value", (2, 0, 3), torch.bfloat16),), "b": ()}
WANTED = Wanted(frozenset({"a", "b"}), frozenset(), {}, frozenset(), {})


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, int),
        (Place("machine", "cuda:1"), Place),
        (MemoryByKind(inputs=3), MemoryByKind),
        ({"a": (1, 2), "é\n": ()}, dict[str, tuple[int, ...]]),
        (Holding(None, {}, WANTED), Holding),
        (Holding(3, LAYOUTS, WANTED), Holding),
        (SavedNames({4: LAYOUTS}, {0: frozenset({"a"})}), SavedNames),
        (([1.5, math.inf], 0.0), tuple[list[float], float]),
    ],
)
def test_values_arrive_as_they_were(value: Any, kind: Any) -> None:
    assert decoded(as_json(value), kind, 0) == value


class _Runs:
    """A pickle that makes a folder where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(_Runs()),
        b"",
        b"[" * 100_000,
        as_json({"a": "one"}),
        as_json({"a": [-1, True, None]}),
        b'{"a": [1e400]}',
    ],
)
def test_anything_else_names_the_rank_and_runs_nothing(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MessageError, match=r"^rank 3 sent no message of this run \([^\n]*\)$"):
        decoded(content, dict[str, tuple[int, ...]], 3)
    assert not Path("ran").exists()


def test_formats_and_shapes_that_are_none_are_refused() -> None:
    for wrong in (["value", [-1], "float32"], ["value", [1], "hub"], ["value", [1], "float32", 1]):
        with pytest.raises(MessageError):
            decoded(as_json(wrong), TensorLayout, 0)


@pytest.mark.parametrize("size", [-1, MOST_BYTES + 1, 2**62])
def test_sizes_are_refused_before_memory_is_taken(size: int) -> None:
    check_sizes([0, MOST_BYTES])
    with pytest.raises(MessageError, match="rank 1 sent no message of this run"):
        check_sizes([0, size])


def test_what_cannot_be_sent_is_said_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="a _Runs cannot be sent"):
        as_json({"a": _Runs()})
