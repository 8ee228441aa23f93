"""Model profiles: the layers of a model in execution order, with their bytes, FLOPs and seconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from heterps_configs.documents.base import (
    BYTES_PER_ELEMENT,
    Document,
    Dtype,
    compute_format,
    is_mixed,
    parameter_format,
)
from heterps_configs.documents.matrix_product import MatrixProduct
from heterps_configs.documents.numbers import (
    Bytes,
    Count,
    Flops,
    Name,
    Parameters,
    PositiveCount,
    Seconds,
    SignedSeconds,
    WholeBytes,
)
from heterps_configs.huggingface_config import config_problems
from heterps_configs.problems import InconsistentError, repeated

MOST_NUMBERS_OF_A_SAMPLE = 2**31

LossName = Literal[
    "cross_entropy", "binary_cross_entropy", "mean_squared_error", "ctc", "contrastive"
]


InputDtype = Literal["int64", "int32", "uint8", "bool", "float32", "bfloat16", "float16"]
_WHOLE = frozenset(("int64", "int32", "uint8", "bool"))


class InputSpecification(Document):
    """One input of the model, or its target: the shape is that of one sample, without the batch.

    Attributes:
        dtype: Floating inputs reach the model in the format of its parameters.
        num_classes: Integer tensors are drawn from `0 .. num_classes - 1`.
        placeholder: The integer that stands for a part of another input, such as an image.
        num_placeholders: How many of them a sample begins with; it has no others.
    """

    name: Name
    shape: tuple[PositiveCount, ...] = ()
    dtype: InputDtype = "float32"
    num_classes: PositiveCount | None = None
    placeholder: Count | None = None
    num_placeholders: Count = 0

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole; a `bool` is 0 or 1."""
        return self.dtype in _WHOLE

    @model_validator(mode="after")
    def _is_of_a_size(self) -> Self:
        if math.prod(self.shape) > MOST_NUMBERS_OF_A_SAMPLE:
            raise InconsistentError(
                [
                    f"shape: {'x'.join(map(str, self.shape))} are {math.prod(self.shape)} numbers "
                    f"in a sample; at most {MOST_NUMBERS_OF_A_SAMPLE} are supported"
                ]
            )
        return self


class ModelSource(Document):
    """How to build the model again: a Hugging Face config, or a factory that returns a module.

    Attributes:
        kind: `huggingface` (needs `config`) or `factory` (needs `factory`).
        factory: `package.module:function`; called without arguments, returns a `torch.nn.Module`.
        config: The content of a Hugging Face `config.json`, with `model_type`.
        architecture: Class of `transformers`, such as `LlamaForCausalLM`.
        inputs: What `forward` takes, by name, in order.
        target: What the loss compares the output with.
        loss: Of each sample: cross entropy and the like are means over its numbers; `ctc`
            (connectionist temporal classification) aligns letters with frames, letter 0 being the
            blank; `contrastive` compares each sample of a micro-batch with all others of it, and
            reads no target.
    """

    kind: Literal["huggingface", "factory"]
    factory: str | None = None
    config: dict[str, Any] | None = None
    architecture: str | None = None
    inputs: tuple[InputSpecification, ...] = Field(min_length=1)
    target: InputSpecification | None = None
    loss: LossName = "cross_entropy"

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        problems = [f"config.{text}" for text in config_problems(self.config or {})]
        if self.kind == "factory" and not self.factory:
            problems.append("factory: is missing; expected package.module:function")
        if self.kind == "huggingface" and not (self.config and self.architecture):
            problems.append("config, architecture: are missing; a Hugging Face model needs both")
        if problems:
            raise InconsistentError(problems)
        return self


TensorUnit = Literal["heads", "columns", "experts", "vocabulary", "channels", "samples"]


class DividedNumbers(Document):
    """Of a layer's numbers, which a tensor-parallel group divides; whole, and of one sample.

    Attributes:
        parameters: Of the layer's `num_parameters`.
        forward_flops: Of its `forward_flops`.
        backward_flops: Of its `backward_flops`.
        activation_bytes: Of its `activation_bytes`.
        memory_traffic_bytes: Of its `memory_traffic_bytes`.
        sparse_parameters: Of its `sparse_parameters`.
        tied_parameters: Of its `tied_parameters`.
        shared_bytes: Of its `shared_bytes`.
        deferred_bytes: Of its `deferred_bytes`.
    """

    parameters: Parameters = 0
    forward_flops: Flops = 0
    backward_flops: Flops = 0
    activation_bytes: Bytes = 0
    memory_traffic_bytes: Bytes = 0
    sparse_parameters: Parameters = 0
    tied_parameters: Parameters = 0
    shared_bytes: Bytes = 0
    deferred_bytes: Bytes = 0


class FinerSplit(DividedNumbers):
    """What of a layer's split is handed out in smaller units than the rest of it.

    Attributes:
        num_units: How many there are: columns of a feed-forward part, beside heads.
    """

    num_units: PositiveCount


class KeyValueSplit(DividedNumbers):
    """What of a layer's split belongs to heads of keys and values, each of several query heads.

    A device has it for each head that its query heads use. So in a group of more devices than there
    are such heads, several have the same.

    Attributes:
        num_units: How many heads of keys and values there are.
    """

    num_units: PositiveCount


class TensorSplit(DividedNumbers):
    """What of a layer can be split over the devices of a tensor-parallel group.

    Of each of these numbers, every device of a group of d takes 1 / d, as nearly as whole units
    allow; of the layer's number the rest is on each of them.

    Attributes:
        unit: What is handed out in whole numbers.
        num_units: How many there are, of what has fewest. A group of more devices leaves the layer
            whole, on each of them.
        forward_sums: Bytes of each sum over the group in the forward pass.
        backward_sums: The same in the backward pass.
        finer: Of the split's numbers, what divides into more units than that.
        key_values: Where units are query heads that share heads of keys and values: of the split's
            numbers, what belongs to these. A device has all queries of some of them, or some
            queries of one.
    """

    unit: TensorUnit
    num_units: PositiveCount
    forward_sums: tuple[Bytes, ...] = ()
    backward_sums: tuple[Bytes, ...] = ()
    finer: tuple[FinerSplit, ...] = ()
    key_values: KeyValueSplit | None = None

    @property
    def key_value_heads(self) -> int:
        """How many its units share; 0 where each unit has its own."""
        return self.key_values.num_units if self.key_values else 0

    def by_key_values(self) -> TensorSplit:
        """The same where only whole heads of keys and values are handed out, with their queries."""
        if self.key_values is None:
            return self
        return self.changed(num_units=self.key_values.num_units, key_values=None)

    @model_validator(mode="after")
    def _is_finer_in_part(self) -> Self:
        problems = [
            f"finer: {own.num_units} units are not more than num_units, {self.num_units}"
            for own in self.finer
            if own.num_units <= self.num_units
        ]
        heads = self.key_value_heads
        if heads and (self.num_units % heads or self.num_units == heads):
            problems.append(
                f"key_values: {self.num_units} query heads cannot share {heads} equally"
            )
        parts = [*self.finer, *([self.key_values] if self.key_values else [])]
        for field in DIVIDED_NUMBERS:
            part, whole = sum(getattr(own, field) for own in parts), getattr(self, field)
            if part > whole * (1 + _ROUNDING):
                name = "finer and key_values" if self.key_values else "finer"
                problems.append(f"{name}: {part:g} {field} are more than the split's, {whole:g}")
        if problems:
            raise InconsistentError(problems)
        return self


# What of a layer can be divided; of its numbers `parameters` is called `num_parameters`.
DIVIDED_NUMBERS = tuple(DividedNumbers.model_fields)
# By so much a part may exceed its whole: both are sums of floats.
_ROUNDING = 1e-9


class LayerProfile(Document):
    """One layer: the smallest piece that a plan can place.

    All sizes are for one sample, in the profile's dtype.

    Attributes:
        name: Unique in the model; the module path (several joined by `+` where they cannot be cut).
        kind: Class of the module. Layers of equal kind and equal sizes are measured once.
        num_parameters: Parameters that this layer uses, tied ones included.
        forward_flops: Floating-point operations of the forward pass of one sample.
        backward_flops: Floating-point operations of the backward pass of one sample.
        activation_bytes: Kept from the forward to the backward pass, one sample; a tensor that
            several layers keep counts for the first of them. `shared_bytes` are not in it.
        output_bytes: Crosses the cut behind this layer, one sample, one way; 0 for the last layer.
        memory_traffic_bytes: Read and written by the forward pass of one sample, parameters not
            counted.
        sparse_parameters: Of `num_parameters`, how many sit in embedding tables, of which a pass
            touches only the looked-up rows.
        tied_to: Name of the layer that owns a parameter that this layer also uses.
        tied_parameters: Of `num_parameters`, how many another layer owns.
        frozen_parameters: Of `num_parameters`, how many are not trained: they have neither a
            gradient nor a state of the optimizer.
        saved_input_bytes: Of what crosses the cut in front of this layer, how much is kept behind
            the cut for the backward pass anyway; None when it is not known.
        saved_output_bytes: Of `output_bytes`, how much is kept in front of the cut anyway.
        shared_bytes: Kept besides, but of no sample, and once for all layers of a stage (masks,
            rotary tables): a stage keeps the largest of its layers'.
        constant_bytes: Kept besides, of no sample either, by this layer alone (how far positions
            are apart).
        deferred_bytes: What a zero-bubble schedule holds between the two parts of a backward pass,
            one sample: inputs of linear layers and convolutions, and the gradients of their
            outputs; None when it is not known.
        sent: Of each tensor that this layer sends to layers behind it, how many cuts it crosses,
            and its bytes, one sample; empty when it is not known: a cut then counts as one tensor.
        buffer_bytes: Buffers that its device holds beside the parameters (running statistics); not
            for each sample.
        cast_bytes: Under `mixed-bfloat16`, copies of its parameters in bfloat16, which its device
            holds once from a step's first forward pass to the optimizer step; None when it is not
            known.
        parameter_sizes: How many numbers each of its parameters has, the largest first, tied ones
            included; empty when it is not known: all may then be small.
        joined_because: Where it is several modules, why there is no cut between them: one reason
            for each pair of neighbours; empty when it is one module, or not known.
        tensor_split: What of it a tensor-parallel group can split; None when nothing, or when it
            is not known: each device of a group then holds and computes all of it.
        splits_by_batch: Whether a group can split it by batch, and layers around it, too: it
            computes each sample from that sample alone, and only layers read what it returns; None
            when it is not known.
        matrix_products: Of the forward pass of one sample, equal ones as one with a count; their
            FLOPs are part of `forward_flops`. Empty when there are none, or they are not known.
        num_kernels: Operations of the forward pass that launch a kernel; views do not. 0 when it is
            not known.
    """

    name: Name
    kind: Name
    num_parameters: Parameters
    forward_flops: Flops
    backward_flops: Flops
    activation_bytes: Bytes
    output_bytes: Bytes
    memory_traffic_bytes: Bytes = 0
    sparse_parameters: Parameters = 0
    tied_to: str | None = None
    tied_parameters: Parameters = 0
    frozen_parameters: Parameters = 0
    saved_input_bytes: Bytes | None = None
    saved_output_bytes: Bytes | None = None
    shared_bytes: Bytes = 0
    constant_bytes: Bytes = 0
    deferred_bytes: Bytes | None = None
    sent: tuple[tuple[PositiveCount, Bytes], ...] = ()
    buffer_bytes: WholeBytes = 0
    cast_bytes: Bytes | None = None
    parameter_sizes: tuple[Annotated[Parameters, Field(ge=1)], ...] = ()
    joined_because: tuple[str, ...] = ()
    tensor_split: TensorSplit | None = None
    splits_by_batch: bool | None = None
    matrix_products: tuple[MatrixProduct, ...] = ()
    num_kernels: Count = 0

    @property
    def trained_parameters(self) -> int:
        """Of `num_parameters`, how many are trained."""
        return self.num_parameters - self.frozen_parameters

    @model_validator(mode="after")
    def _splits_no_more_than_it_has(self) -> Self:
        problems = []
        for field in DIVIDED_NUMBERS if self.tensor_split else ():
            whole_field = "num_parameters" if field == "parameters" else field
            part, whole = getattr(self.tensor_split, field), getattr(self, whole_field) or 0
            if part > whole * (1 + _ROUNDING):
                problems.append(
                    f"tensor_split.{field}: {part:g} is more than the layer's {whole_field}, "
                    f"{whole:g}"
                )
        if self.frozen_parameters > self.num_parameters:
            problems.append(
                f"frozen_parameters: {self.frozen_parameters} are more than the layer's "
                f"num_parameters, {self.num_parameters}"
            )
        if problems:
            raise InconsistentError(problems)
        return self


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
_ALWAYS_MEASURED = ("forward_s", "backward_s")
_MAY_BE_MEASURED = (
    "optimizer_s",
    "forward_spread_s",
    "backward_spread_s",
    "weight_gradient_s",
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


class ModelProfile(Document):
    """The model as a chain of layers in execution order.

    Attributes:
        dtype: Format that the byte counts are for; a job in another format scales them.
        sample: What one sample is, in words ("a sequence of 2048 tokens").
        command: The command that made this file.
        measurements: Measured times. A device type without one is estimated by a roofline.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    name: Name
    description: str = ""
    dtype: Dtype = "float32"
    sample: str = ""
    command: str = ""
    source: ModelSource | None = None
    layers: tuple[LayerProfile, ...] = Field(min_length=1)
    measurements: tuple[Measurement, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems = list(repeated("layers", "name", [layer.name for layer in self.layers]))
        for index, entry in enumerate(self.measurements):
            for field in _ALWAYS_MEASURED + _MAY_BE_MEASURED:
                length = len(getattr(entry, field))
                if length != self.num_layers and (length or field in _ALWAYS_MEASURED):
                    where = f"measurements.{index}.{field}"
                    problems.append(f"{where}: {length} values for {self.num_layers} layers")
        if problems:
            raise InconsistentError(problems)
        return self

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Parameters of the model; tied ones are counted once."""
        return sum(layer.num_parameters - layer.tied_parameters for layer in self.layers)

    @property
    def num_trained_parameters(self) -> int:
        """Those that are not frozen; tied ones are counted once."""
        return sum(max(e.trained_parameters - e.tied_parameters, 0) for e in self.layers)

    @cached_property
    def tied_layers(self) -> Mapping[int, tuple[int, ...]]:
        """Layers that use parameters of another one: the owner's index -> indices of its users."""
        index = {layer.name: i for i, layer in enumerate(self.layers)}
        users: dict[int, list[int]] = defaultdict(list)
        for i, layer in enumerate(self.layers):
            if layer.tied_to in index:
                users[index[layer.tied_to]].append(i)
        return {owner: tuple(found) for owner, found in users.items()}

    def activation_scale(self, dtype: Dtype) -> float:
        """Bytes of activations and messages of a job in `dtype`, over those counted here.

        Under `mixed-bfloat16` some numbers have two bytes and some four, so that from or to it
        this is an upper limit; the profile of a trace in that dtype has the true bytes.
        """
        if dtype == self.dtype:
            return 1.0
        most = BYTES_PER_ELEMENT[parameter_format(dtype)]
        return most / BYTES_PER_ELEMENT[compute_format(self.dtype)]

    def cast_bytes(self, dtype: Dtype) -> tuple[float, ...]:
        """(L,) `LayerProfile.cast_bytes` of a job in `dtype`; all of it where it is not known."""
        if not is_mixed(dtype):
            return (0.0,) * self.num_layers
        size = BYTES_PER_ELEMENT[compute_format(dtype)]
        return tuple(
            float(size * (layer.num_parameters - layer.sparse_parameters))
            if layer.cast_bytes is None
            else layer.cast_bytes
            for layer in self.layers
        )

    def first_equal_layers(self) -> tuple[int, ...]:
        """For each layer, the index of the first one that costs the same: of equal kind and sizes.

        What crosses its cuts does not count: some of that may only pass by.
        """
        differing = {"name", "tied_to", "tied_parameters", "output_bytes"}
        differing |= {"saved_input_bytes", "saved_output_bytes", "deferred_bytes", "sent"}
        differing |= {"joined_because", "num_kernels"}
        first: dict[str, int] = {}
        return tuple(
            first.setdefault(layer.model_dump_json(exclude=differing), index)
            for index, layer in enumerate(self.layers)
        )

    @cached_property
    def first_alike(self) -> tuple[int, ...]:
        """For each layer, the index of the first one that differs from it in its name alone."""
        known: dict[LayerProfile, int] = {}
        return tuple(
            known.setdefault(layer.changed_unchecked(name=""), index)
            for index, layer in enumerate(self.layers)
        )

    def layers_fingerprint(self) -> str:
        """Identifies the layers alone: equal for two profiles that differ only in measurements.

        What is known of tensors that layers share, and of buffers, does not tell layers apart.
        """
        return self._layers_fingerprint

    @cached_property
    def _layers_fingerprint(self) -> str:
        unknown = {
            "saved_input_bytes": None,
            "saved_output_bytes": None,
            "deferred_bytes": None,
            "sent": (),
            "shared_bytes": 0,
            "constant_bytes": 0,
            "buffer_bytes": 0,
            "frozen_parameters": 0,
            "cast_bytes": None,
            "parameter_sizes": (),
            "joined_because": (),
            "tensor_split": None,
            "splits_by_batch": None,
            "matrix_products": (),
            "num_kernels": 0,
        }
        return self.changed_unchecked(
            layers=tuple(layer.changed_unchecked(**unknown) for layer in self.layers),
            measurements=(),
            description="",
            command="",
            source=None,
        ).fingerprint()
