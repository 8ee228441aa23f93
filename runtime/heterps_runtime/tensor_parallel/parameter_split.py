"""How the parameters of a model are split, as a document: every rank reads the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from heterps_configs.documents.base import Document
from heterps_configs.documents.model.tensor_split import TensorUnit
from heterps_envs.layer_costs.group_slice import GroupSlice, used_key_values
from heterps_runtime.tensor_parallel.slices import TensorSlice

# Attributes of modules that count heads of keys and values, and the queries of each.
KEY_VALUE_COUNTS = ("num_key_value_heads", "num_kv_heads")
QUERY_COUNTS = ("num_key_value_groups",)


class SplitDraw(Document):
    """Random numbers of which each rank uses a part.

    Attributes:
        dim: Along which they are split.
        size: Of that dimension, whole.
        num_units: Into how many parts it can be.
        key_value_heads: See `ParameterSplit`.
    """

    dim: int
    size: int
    num_units: int
    key_value_heads: int = 0

    def range_of(self, group: GroupSlice) -> tuple[int, int]:
        """Start and stop of a rank's part."""
        first, end = group.units(self.num_units, self.key_value_heads)
        width = self.size // self.num_units
        return first * width, end * width


class ParameterSplit(Document):
    """How one parameter is split.

    Attributes:
        role: What of it a rank has: some outputs, some inputs, or numbers for some outputs.
        unit: What is handed out in whole numbers.
        num_units: How many there are.
        dim: Along which it is split.
        sections: Start and length along `dim` of what is packed; the same share of each.
        least_units: Of all parameters that are split together with it: a group of more ranks has
            all of them whole.
        of_experts: Whether it has a place for each expert.
        ends_in_loss: Whether what it makes are the logits that the loss reads, so that ranks may
            keep theirs (`cross_entropy`).
        entering: Whole parameters that each rank uses on its part of what this one makes, such as
            the scale of a norm of each head; their gradients are summed over the group.
        outputs: Paths of whole linear layers whose outputs each rank uses on its part of what this
            one makes, such as the one key and value of all queries; likewise.
        counts: Attributes of modules (`path.name`) that count what of it there is in whole.
        draws: By unit of the model, for each time that it draws random numbers in a pass, how they
            are split; None where all ranks use all.
        key_value_heads: Where units are query heads that share heads of keys and values, how many
            of these there are; else 0.
        is_key_value: Whether it belongs to these. A rank has those that its queries use: several
            may have the same, each a term of its gradient.
    """

    role: Literal["column", "row", "inside"]
    unit: TensorUnit
    num_units: int
    dim: int
    sections: tuple[tuple[int, int], ...]
    least_units: int
    of_experts: bool = False
    ends_in_loss: bool = False
    entering: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    draws: Mapping[str, tuple[SplitDraw | None, ...]] = {}
    key_value_heads: int = 0
    is_key_value: bool = False

    def units(self, group: GroupSlice) -> tuple[int, int]:
        """First unit of a rank, and the one behind its last."""
        return group.units(self.num_units, self.key_value_heads)

    def key_values(self, group: GroupSlice) -> tuple[int, int]:
        """First head of keys and values that a rank's queries use, and the one behind the last."""
        return used_key_values(self.units(group), self.num_units, self.key_value_heads)

    def with_whole_key_values(self) -> ParameterSplit:
        """The same where queries that use one head of keys and values stay on one rank."""
        if not self.key_value_heads:
            return self
        return self.changed(num_units=self.key_value_heads, key_value_heads=0, is_key_value=False)

    def may_count(self, count: str, whole: int) -> bool:
        """Whether an attribute of a module may count what a rank has a part of."""
        if self.key_value_heads and count in (*KEY_VALUE_COUNTS, *QUERY_COUNTS):
            return whole in (self.key_value_heads, self.num_units // self.key_value_heads)
        return whole % self.num_units == 0

    def counted(self, count: str, whole: int, group: GroupSlice) -> int:
        """What an attribute of a module counts on a rank.

        Args:
            count: The attribute.
            whole: What it counts where nothing is split.
            group: The rank's place.
        """
        first, end = self.units(group)
        if self.key_value_heads:
            start, stop = self.key_values(group)
            if count in KEY_VALUE_COUNTS:
                return stop - start
            if count in QUERY_COUNTS:
                return (end - first) // (stop - start)
        return whole // self.num_units * (end - first)

    def slice(self, shape: Sequence[int], group: GroupSlice) -> TensorSlice | None:
        """What a rank has of a tensor with this shape; None: all of it."""
        if group.degree < 2 or self.least_units < group.degree:
            return None
        num_parts, (first, end) = self.num_units, self.units(group)
        if self.is_key_value:
            num_parts, (first, end) = self.key_value_heads, self.key_values(group)
        ranges = []
        for start, length in self.sections:
            width = length // num_parts
            ranges.append((start + first * width, start + end * width))
        return TensorSlice(tuple(shape), self.dim, tuple(ranges))


def slices_of(
    plan: Mapping[str, ParameterSplit], shapes: Mapping[str, Sequence[int]], group: GroupSlice
) -> dict[str, TensorSlice]:
    """What a rank has of those tensors that its group splits.

    Args:
        plan: Of the whole model.
        shapes: Of whole tensors, by name.
        group: The rank's place.
    """
    found = {name: plan[name].slice(shape, group) for name, shape in shapes.items() if name in plan}
    return {name: part for name, part in found.items() if part is not None}
