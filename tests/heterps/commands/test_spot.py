"""`heterps spot-trace` and `heterps simulate --trace spot.csv`, as a user calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heterps_envs.spot.trace import COLUMNS, parse_spot_trace

Heterps = Callable[..., Any]


@pytest.fixture
def plan(blocks_plan: Path) -> Path:
    """Eight layers on four emulated devices."""
    return blocks_plan


@pytest.fixture
def trace(heterps: Heterps, tmp_path: Path) -> Path:
    """Half an hour in which devices are lost often."""
    path = tmp_path / "spot.csv"
    outcome = heterps(
        "spot-trace", "local-emulated", "-o", path, "--hours", 0.5, "--interruptions", 4,
        "--absence-minutes", 4, "--rate", "emulated-1x=8:3", "--seed", 3,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "of 4 devices on average" in outcome.err
    return path


@pytest.mark.slow
def test_a_replay_compares_three_ways_to_go_on(heterps: Heterps, plan: Path, trace: Path) -> None:
    outcome = heterps("simulate", plan, "--trace", trace, "--json")
    assert outcome.code == 0, outcome.err
    found = {row["strategy"]: row for row in outcome.data["strategies"]}
    assert list(found) == ["restart from storage", "templates (Oobleck)", "ours"]
    for row in found.values():
        assert row["trained_s"] + sum(row["lost_s"].values()) == pytest.approx(1800)
        assert row["goodput_samples_per_s"] <= outcome.data["ceiling_samples_per_s"]
        assert row["samples"] == row["goodput_samples_per_s"] * 1800
    ours, restart = found["ours"], found["restart from storage"]
    assert ours["goodput_samples_per_s"] >= restart["goodput_samples_per_s"]
    assert sum(ours["lost_s"].values()) < sum(restart["lost_s"].values())
    assert outcome.data["settings"]["restart_s"] == 9.0


@pytest.mark.slow
def test_table_and_figure_name_what_was_lost(heterps: Heterps, plan: Path, tmp_path: Path) -> None:
    trace, figure = tmp_path / "lost.csv", tmp_path / "spot.svg"
    trace.write_text(
        "time_s,scope,name,event\n600,device,slow-1,lost\n1200,device,slow-1,back\n"
        "1800,trace,,end\n"
    )
    outcome = heterps(
        "simulate", plan, "--trace", trace, "--figure", figure, "--restart-seconds", 27,
        "--storage-bandwidth", 1e8, "--tolerate", 0,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    for text in ("goodput, samples/s", "s lost: repeated steps", "restart 27 s", "0.1 GB/s"):
        assert text in outcome.out
    assert figure.stat().st_size > 0


def test_a_trace_goes_to_stdout_where_no_file_is_named(heterps: Heterps) -> None:
    outcome = heterps("spot-trace", "local-emulated", "--hours", 1, "--price-minutes", 20)
    assert outcome.code == 0
    assert ",".join(COLUMNS) in outcome.out
    assert parse_spot_trace(outcome.out).duration_s == 3600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time_s,scope,name,event\n1,type,T4,lost\n", "line 2, name: the cluster has no type 'T4'"),
        ("time_s,scope,name,event\n1,device,fast,gone\n", "line 2, event: must be one of lost"),
        ("time_s,scope,name,event\n0,device,fast,lost\n", "the trace ends at 0 s"),
    ],
)
def test_a_bad_trace_ends_with_one_message_and_code_2(
    heterps: Heterps, plan: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "bad.csv").write_text(text)
    outcome = heterps("simulate", plan, "--trace", tmp_path / "bad.csv")
    assert outcome.code == 2
    assert "bad.csv" in outcome.err
    assert message in outcome.err


def test_bad_options_end_with_one_message_and_code_2(
    heterps: Heterps, plan: Path, trace: Path, tmp_path: Path
) -> None:
    outcome = heterps("simulate", plan, "--trace", trace, "--storage-bandwidth", 0)
    assert outcome.code == 2
    assert "--storage-bandwidth must be above 0" in outcome.err
    outcome = heterps("simulate", plan, "--trace", tmp_path / "none.csv")
    assert outcome.code == 2
    assert "cannot be read" in outcome.err
    outcome = heterps("spot-trace", "local-emulated", "--rate", "emulated-1x")
    assert outcome.code == 2
    assert "--rate 'emulated-1x': expected TYPE=INTERRUPTIONS" in outcome.err
    for option, least in (("--hours", "above 0"), ("--price-spread", "0 or more")):
        outcome = heterps("spot-trace", "local-emulated", option, -1)
        assert outcome.code == 2
        assert f"{option} -1: expected a finite number" in outcome.err
        assert least in outcome.err
    rates = ("--rate", "emulated-1x=1", "--rate", "emulated-1x=2")
    outcome = heterps("spot-trace", "local-emulated", *rates)
    assert outcome.code == 2
    assert "--rate 'emulated-1x=2': emulated-1x has a rate already" in outcome.err


def test_options_of_replays_are_reported_where_nothing_is_replayed(
    heterps: Heterps, plan: Path
) -> None:
    with pytest.warns(UserWarning, match="ignored without --trace"):
        outcome = heterps("simulate", plan, "--restart-seconds", 5)
    assert outcome.code == 0
