"""What is written beside weights can be read by anything that reads JSON."""

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
