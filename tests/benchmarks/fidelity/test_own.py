"""What the own runs come to."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.fidelity.own import shown, summarise

RANK_FIELDS = ("predicted", "measured", "predicted_largest", "measured_largest")


KINDS = ("parameters", "optimizer", "gradients", "activations", "buffers")


def _run(part: str, error: float, **more: Any) -> dict[str, Any]:
    rank = {name: dict.fromkeys(KINDS, 10) for name in RANK_FIELDS}
    return {
        "part": part,
        "model": "m",
        "plan": "p",
        "schedule": "1f1b",
        "predicted_s": 1 + error,
        "measured_s": 1.0,
        "error": error,
        "spread": 0.01,
        "overruns": 0.0,
        "is_flagged": False,
        "memory_error": 0.0,
        "memory": [rank],
        **more,
    }


def _limited(seed: int, predicted: bool, fits: bool) -> dict[str, Any]:
    return {
        "part": "memory limit",
        "seed": seed,
        "model": "m",
        "plan": "2 pipelines",
        "schedule": "gpipe",
        "memory_error": 0.02,
        "errors": {"d0": 0.02, "d1": -0.01},
        "memory": [
            {
                "predicted_largest": dict.fromkeys(KINDS, 11),
                "measured_largest": dict.fromkeys(KINDS, 10),
            }
        ],
        "predicted_to_fit": predicted,
        "fits": fits,
    }


ROWS = [
    _run("emulated", 0.01),
    _run("emulated", -0.03, overruns=0.02, is_flagged=True),
    _run("plain", 0.08, drift=0.01),
    _limited(0, True, True),
    _limited(1, True, False),
    _limited(2, False, True),
    {"part": "memory limit, processes", "seed": 1, "predicted_to_fit": True, "fits": False},
]


def test_summary_counts_every_run_also_a_flagged_one() -> None:
    summary = summarise(ROWS)
    assert summary["emulated_step_time_median_error"] == 0.02
    assert summary["emulated_step_time_worst_error"] == 0.03
    assert summary["emulated_flagged"] == 1
    assert summary["plain_step_time_worst_error"] == 0.08
    assert summary["memory_ranks"] == 3


def test_summary_tells_the_two_ways_of_being_wrong_about_a_limit_apart() -> None:
    summary = summarise(ROWS)
    assert (summary["fits_wrongly"], summary["does_not_fit_wrongly"]) == (1, 1)
    assert summary["processes_as_in_one_process"] == 1


def test_summary_has_the_errors_of_saved_activations() -> None:
    summary = summarise(ROWS)
    assert summary["saved_activations_median_error"] == 0
    assert summary["random_plans_saved_activations_worst_error"] == pytest.approx(0.1)


def test_table_shows_all_runs_and_only_the_random_plans_that_were_wrong() -> None:
    assert len(shown(ROWS)) == 5
