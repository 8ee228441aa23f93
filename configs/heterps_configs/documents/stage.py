"""Stages of plans: layers, the devices that hold them, and how these carry them out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import LayerIndex, Name, Number, PositiveCount
from heterps_configs.problems import InconsistentError

TensorShare = Annotated[Number, Field(gt=0, le=1)]
# By so much may shares miss 1: they are written with a few digits.
_SHARE_ROUNDING = 1e-6


class Stage(Document):
    """A range of layers on one device group (one device, or a tensor-parallel group).

    Attributes:
        first_layer: Index of its first layer.
        last_layer: Index of its last layer (inclusive).
        devices: Names of the group's devices.
        tensor_shares: For each of them, its share of what is split of each layer; empty: all have
            the same.
        whole_layers: Layers that the group does not split: each of its devices holds and computes
            all of them.
        batch_layers: Layers whose samples the group splits: each of its devices holds all of them,
            and computes them for its share of each micro-batch.
        recompute_layers: Layers whose activations are dropped after the forward pass and computed
            again for the backward pass; only what enters such a layer is kept.
        offloaded_layers: Layers whose activations go to host memory after the forward pass and come
            back for the backward pass.
        in_flight: Micro-batches that it may hold between their forward and backward passes; None:
            as many as 1F1B needs for the devices behind it. More of them hide slow links.
    """

    name: Name
    first_layer: LayerIndex
    last_layer: LayerIndex
    devices: tuple[Name, ...] = Field(min_length=1)
    tensor_shares: tuple[TensorShare, ...] = ()
    whole_layers: tuple[LayerIndex, ...] = ()
    batch_layers: tuple[LayerIndex, ...] = ()
    recompute_layers: tuple[LayerIndex, ...] = ()
    offloaded_layers: tuple[LayerIndex, ...] = ()
    in_flight: PositiveCount | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        problems, layers = list(self._share_problems()), self.layers
        if self.last_layer < self.first_layer:
            problems.append(
                f"last_layer: {self.last_layer} lies before first_layer {self.first_layer}"
            )
        for field in ("whole_layers", "batch_layers"):
            if getattr(self, field) and len(self.devices) == 1:
                problems.append(f"{field}: one device has all of its layers whole; leave them out")
        for field in ("whole_layers", "batch_layers", "recompute_layers", "offloaded_layers"):
            outside = [layer for layer in getattr(self, field) if layer not in layers]
            if outside and not problems:
                problems.append(
                    f"{field}: {', '.join(map(str, outside))} not among the stage's "
                    f"layers {self.first_layer}..{self.last_layer}"
                )
        twofold = sorted(set(self.whole_layers).intersection(self.batch_layers))
        if twofold:
            problems.append(
                f"batch_layers: {', '.join(map(str, twofold))} in whole_layers, too; each device "
                "computes such a layer for its samples, or for all"
            )
        both = sorted(set(self.recompute_layers).intersection(self.offloaded_layers))
        if both:
            problems.append(
                f"offloaded_layers: {', '.join(map(str, both))} in recompute_layers, too; a layer "
                "is computed again or offloaded"
            )
        twice = [name for name, count in Counter(self.devices).items() if count > 1]
        if twice:
            problems.append(f"devices: {', '.join(map(repr, twice))} stands there twice")
        if problems:
            raise InconsistentError(problems)
        return self

    def _share_problems(self) -> Iterator[str]:
        shares, total = self.tensor_shares, math.fsum(self.tensor_shares)
        if shares and len(shares) != len(self.devices):
            yield f"tensor_shares: {len(shares)} of them for {len(self.devices)} devices"
        elif shares and abs(total - 1) > _SHARE_ROUNDING:
            yield f"tensor_shares: they sum to {total:g}; must sum to 1"

    @property
    def layers(self) -> range:
        """The layer indices."""
        return range(self.first_layer, self.last_layer + 1)

    @property
    def split(self) -> tuple[int, tuple[float, ...], frozenset[int]]:
        """What devices hold of its layers: equal for stages that split equal layers alike."""
        return self.degree, self.uneven_shares, frozenset(self.unsplit_layers)

    @property
    def unsplit_layers(self) -> tuple[int, ...]:
        """Layers that each device of the group holds all of: `whole_layers`, `batch_layers`."""
        return tuple(sorted((*self.whole_layers, *self.batch_layers)))

    @property
    def degree(self) -> int:
        """Devices that split its layers (tensor parallel)."""
        return len(self.devices)

    @property
    def uneven_shares(self) -> tuple[float, ...]:
        """`tensor_shares` where they are not all the same, else empty."""
        return self.tensor_shares if len(set(self.tensor_shares)) > 1 else ()
