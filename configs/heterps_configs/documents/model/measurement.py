"""Measured seconds and bytes of all layers of a model."""

from __future__ import annotations

from typing import Literal

from heterps_configs.documents.base import Document, Dtype
from heterps_configs.documents.numbers import (
    Bytes,
    Count,
    Name,
    PositiveCount,
    Seconds,
    SignedSeconds,
)


class Measurement(Document):
    """Seconds of every layer on one device type, for one micro-batch of `micro_batch_size` samples.

    Attributes:
        source: `measured` on that device, or `corrected` from the stage times of a run.
        forward_s: Seconds for each layer, in the order of the profile's layers.
        backward_s: The same for the backward pass.
        optimizer_s: The same for the optimizer step; empty when it was not measured.
        forward_spread_s: Interquartile range of the repeated passes; empty when it was not kept.
        backward_spread_s: The same for the backward pass.
        weight_gradient_s: Of `backward_s`, the part that computes gradients of parameters, which a
            zero-bubble schedule may put off; empty when it was not measured.
        launch_s: Seconds that a GPU's host takes to launch the layer's passes, forward and backward
            together. Where the passes take no longer than that, the GPU waits for its host, and a
            stage of several layers may take less than their sum. Empty on a CPU, and when it was
            not measured.
        activation_bytes: What the layer's forward pass really kept for its backward pass, for the
            whole micro-batch: what it reads and returns included where it keeps that, model inputs
            and `shared_bytes` not; empty when it was not measured.
        peak_bytes: Most memory that the layer's passes needed beyond parameters, gradients and what
            was kept; empty when it was not measured.
        shared_bytes: Kept besides by the layer, but computed once for all layers of a stage (masks,
            rotary tables): a stage keeps the largest of its layers'; empty when not measured.
        first_backward_bytes: Most bytes by which, within the layer's first backward pass of a step,
            the gradients that have come exceed the activations that have gone, tensors at cuts
            left out; empty when it was not measured. So are the next four.
        first_input_bytes: The same for the first `backward-input` of a zero-bubble schedule, where
            what is put off counts as come.
        later_input_bytes: The same for a later one, which makes no gradients.
        first_weight_bytes: The same for the first `backward-weight`: gradients come, and what was
            put off goes.
        early_gradient_bytes: Gradients that `backward-input` makes: of all parameters but those of
            linear layers and convolutions.
        stage_forward_s: What a stage's forward pass takes beside its layers, where it begins with
            this layer (masks, rotary tables, host time); below 0 where it takes less than its
            layers did one by one; empty when it was not measured.
        stage_backward_s: The same for the backward pass.
        cut_s: What it takes to pack the tensors that cross the cut behind this layer into one
            message, and to lay them out where it is received; 0 for a single tensor, which
            travels as it is; empty when it was not measured.
        num_repeats: Passes that the medians are taken over; 0 when it is not known.
        date: When (YYYY-MM-DD).
    """

    device_type: Name
    tensor_parallel: PositiveCount = 1
    micro_batch_size: PositiveCount
    dtype: Dtype = "float32"
    source: Literal["measured", "corrected"] = "measured"
    date: str = ""
    host: str = ""
    forward_s: tuple[Seconds, ...]
    backward_s: tuple[Seconds, ...]
    optimizer_s: tuple[Seconds, ...] = ()
    forward_spread_s: tuple[Seconds, ...] = ()
    backward_spread_s: tuple[Seconds, ...] = ()
    weight_gradient_s: tuple[Seconds, ...] = ()
    launch_s: tuple[Seconds, ...] = ()
    activation_bytes: tuple[Bytes, ...] = ()
    peak_bytes: tuple[Bytes, ...] = ()
    shared_bytes: tuple[Bytes, ...] = ()
    first_backward_bytes: tuple[Bytes, ...] = ()
    first_input_bytes: tuple[Bytes, ...] = ()
    later_input_bytes: tuple[Bytes, ...] = ()
    first_weight_bytes: tuple[Bytes, ...] = ()
    early_gradient_bytes: tuple[Bytes, ...] = ()
    stage_forward_s: tuple[SignedSeconds, ...] = ()
    stage_backward_s: tuple[SignedSeconds, ...] = ()
    cut_s: tuple[Seconds, ...] = ()
    num_repeats: Count = 0


# Of a measurement's values for each layer, those that every measurement has.
ALWAYS_MEASURED = ("forward_s", "backward_s")
MAY_BE_MEASURED = (
    "optimizer_s",
    "forward_spread_s",
    "backward_spread_s",
    "weight_gradient_s",
    "launch_s",
    "activation_bytes",
    "peak_bytes",
    "shared_bytes",
    "first_backward_bytes",
    "first_input_bytes",
    "later_input_bytes",
    "first_weight_bytes",
    "early_gradient_bytes",
    "stage_forward_s",
    "stage_backward_s",
    "cut_s",
)
