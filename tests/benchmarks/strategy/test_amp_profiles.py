"""AMP's own case, read from a folder; here from files that the test writes."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.strategy import amp_profiles
from benchmarks.strategy.amp_twin import Degrees
from heterps_configs.errors import HeterpsError


def write_profiles(folder: Path, count: int = amp_profiles.LAYERS) -> None:
    (folder / "amp").mkdir()
    rng = np.random.default_rng(1)
    for degree in (1, 2):
        for kind, scale in (("P3", 1.0), ("G4", 3.0)):
            seconds = 0.01 * scale * (1 + rng.random(count)) / degree
            np.save(folder / "amp" / f"gpt2_{kind}_{degree}.npy", seconds)


def test_nothing_is_read_without_the_folder(tmp_path: Path) -> None:
    assert amp_profiles.rows(tmp_path) == []


def test_every_published_choice_of_degrees_is_a_row_with_the_optimum(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    rows = amp_profiles.rows(tmp_path)
    assert len(rows) == len(amp_profiles.FIGURES)
    case = amp_profiles.case_of(tmp_path / "amp", Degrees(1, 1, 4, 4))
    least_s = min(case.cost_s((*cuts, 30)) for cuts in combinations(range(1, 30), 3))
    assert 1 / rows[0]["ours"] == pytest.approx(least_s)
    # Drawn seconds: the published split costs something else, and nothing counts as met.
    assert not rows[0]["as published"]
    assert not rows[0]["met"]


def test_layers_take_three_quarters_of_one_kind_and_a_quarter_of_the_other(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    fast, slow = (np.load(tmp_path / "amp" / f"gpt2_{kind}_2.npy") for kind in ("P3", "G4"))
    case = amp_profiles.case_of(tmp_path / "amp", Degrees(2, 2, 2, 4))
    np.testing.assert_allclose(case.compute_s, 2 * (0.75 * fast + 0.25 * slow))
    assert np.count_nonzero(case.parameters) == 26


def test_files_of_other_layers_are_refused(tmp_path: Path) -> None:
    write_profiles(tmp_path, count=12)
    with pytest.raises(HeterpsError, match="12 numbers; 30 layers have one each"):
        amp_profiles.rows(tmp_path)
    (tmp_path / "amp" / "gpt2_P3_1.npy").unlink()
    with pytest.raises(HeterpsError, match="no such file"):
        amp_profiles.rows(tmp_path)
