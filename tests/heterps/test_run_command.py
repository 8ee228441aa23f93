"""`heterps run` and `heterps demo`: real processes, small sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Heterps = Callable[..., Any]


@pytest.mark.slow
def test_a_placed_model_trains_as_in_one_process(heterps: Heterps, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    heterps("place", "perceptron", "-c", "local-emulated", "--global-batch", 8, "-o", plan)
    trace = tmp_path / "trace.json"
    outcome = heterps(
        "run", plan, "--steps", 4, "--verify", "--run-directory", tmp_path / "run", "--json",
        "--trace", trace,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    names = [
        event.get("args", {}).get("name") for event in json.loads(trace.read_text())["traceEvents"]
    ]
    assert {"predicted", "measured"} <= set(names)
    answer = outcome.data
    keys = {
        "predicted_step_time_s",
        "measured_step_time_s",
        "relative_error",
        "losses",
        "max_loss_difference",
        "replans",
    }
    assert keys <= set(answer)
    assert answer["max_loss_difference"] < 1e-5
    assert len(answer["losses"]) == 4
    assert answer["replans"] == []
    for device in answer["devices"]:
        assert device["memory"]["peak_bytes"] > device["memory"]["at_peak"]["parameters"] > 0
        assert device["predicted_memory_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--slow", "fast=3"), "DEVICE=FACTOR@STEP"),
        (("--slow", "fats=3@1"), "allowed: fast, medium"),
        (("--model", "gpt2"), "was made for the model"),
        (("--cluster", "a100-v100"), "was made for the cluster"),
        (("--trace", "trace.json", "--online"), "not with --online"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    heterps: Heterps, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    plan = tmp_path / "plan.yaml"
    heterps("place", "perceptron", "-c", "local-emulated", "-o", plan)
    outcome = heterps("run", plan, "--run-directory", tmp_path / "run", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_goes_through_and_writes_its_summary(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps.demo.PLAIN_STEPS", 3)
    monkeypatch.setattr("heterps.demo.ONLINE_STEPS", 14)
    monkeypatch.setattr("heterps.demo.FINE_TUNE_S", 2.0)
    outcome = heterps("demo", "--run-directory", tmp_path, "--train-seconds", 3)
    assert outcome.code == 0, outcome.err
    assert "no hardware results" in outcome.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"even", "policy", "drifted", "adapted", "gap_to_exact", "seconds"}
    for name in ("even", "policy", "drifted", "adapted"):
        assert set(summary[name]) == {"predicted_samples_per_s", "measured_samples_per_s"}
    predicted = {name: summary[name]["predicted_samples_per_s"] for name in ("even", "policy")}
    assert predicted["policy"] > 1.5 * predicted["even"]
