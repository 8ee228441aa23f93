"""What of a layer the devices of a tensor-parallel group divide among them."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import Bytes, Flops, Parameters, PositiveCount
from heterps_configs.problems import InconsistentError

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
        attention_matrix_bytes: Of its `attention_matrix_bytes`.
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
    attention_matrix_bytes: Bytes = 0
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
            if part > whole * (1 + ROUNDING):
                name = "finer and key_values" if self.key_values else "finer"
                problems.append(f"{name}: {part:g} {field} are more than the split's, {whole:g}")
        if problems:
            raise InconsistentError(problems)
        return self


# What of a layer can be divided; of its numbers `parameters` is called `num_parameters`.
DIVIDED_NUMBERS = tuple(DividedNumbers.model_fields)
# By so much a part may exceed its whole: both are sums of floats.
ROUNDING = 1e-9
