"""How the parameters of a model are split, as a document: every rank reads the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from heterps_configs.documents.base import Document
from heterps_configs.documents.model_profile import TensorUnit
from heterps_envs.layer_costs.group_slice import GroupSlice, unit_ranges
from heterps_runtime.tensor_parallel.slices import TensorSlice


class SplitDraw(Document):
    """Random numbers of which each rank uses a part.

    Attributes:
        dim: Along which they are split.
        size: Of that dimension, whole.
        num_units: Into how many parts it can be.
    """

    dim: int
    size: int
    num_units: int


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

    def units(self, group: GroupSlice) -> tuple[int, int]:
        """First unit of a rank, and the one behind its last."""
        return unit_ranges(self.num_units, group.shares)[group.rank]

    def slice(self, shape: Sequence[int], group: GroupSlice) -> TensorSlice | None:
        """What a rank has of a tensor with this shape; None: all of it."""
        if group.degree < 2 or self.least_units < group.degree:
            return None
        first, end = self.units(group)
        ranges = []
        for start, length in self.sections:
            width = length // self.num_units
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
