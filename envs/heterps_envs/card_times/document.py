"""The calibration of the shipped cards: factors, what they were fitted on, how far they are off."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from heterps_configs.documents.base import Document
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.numbers import Name, Number, Whole
from heterps_configs.documents.yaml_files import parse_yaml, read_text

# What is known of a card: measurements of it, of its kin, or of neither.
Knowledge = Literal["card", "kin", "none"]
Pass = Literal["forward", "backward"]


class UnitFactors(Document):
    """Factors of one pass on one kind of units; see `heterps_envs.card_times.work.COLUMNS`."""

    products: Number = Field(gt=0)
    energy: Number = Field(gt=0)
    attention: Number = Field(gt=0)
    parameters: Number = Field(gt=0)
    traffic: Number = Field(gt=0)
    launch: Number = Field(gt=0)

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of the columns."""
        return (
            self.products,
            self.energy,
            self.attention,
            self.parameters,
            self.traffic,
            self.launch,
        )


class Offsets(Document):
    """What a card, or its kin, multiplies factors of all cards by; 1 where nothing is known.

    Those named `half` are of tensor cores, and so also of TF32.

    Attributes:
        tables: How many published tables a card was fitted on, by repository.
    """

    half_products: Number = Field(default=1.0, gt=0)
    float32_products: Number = Field(default=1.0, gt=0)
    half_energy: Number = Field(default=1.0, gt=0)
    float32_energy: Number = Field(default=1.0, gt=0)
    traffic: Number = Field(default=1.0, gt=0)
    launch: Number = Field(default=1.0, gt=0)
    half_forward: Number = Field(default=1.0, gt=0)
    half_backward: Number = Field(default=1.0, gt=0)
    float32_forward: Number = Field(default=1.0, gt=0)
    float32_backward: Number = Field(default=1.0, gt=0)
    tables: Mapping[str, Whole] = {}


class LeftOutError(Document):
    """Errors of what the fit has not seen.

    Attributes:
        half_width: Logarithm of the factor that 80 % of the errors are below.
        median: Of relative errors of blocks, forward plus backward.
        p90: The same at 90 %.
    """

    half_width: Number = Field(gt=0)
    median: Number
    p90: Number


class CardCalibration(Document):
    """Factors for layer times of cards, fitted on published measurements.

    Attributes:
        sources: Where the measurements are from.
        half: By pass, on tensor cores in 16 bits.
        tf32: By pass, on tensor cores in TF32.
        float32: By pass, on ordinary units.
        kin: By kin; see `kin_of`.
        cards: By device type.
        errors: By what is known of a card; the model is always one that the fit has not seen.
    """

    name: Name
    sources: tuple[str, ...]
    half: Mapping[Pass, UnitFactors]
    tf32: Mapping[Pass, UnitFactors]
    float32: Mapping[Pass, UnitFactors]
    kin: Mapping[str, Offsets]
    cards: Mapping[str, Offsets]
    errors: Mapping[Knowledge, LeftOutError]

    def knowledge(self, entry: DeviceType) -> Knowledge:
        """What is known of a card."""
        if entry.name in self.cards:
            return "card"
        return "kin" if kin_of(entry) in self.kin else "none"


# Cards whose ordinary units share their work alike. `separate`: integers have lanes of their own,
# so that float32 products reach nine tenths of the peak; `shared`: half of the lanes that the peak
# counts also do integers (Ampere and Ada for graphics).
KIN = {
    "pascal": "pascal",
    "volta": "separate",
    "turing": "separate",
    "ampere": "separate",
    "ampere-graphics": "shared",
    "ada": "shared",
    "hopper": "hopper",
    "blackwell": "hopper",
    "blackwell-graphics": "shared",
}


def kin_of(entry: DeviceType) -> str:
    """Which cards are like it; empty where none is."""
    return KIN.get(entry.architecture, "")


@lru_cache(maxsize=1)
def shipped_calibration() -> CardCalibration:
    """What comes with heterps (read once, so read-only)."""
    file = files("heterps_configs") / "calibrations" / "cards.yaml"
    return CardCalibration.from_mapping(
        parse_yaml(read_text(file, file.name), file.name), file.name
    )
