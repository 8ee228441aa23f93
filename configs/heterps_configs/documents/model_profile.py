"""Model profiles: the layers of a model in execution order, with their bytes, FLOPs and seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import accumulate
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from heterps_configs.documents.base import (
    BYTES_PER_ELEMENT,
    Document,
    Dtype,
    compute_format,
    is_mixed,
    parameter_format,
)
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import (
    ALWAYS_MEASURED,
    MAY_BE_MEASURED,
    Measurement,
)
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model.tensor_split import ROUNDING
from heterps_configs.documents.numbers import Name
from heterps_configs.problems import InconsistentError, repeated


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
            for field in ALWAYS_MEASURED + MAY_BE_MEASURED:
                length = len(getattr(entry, field))
                if length != self.num_layers and (length or field in ALWAYS_MEASURED):
                    where = f"measurements.{index}.{field}"
                    problems.append(f"{where}: {length} values for {self.num_layers} layers")
        problems += self._cut_problems()
        if problems:
            raise InconsistentError(problems)
        return self

    def _cut_problems(self) -> Iterator[str]:
        """No cut is crossed by tensors of more bytes than its layer says."""
        crossing = [0.0] * (self.num_layers + 1)
        for index, layer in enumerate(self.layers):
            for num_cuts, num_bytes in layer.sent:
                crossing[index] += num_bytes
                crossing[min(index + num_cuts, self.num_layers)] -= num_bytes
        rounding = ROUNDING * sum(map(abs, crossing))
        for index, (layer, num_bytes) in enumerate(
            zip(self.layers, accumulate(crossing[:-1]), strict=True)
        ):
            if num_bytes > layer.output_bytes + rounding:
                yield (
                    f"layers.{index}.output_bytes: {layer.output_bytes:g}, and what is sent over "
                    f"the cut behind the layer (sent) has {num_bytes:g}"
                )

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
            "attention_matrix_bytes": 0,
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
