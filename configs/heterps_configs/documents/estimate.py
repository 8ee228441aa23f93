"""Estimates: what the simulator says of a plan. A trace of a real run has the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import NotNegative, Number, Ratio, Whole

# Where the layer times of a plan come from: all of its device types were measured, or all were
# estimated, with efficiencies fitted on other measured types, on what was published of cards, or
# with stated ones; else a mixture.
LayerTimesLabel = Literal[
    "measured",
    "calibrated roofline",
    "published measurements",
    "roofline estimate",
    "partly measured",
]


class TimelineEvent(Document):
    """One action on one device, in seconds from the start of the step."""

    device: str
    action: str
    stage: str
    micro_batch: Whole
    start_s: Number
    end_s: Number


class MemoryCurve(Document):
    """Bytes on one device in the course of a step; each value holds until the next time.

    Attributes:
        times_s: Seconds from the start of the step, never falling; the first is 0.
        gradient_bytes: Of parameters, at each time: none before the first backward pass.
        activation_bytes: Kept for backward passes, at each time.
        buffer_bytes: The step's samples, what is received and not yet used, sent and not known to
            have arrived, flat copies of gradients, and the workspace of the running pass.
    """

    device: str
    parameter_bytes: Whole
    optimizer_bytes: Whole
    times_s: tuple[Number, ...]
    gradient_bytes: tuple[Whole, ...]
    activation_bytes: tuple[Whole, ...]
    buffer_bytes: tuple[Whole, ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> MemoryCurve:
        for name in ("gradient_bytes", "activation_bytes", "buffer_bytes"):
            count = len(getattr(self, name))
            if count != len(self.times_s) or count == 0:
                raise PydanticCustomError(
                    "unequal_lengths",
                    "{name}: must have as many entries as times_s, and one at least, got {count}",
                    {"name": name, "count": count},
                )
        return self


class Estimate(Document):
    """Predicted (or measured) behaviour of a plan.

    Attributes:
        step_time_s: The simulator's step time.
        closed_form_step_time_s: The closed form's step time, which planners minimise.
        price_usd_per_million_samples: Price of all devices that the plan uses, for 10^6 samples.
        memory_bytes: Peak of each device.
        feasible: Memory and the throughput floor are kept.
        reasons: Why not, one line each.
        layer_times: Where the layer times come from.
        timeline: Every action of one step; empty when it was not asked for.
        memory_curves: One for each device; empty when they were not asked for.
        step_time_low_s: Lower end of the interval that the error of the layer times leads to; None
            when every layer time was measured on its own device type, or it was not asked for.
        step_time_high_s: Its upper end.
        notes: What the reader has to know, one line each (devices that share cores, say).
    """

    step_time_s: Number
    step_time_low_s: Number | None = None
    step_time_high_s: Number | None = None
    closed_form_step_time_s: Number | None = None
    throughput_samples_per_s: Number
    price_usd_per_million_samples: Number
    memory_bytes: Mapping[str, NotNegative]
    memory_limit_bytes: Mapping[str, NotNegative] = {}
    bubble_share: Ratio | None = None
    feasible: bool = True
    reasons: tuple[str, ...] = ()
    layer_times: LayerTimesLabel = "roofline estimate"
    timeline: tuple[TimelineEvent, ...] = ()
    memory_curves: tuple[MemoryCurve, ...] = ()
    notes: tuple[str, ...] = ()
