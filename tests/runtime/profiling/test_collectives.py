"""Collectives on uneven parts do what they say, over gloo; and their fit finds what made times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch

from heterps_configs.documents.cluster import CollectiveKind, Link
from heterps_runtime.profiling.link_profiler import fit_collective
from heterps_runtime.run.launcher import run_ranks
from tests.runtime.profiling.collective_worker import SIZES


@pytest.mark.slow
def test_uneven_parts_of_four_processes_arrive_whole(tmp_path: Path) -> None:
    """What the published code's padded and grouped collectives do, with gloo and even with torch's
    newest interface: parts filled up, broadcasts and reduces at once, uneven all-to-all."""
    run_ranks("tests.runtime.profiling.collective_worker", 4, tmp_path, timeout_s=120)
    found = json.loads((tmp_path / "found.json").read_text())
    whole = torch.arange(10.0)
    columns = torch.split(torch.arange(100.0).view(10, 10), list(SIZES), dim=1)
    for rank, own in enumerate(found):
        assert set(own) == set(get_args(CollectiveKind))
        assert own["all-reduce"] == (10 * whole).tolist()
        assert own["all-gather"] == own["grouped all-gather"] == whole.tolist()
        part = torch.split(10 * whole, list(SIZES))[rank].tolist()
        assert own["reduce-scatter"] == own["grouped reduce-scatter"] == part
        assert own["all-to-all"] == columns[rank].tolist()


def test_one_line_fits_even_and_uneven_parts_where_the_largest_part_counts() -> None:
    truth = Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9)
    seconds = {
        parts: {str(size): [truth.transfer_s(size)] * 3 for size in sizes}
        for parts, sizes in (("even", (4096, 4_194_304)), ("uneven", (6144, 6_291_456)))
    }
    found = fit_collective("all-gather", 4, seconds)
    assert (found.collective.kind, found.collective.devices) == ("all-gather", 4)
    assert found.collective.bandwidth_bytes_per_s == pytest.approx(1e9, rel=1e-3)
    assert max(found.residuals.values()) < 1e-3
    other = fit_collective("all-gather", 4, {**seconds, "uneven": {"4096": [1e-3, 1e-3, 1e-3]}})
    assert other.residuals["uneven"] > 0.2
