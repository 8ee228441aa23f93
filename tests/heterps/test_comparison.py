"""`heterps compare`: every planner, one budget, one table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Heterps = Callable[..., Any]


def test_rows_keep_the_contract_and_nobody_beats_the_proven_optimum(
    heterps: Heterps, blocks: Path
) -> None:
    outcome = heterps(
        "compare",
        blocks,
        "-c",
        "local-emulated",
        "--no-tensorboard",
        "--evaluations",
        500,
        "--json",
    )
    assert outcome.code == 0
    rows = {row["planner"]: row for row in outcome.data["rows"]}
    assert {"exact", "ppo", "even", "random", "annealing"} <= set(rows)
    keys = {
        "planner",
        "throughput_samples_per_s",
        "price_usd_per_million_samples",
        "gap",
        "evaluations",
        "planning_s",
        "feasible",
    }
    assert all(keys <= set(row) for row in rows.values())
    assert rows["exact"]["gap"] == pytest.approx(0, abs=1e-9)
    assert all(row["gap"] >= 0 for row in rows.values() if row["feasible"])
    assert rows["even"]["gap"] > rows["exact"]["gap"]


def test_a_planner_without_a_feasible_plan_is_a_row_and_no_failure(
    heterps: Heterps, blocks: Path
) -> None:
    # The last layer needs 19.2 GB; the even split puts it on the last device, of 16 GB.
    head, found, tail = blocks.read_text().rpartition("num_parameters: 1000")
    assert found
    blocks.write_text(f"{head}num_parameters: 1200000000{tail}")
    rows = heterps(
        "compare",
        blocks,
        "-c",
        "a100-v100",
        "-p",
        "exact",
        "-p",
        "even",
        "--no-tensorboard",
        "--json",
    ).data["rows"]
    by_name = {row["planner"]: row for row in rows}
    assert by_name["exact"]["feasible"] is True
    assert by_name["even"]["feasible"] is False
    assert by_name["even"]["throughput_samples_per_s"] is None
    assert "bytes" in by_name["even"]["reason"]


@pytest.mark.slow
def test_tensorboard_gets_scalars_hparams_figure_and_text(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    heterps("compare", blocks, "-c", "local-emulated", "-p", "exact", "--logdir", tmp_path / "tb")
    events = EventAccumulator(str(tmp_path / "tb" / "blocks" / "local-emulated" / "exact"))
    events.Reload()
    tags = events.Tags()
    assert "placement/throughput_samples_per_s" in tags["scalars"]
    assert "placement/timeline" in tags["images"]
    assert any("summary" in name for name in tags["tensors"])
    assert "_hparams_/session_start_info" in events.summary_metadata
