"""Errors of predictions: of a step time, of the peaks of a run's devices, and of many rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heterps_configs.documents.estimate import MemoryCurve
from heterps_runtime.process.memory_report import MemoryByKind

Row = Mapping[str, Any]
KINDS = ("parameters", "optimizer", "gradients", "activations", "buffers")
# A run in which more actions than this share took longer than emulated is flagged.
TOLERATED_OVERRUNS = 0.01


def relative_error(predicted: float, measured: float) -> float:
    """Predicted over measured, minus 1; 0 where both are 0."""
    if measured == 0:
        return 0.0 if predicted == 0 else float("inf")
    return predicted / measured - 1


def spread(values: Sequence[float]) -> float:
    """Interquartile range over the median."""
    low, middle, high = statistics.quantiles(values, n=4)
    return (high - low) / middle


def summary(name: str, errors: Iterable[float]) -> dict[str, float]:
    """Median and worst absolute error, as `<name>_median_error` and `<name>_worst_error`."""
    absolute = [abs(error) for error in errors]
    if not absolute:
        return {}
    return {
        f"{name}_median_error": statistics.median(absolute),
        f"{name}_worst_error": max(absolute),
    }


def distribution(name: str, errors: Iterable[float]) -> dict[str, float]:
    """`summary`, with the error that 95 % of all do not exceed, as `<name>_p95_error`."""
    absolute = sorted(abs(error) for error in errors)
    if not absolute:
        return {}
    found = summary(name, absolute)
    return {**found, f"{name}_p95_error": absolute[math.ceil(0.95 * len(absolute)) - 1]}


def predicted_by_kind(curve: MemoryCurve) -> dict[str, int]:
    """Bytes of each kind at the moment in which a predicted curve is highest."""
    sums = [
        sum(parts)
        for parts in zip(
            curve.gradient_bytes, curve.activation_bytes, curve.buffer_bytes, strict=True
        )
    ]
    at = sums.index(max(sums))
    return {
        "parameters": curve.parameter_bytes,
        "optimizer": curve.optimizer_bytes,
        "gradients": curve.gradient_bytes[at],
        "activations": curve.activation_bytes[at],
        "buffers": curve.buffer_bytes[at],
    }


def predicted_largest(curve: MemoryCurve) -> dict[str, int]:
    """The most of each kind by itself, at whatever moment."""
    return {
        "parameters": curve.parameter_bytes,
        "optimizer": curve.optimizer_bytes,
        "gradients": max(curve.gradient_bytes),
        "activations": max(curve.activation_bytes),
        "buffers": max(curve.buffer_bytes),
    }


def measured_by_kind(found: MemoryByKind) -> dict[str, int]:
    """The same kinds of a measured peak: samples and messages are buffers."""
    return {
        "parameters": found.parameters,
        "optimizer": found.optimizer,
        "gradients": found.gradients,
        "activations": found.activations,
        "buffers": found.inputs + found.messages,
    }


def memory_errors(ranks: Iterable[Mapping[str, Any]]) -> list[float]:
    """Error of the peak of each rank: all kinds together, at the moment of the peak."""
    return [
        relative_error(sum(rank["predicted"].values()), sum(rank["measured"].values()))
        for rank in ranks
    ]


def activation_errors(ranks: Iterable[Mapping[str, Any]]) -> list[float]:
    """Error of parameters, optimizer state and activations alone, the most of each by itself."""
    kinds = ("parameters", "optimizer", "activations")
    return [
        relative_error(
            sum(rank["predicted_largest"][kind] for kind in kinds),
            sum(rank["measured_largest"][kind] for kind in kinds),
        )
        for rank in ranks
    ]


def saved_activation_errors(ranks: Iterable[Mapping[str, Any]]) -> list[float]:
    """Error of the most activations that each rank saves; ranks that save none are left out."""
    return [
        relative_error(rank["predicted_largest"]["activations"], measured)
        for rank in ranks
        if (measured := rank["measured_largest"]["activations"])
    ]


def worst(errors: Sequence[float]) -> float:
    """The error that is farthest from 0, with its sign."""
    return max(errors, key=abs, default=0.0)
