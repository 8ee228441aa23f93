"""Errors are relative to what was measured, and a summary keeps the worst."""

from __future__ import annotations

import pytest

from benchmarks.fidelity.own_errors import (
    activation_errors,
    measured_by_kind,
    memory_errors,
    predicted_by_kind,
    predicted_largest,
    relative_error,
    spread,
    summary,
    worst,
)
from heterps_configs.documents.estimate import MemoryCurve
from heterps_runtime.process.memory_report import MemoryByKind


def test_error_is_relative_to_the_measured_value() -> None:
    assert relative_error(1.1, 1.0) == pytest.approx(0.1)
    assert relative_error(0.0, 0.0) == 0.0
    assert relative_error(1.0, 0.0) == float("inf")


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    assert spread([1.0, 1.0, 1.0, 1.0]) == 0.0
    assert spread([9.0, 10.0, 10.0, 11.0]) == pytest.approx(0.15)


def test_summary_has_median_and_worst_of_absolute_errors() -> None:
    assert summary("x", [-0.3, 0.1, 0.2]) == {"x_median_error": 0.2, "x_worst_error": 0.3}
    assert summary("x", []) == {}


def test_worst_error_keeps_its_sign() -> None:
    assert worst([0.1, -0.3, 0.2]) == -0.3
    assert worst([]) == 0.0


def test_predicted_kinds_are_those_of_the_highest_moment() -> None:
    curve = MemoryCurve(
        device="d",
        parameter_bytes=10,
        optimizer_bytes=20,
        times_s=(0.0, 1.0, 2.0),
        gradient_bytes=(0, 5, 10),
        activation_bytes=(7, 9, 0),
        buffer_bytes=(1, 1, 1),
    )
    assert predicted_by_kind(curve) == {
        "parameters": 10,
        "optimizer": 20,
        "gradients": 5,
        "activations": 9,
        "buffers": 1,
    }
    assert predicted_largest(curve)["gradients"] == 10


def test_samples_and_messages_are_buffers() -> None:
    found = measured_by_kind(MemoryByKind(parameters=1, inputs=2, messages=3, workspace=9))
    assert found["buffers"] == 5
    assert sum(found.values()) == 6


def test_errors_of_ranks_count_all_kinds_or_the_three_that_were_asked_for() -> None:
    names = ("parameters", "optimizer", "gradients", "activations", "buffers")
    ranks = [
        {
            "predicted": dict(zip(names, (10, 20, 10, 15, 5), strict=True)),
            "measured": dict(zip(names, (10, 20, 5, 10, 5), strict=True)),
        }
    ]
    assert memory_errors(ranks) == [pytest.approx(0.2)]
    largest = [{f"{name}_largest": kinds for name, kinds in rank.items()} for rank in ranks]
    assert activation_errors(largest) == [pytest.approx(0.125)]
