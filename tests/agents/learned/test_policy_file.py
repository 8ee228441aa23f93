"""What is written beside weights can be read by anything that reads JSON."""

from __future__ import annotations

import io
import json
import math
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_agents.learned.policy import Policy
from heterps_agents.learned.policy_file import finite_or_none
from heterps_agents.training.run import CHECKPOINT_FILE, read_checkpoint
from heterps_configs.errors import HeterpsError


class _Runs:
    """A pickle that makes a folder where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def _as_array(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weights=np.array([_Runs()], dtype=object), allow_pickle=True)


def _as_entry(path: Path) -> None:
    """What other libraries call a policy: an archive with a pickle in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", pickle.dumps(_Runs()))
        archive.writestr("archive/data.pkl", pickle.dumps(_Runs()))


def _as_file(path: Path) -> None:
    path.write_bytes(pickle.dumps(_Runs()))


@pytest.mark.parametrize("write", [_as_array, _as_entry, _as_file])
def test_a_strangers_policy_or_training_run_is_refused_in_one_line_and_runs_nothing(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "policy.npz")
    with pytest.raises(HeterpsError, match=r"^\S+ is not a policy that `heterps train` wrote$"):
        Policy.load(tmp_path / "policy.npz")
    write(tmp_path / CHECKPOINT_FILE)
    with pytest.raises(HeterpsError, match=r"^\S+ is not a checkpoint of a training run$"):
        read_checkpoint(tmp_path)
    assert not Path("ran").exists()
    pickle.loads(pickle.dumps(_Runs()))
    assert Path("ran").exists(), "it does run where anybody else reads it"


def test_scores_without_a_placement_are_null_in_json() -> None:
    scores = {"mean": math.inf, "median": 0.25, "p95": math.nan}
    written = json.dumps(finite_or_none(scores), allow_nan=False)
    assert json.loads(written) == {"mean": None, "median": 0.25, "p95": None}


def write_changed(path: Path, meta: Any = None, **changes: Any) -> Path:
    """The shipped policy with other weights; None leaves some out."""
    policy = Policy.load("generalist")
    weights = {**policy.weights, **changes}
    kept = {name: value for name, value in weights.items() if value is not None}
    content = {"feature_version": policy.feature_version} if meta is None else meta
    np.savez(path, meta=np.array(json.dumps(content)), **kept)
    return path


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"score_out.weight": None}, r"the weights 'score_out.weight' are missing"),
        (
            {"state_in.weight": np.zeros((64, 2))},
            r"have the shape \(64, 2\); it must be \(64, 13\)",
        ),
        ({"candidate_in.bias": np.full(64, np.nan)}, "'candidate_in.bias' are not all finite"),
        ({"candidate_in.bias": np.array(["a"] * 64)}, "'candidate_in.bias' are not all finite"),
        ({"meta": [1]}, "is not a policy that `heterps train` wrote"),
        ({"more": np.array([1j])}, "is not a policy that `heterps train` wrote"),
    ],
)
def test_weights_that_a_search_would_misread_are_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = write_changed(tmp_path / "policy.npz", **changes)
    with pytest.raises(HeterpsError, match=expected):
        Policy.load(path)


def test_an_array_that_claims_more_than_memory_holds_is_never_made(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    )
    path = tmp_path / "policy.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", header.getvalue())
    with pytest.raises(HeterpsError, match="is not a policy that `heterps train` wrote"):
        Policy.load(path)


def test_weights_that_single_precision_cannot_hold_are_refused(tmp_path: Path) -> None:
    policy, file = Policy.load("generalist"), tmp_path / "p.npz"
    policy.save(file)
    with np.load(file) as archive:
        arrays = dict(archive)
    name = next(name for name, values in arrays.items() if values.dtype.kind == "f")
    arrays[name] = np.full(arrays[name].shape, 1e300)
    np.savez(file, **arrays)
    with pytest.raises(HeterpsError, match="are not all finite numbers"):
        Policy.load(str(file))
