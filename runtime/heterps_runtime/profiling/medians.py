"""From the samples of all rounds to a profile's measurement: medians, with their spread."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.measurement import Measurement
from heterps_runtime.profiling.samples import LayerSamples, Settings, SizeSamples, middle, spread


def measurement_of(
    samples: SizeSamples, size: int, dtype: Dtype, settings: Settings
) -> Measurement:
    """What samples of one size of micro-batches say of each layer.

    Args:
        samples: Of all rounds.
        size: Samples of a micro-batch.
        dtype: That the layers computed in.
        settings: What was measured on.
    """
    layers = [samples.of(index) for index in range(len(samples.distinct))]

    def each(value: Callable[[LayerSamples], float]) -> tuple[float, ...]:
        return tuple(_rounded(value(entry)) for entry in layers)

    return Measurement(
        device_type=settings.device_type,
        micro_batch_size=size,
        dtype=dtype,
        date=datetime.date.today().isoformat(),
        host=settings.host,
        forward_s=each(lambda entry: middle(entry.forward_s)),
        backward_s=each(lambda entry: middle(entry.backward_s)),
        optimizer_s=each(lambda entry: middle(entry.optimizer_s)),
        forward_spread_s=each(lambda entry: spread(entry.forward_s)),
        backward_spread_s=each(lambda entry: spread(entry.backward_s)),
        launch_s=each(lambda entry: middle(entry.launch_s))
        if any(entry.launch_s for entry in layers)
        else (),
        weight_gradient_s=each(lambda entry: entry.weight_gradient_s),
        activation_bytes=each(lambda entry: entry.activation_bytes),
        shared_bytes=each(lambda entry: entry.shared_bytes),
        peak_bytes=each(lambda entry: entry.peak_bytes),
        first_backward_bytes=each(lambda entry: entry.first_backward_bytes),
        first_input_bytes=each(lambda entry: entry.first_input_bytes),
        later_input_bytes=each(lambda entry: entry.later_input_bytes),
        first_weight_bytes=each(lambda entry: entry.first_weight_bytes),
        early_gradient_bytes=each(lambda entry: entry.early_gradient_bytes),
        stage_forward_s=_interpolated(samples, "forward_s"),
        stage_backward_s=_interpolated(samples, "backward_s"),
        cut_s=_cut_s(samples),
        num_repeats=min(len(entry.forward_s) for entry in layers),
    )


def _interpolated(samples: SizeSamples, field: str) -> tuple[float, ...]:
    """Overhead of a stage for every layer that it may begin with; below 0 it takes less."""
    known = sorted(samples.starts)
    values = [middle(getattr(samples.starts[index], field)) for index in known]
    return tuple(_rounded(v) for v in np.interp(range(len(samples.distinct)), known, values))


def _cut_s(samples: SizeSamples) -> tuple[float, ...]:
    """In proportion to the number of tensors, by the median of the cuts that were measured."""
    crossing = samples.crossing
    known = [middle(found) / crossing[cut] for cut, found in samples.cut_s.items()]
    return tuple(_rounded(middle(known) * count if count > 1 else 0.0) for count in crossing)


def _rounded(value: float) -> float:
    """Five significant digits for seconds; a clock does not give more. Bytes are whole."""
    return float(value) if value >= 1e5 else float(f"{value:.5g}")
