"""What a profile has measured so far; a file of it, so that an interrupted profile goes on."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError


class LayerSamples(BaseModel):
    """Of one distinct layer and one micro-batch size: seconds of each pass, and bytes.

    Attributes:
        input_gradient_s: Backward passes without the gradients of parameters.
        launch_s: Of a GPU's host, to launch both passes.
    """

    forward_s: list[float] = []
    backward_s: list[float] = []
    input_gradient_s: list[float] = []
    optimizer_s: list[float] = []
    launch_s: list[float] = []
    activation_bytes: float = 0.0
    shared_bytes: float = 0.0
    peak_bytes: float = 0.0
    first_backward_bytes: float = 0.0
    first_input_bytes: float = 0.0
    later_input_bytes: float = 0.0
    first_weight_bytes: float = 0.0
    early_gradient_bytes: float = 0.0

    @property
    def weight_gradient_s(self) -> float:
        """Of the median backward pass, what gradients of parameters take."""
        without_s = middle(self.input_gradient_s)
        return max(middle(self.backward_s) - without_s, 0.0)


class StartSamples(BaseModel):
    """What stages that begin with one layer take beside their layers."""

    forward_s: list[float] = []
    backward_s: list[float] = []


class SizeSamples(BaseModel):
    """One micro-batch size.

    Attributes:
        distinct: For each layer of the model, the first one that is equal.
        layers: Samples by index of distinct layers.
        starts: By index of the layer that a stage begins with.
        crossing: For each layer, number of tensors that cross the cut behind it.
        cut_s: By index of a layer, seconds to pack what crosses the cut behind it.
    """

    distinct: tuple[int, ...]
    layers: dict[int, LayerSamples] = {}
    starts: dict[int, StartSamples] = {}
    crossing: tuple[int, ...] = ()
    cut_s: dict[int, list[float]] = {}

    def of(self, index: int) -> LayerSamples:
        """The samples that a layer shares with its equals."""
        return self.layers.setdefault(self.distinct[index], LayerSamples())

    def start(self, index: int) -> StartSamples:
        """Those of stages that begin with layer `index`."""
        return self.starts.setdefault(index, StartSamples())


class Settings(BaseModel):
    """What a profile measures, and how; samples of other settings do not mix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    layers: str
    device: str
    device_type: str
    dtype: str
    optimizer: str
    num_threads: int
    host: str


class ProfileSamples(BaseModel):
    """All samples of a profile.

    Attributes:
        settings: What they are samples of.
        done: What has been measured, by name: nothing is measured twice.
        sizes: By micro-batch size.
    """

    settings: Settings
    done: set[str] = Field(default_factory=set)
    sizes: dict[int, SizeSamples] = {}

    def write(self, path: Path | None) -> None:
        """Writes the file in one move; nowhere without a path."""
        if path is not None:
            write_text(path, self.model_dump_json())

    @classmethod
    def resumed(cls, path: Path | None, settings: Settings) -> Self:
        """What the file holds; empty where there is none.

        Raises:
            HeterpsError: The file is broken, or of other settings.
        """
        if path is None or not path.exists():
            return cls(settings=settings)
        try:
            found = cls.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError, OSError):
            raise HeterpsError(
                f"{path}: cannot be read as an interrupted profile; delete it to start anew"
            ) from None
        for name in Settings.model_fields:
            old, new = getattr(found.settings, name), getattr(settings, name)
            if old != new:
                raise HeterpsError(
                    f"{path}: an interrupted profile with {name} {old!r}, but {new!r} is asked "
                    "for; finish it with its own command, delete it, or write to another file"
                )
        return found


def middle(values: list[float]) -> float:
    """The median; 0 where nothing was measured."""
    return statistics.median(values) if values else 0.0


def spread(values: list[float]) -> float:
    """The interquartile range: half of the values lie in it."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
