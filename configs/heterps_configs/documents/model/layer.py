"""One layer of a model: its parameters, FLOPs and bytes."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.model.matrix_product import MatrixProduct
from heterps_configs.documents.model.tensor_split import DIVIDED_NUMBERS, ROUNDING, TensorSplit
from heterps_configs.documents.numbers import (
    Bytes,
    Count,
    Flops,
    Name,
    Parameters,
    PositiveCount,
    WholeBytes,
)
from heterps_configs.problems import InconsistentError


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
        attention_matrix_bytes: Kept besides on CPUs alone, one sample, in float32 whatever the
            dtype: attention with dropout keeps its matrix there, and kernels of GPUs do not.
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
    attention_matrix_bytes: Bytes = 0
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
            if part > whole * (1 + ROUNDING):
                problems.append(
                    f"tensor_split.{field}: {part:g} is more than the layer's {whole_field}, "
                    f"{whole:g}"
                )
        # Parts of a group's device are rounded up, each.
        counted, known = sum(self.parameter_sizes), len(self.parameter_sizes)
        if counted > self.num_parameters + known:
            problems.append(
                f"parameter_sizes: they sum to {counted}, more than the layer's num_parameters, "
                f"{self.num_parameters}"
            )
        if self.frozen_parameters > self.num_parameters:
            problems.append(
                f"frozen_parameters: {self.frozen_parameters} are more than the layer's "
                f"num_parameters, {self.num_parameters}"
            )
        if problems:
            raise InconsistentError(problems)
        return self
