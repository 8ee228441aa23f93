"""Cephalo's section: the published case, and blocks measured on all of its GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.published.cephalo import rows

LINES = {
    "l4": [[8.0, 1.0], [12.0, 4.0]],
    "a6000": [[3.0, 1.0], [4.0, 2.0]],
    "p40": [[15.0, 4.0], [28.0, 2.0]],
}


def with_points(lines: list[list[float]], count: int) -> list[list[float]]:
    """Points on the lines, behind lines that say something else."""
    points = [[slope * n + start for n in range(1, count + 1)] for slope, start in lines]
    return [[99.0, 99.0], [99.0, 99.0], *points]


def test_lines_are_fitted_to_points_where_there_are_some(tmp_path: Path) -> None:
    blocks = {
        "lines": {gpu: {"512": {"float16": own}} for gpu, own in LINES.items()},
        "points": {gpu: {"512": {"float16": with_points(own, 6)}} for gpu, own in LINES.items()},
        "old": {gpu: {"512": 5.0} for gpu in LINES},
        "no passes": {gpu: {"512": {"float16": [5.0, 1.0]}} for gpu in LINES},
        "not all": {"l4": {"512": {"float16": LINES["l4"]}}},
        "unlike": {
            gpu: {str(128 * n): {"float16": own}} for n, (gpu, own) in enumerate(LINES.items())
        },
    }
    (tmp_path / "cephalo").mkdir()
    (tmp_path / "cephalo" / "model_latencies.json").write_text(json.dumps(blocks))
    (published, lines, points), summary = rows(tmp_path, quick=True, seed=0)
    assert published["met"]
    assert summary["cephalo_met"] == "1 of 1"
    assert (lines["case"], points["case"]) == ("lines 512 float16", "points 512 float16")
    assert (lines["points"], points["points"]) == ("", 6)
    assert points["ours_ms"] == pytest.approx(lines["ours_ms"])
    assert points["lines_off"] == pytest.approx(0, abs=1e-9)
