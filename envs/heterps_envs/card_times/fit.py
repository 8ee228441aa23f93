"""The fit: factors of all cards, offsets of kin and of single cards, from published block times.

All levels are logarithms. A level is a normal prior of the next: a card with few tables stays near
its kin, and kin near all cards. Offsets on products and energy are of one kind of units, those on
traffic and launch of a card; beside them a pass on one kind of units may differ a little. Errors
are relative and robust, since published tables have outliers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.device import DeviceType
from heterps_envs.arrays import Floats
from heterps_envs.card_times.document import (
    CardCalibration,
    LeftOutError,
    Offsets,
    Pass,
    UnitFactors,
    kin_of,
)
from heterps_envs.card_times.work import (
    COLUMNS,
    ENERGY,
    LAUNCH,
    OFFSET_KINDS,
    PARAMETERS,
    PRODUCTS,
    TRAFFIC,
    UnitKind,
    pass_seconds,
)

UNITS: tuple[UnitKind, ...] = ("half", "tf32", "float32")
_KINDS = ("half", "float32")
PASSES: tuple[Pass, ...] = ("forward", "backward")
# Offsets of kin and cards: products and energy by units, traffic, launch.
_OFFSET_COLUMNS = (
    *((PRODUCTS, 0), (PRODUCTS, 1), (ENERGY, 0), (ENERGY, 1)),
    *((TRAFFIC, None), (LAUNCH, None)),
)
_FIELDS = (
    "half_products",
    "float32_products",
    "half_energy",
    "float32_energy",
    "traffic",
    "launch",
)
# Orders of magnitude, which the fit corrects; and how far it may go from each level to the next.
_START = np.log([[1.3, 0.6, 1.5, 1.0, 1.2, 0.5], [2.6, 1.2, 3.0, 5.0, 2.4, 1.0]])
_COMMON_SPREAD, _KIN_SPREAD, _CARD_SPREAD, _PASS_SPREAD = 0.5, 0.3, 0.3, 0.1
_SCATTER = 0.08
_MOST_EVALUATIONS = 30
# Points of one table say much the same; a line is less than a measurement.
_TABLE_POWER, _LINE_WEIGHT = 0.25, 0.5


class CardSample(NamedTuple):
    """A published block on a card.

    Attributes:
        entry: The card.
        model: Whose block it is.
        table: Samples of one table differ in the micro-batch size alone.
        forward, backward: (6,) work; see `heterps_envs.card_times.work`.
        seconds: Of the forward and the backward pass.
        repository: Who published it.
    """

    entry: DeviceType
    model: str
    table: str
    units: UnitKind
    forward: Floats
    backward: Floats
    seconds: tuple[float, float]
    is_line: bool
    repository: str

    @property
    def is_possible(self) -> bool:
        """Whether it is not quicker than the peak of the card."""
        return self.seconds[0] > self.forward[PRODUCTS] and self.seconds[1] > 0


@dataclass(frozen=True)
class Samples:
    """Samples as arrays."""

    samples: Sequence[CardSample]

    @cached_property
    def cards(self) -> list[str]:
        """Names of the cards, in rising order."""
        return sorted({sample.entry.name for sample in self.samples})

    @cached_property
    def kin(self) -> list[str]:
        """Names of kin, in rising order."""
        return sorted({kin_of(sample.entry) for sample in self.samples})

    @cached_property
    def work(self) -> Floats:
        """(N, 2, 6) columns of both passes."""
        return np.array([[sample.forward, sample.backward] for sample in self.samples])

    @cached_property
    def seconds(self) -> Floats:
        """(N, 2) of both passes."""
        return np.array([sample.seconds for sample in self.samples])

    @cached_property
    def units(self) -> NDArray[np.int_]:
        """(N,) index into `UNITS`."""
        return np.array([UNITS.index(sample.units) for sample in self.samples])

    @cached_property
    def kinds(self) -> NDArray[np.int_]:
        """(N,) index of the offsets of the units."""
        return np.array([_KINDS.index(OFFSET_KINDS[sample.units]) for sample in self.samples])

    @cached_property
    def weights(self) -> Floats:
        """(N,) how much each sample counts."""
        counts: dict[str, int] = {}
        for sample in self.samples:
            counts[sample.table] = counts.get(sample.table, 0) + 1
        return np.array(
            [
                (_LINE_WEIGHT if sample.is_line else 1.0) / counts[sample.table] ** _TABLE_POWER
                for sample in self.samples
            ]
        )


class _Parameters(NamedTuple):
    """Logarithms: (2, 3, 6) by pass and units; (K, 6); (C, 6); (C, 2, 2) by card, pass, kind."""

    common: Floats
    kin: Floats
    cards: Floats
    passes: Floats


def fit_cards(
    samples: Sequence[CardSample],
    sources: Sequence[str],
    errors: Mapping[Literal["card", "kin", "none"], LeftOutError],
) -> CardCalibration:
    """Factors that fit published samples best.

    Args:
        samples: Of at least one card; impossible ones are left out.
        sources: Named in the result.
        errors: Kept in it.
    """
    arrays = Samples([sample for sample in samples if sample.is_possible])
    found = _fitted(arrays)
    tables: dict[str, Counter[str]] = {card: Counter() for card in arrays.cards}
    for card, repository, _ in sorted(
        {(sample.entry.name, sample.repository, sample.table) for sample in arrays.samples}
    ):
        tables[card][repository] += 1
    common = np.exp(_tied(found.common))
    return CardCalibration(
        name="cards",
        sources=tuple(sources),
        half={of: _unit_factors(common[index, 0]) for index, of in enumerate(PASSES)},
        tf32={of: _unit_factors(common[index, 1]) for index, of in enumerate(PASSES)},
        float32={of: _unit_factors(common[index, 2]) for index, of in enumerate(PASSES)},
        kin={name: _offsets(found.kin[index]) for index, name in enumerate(arrays.kin)},
        cards={
            name: _offsets(found.cards[index], found.passes[index], tables[name])
            for index, name in enumerate(arrays.cards)
        },
        errors=errors,
    )


def _rounded(number: float) -> float:
    return float(f"{number:.4g}")


def _unit_factors(values: Floats) -> UnitFactors:
    return UnitFactors(
        **{name: _rounded(value) for name, value in zip(COLUMNS, values, strict=True)}
    )


def _offsets(
    values: Floats, passes: Floats | None = None, tables: Mapping[str, int] | None = None
) -> Offsets:
    found = {name: _rounded(value) for name, value in zip(_FIELDS, np.exp(values), strict=True)}
    if passes is not None:
        found |= {
            f"{kind}_{of}": _rounded(float(np.exp(passes[index, number])))
            for index, of in enumerate(PASSES)
            for number, kind in enumerate(_KINDS)
        }
    return Offsets(**found, tables=dict(tables or {}))


def _fitted(arrays: Samples) -> _Parameters:
    from scipy.optimize import least_squares

    rows = np.arange(len(arrays.samples))
    kin = np.array([arrays.kin.index(kin_of(sample.entry)) for sample in arrays.samples])
    cards = np.array([arrays.cards.index(sample.entry.name) for sample in arrays.samples])
    start = _Parameters(
        np.repeat(_START[:, None, :], len(UNITS), axis=1),
        np.zeros((len(arrays.kin), len(_FIELDS))),
        np.zeros((len(arrays.cards), len(_FIELDS))),
        np.zeros((len(arrays.cards), len(PASSES), len(_KINDS))),
    )
    logarithms, weights = np.log(arrays.seconds), arrays.weights[:, None]

    def residuals(flat: Floats) -> Floats:
        own = _split(flat, start)
        factors = _tied(own.common)[:, arrays.units].transpose(1, 0, 2).copy()
        offsets = own.kin[kin] + own.cards[cards]
        for number, (column, unit) in enumerate(_OFFSET_COLUMNS):
            applies = np.ones(len(rows)) if unit is None else (arrays.kinds == unit).astype(float)
            factors[:, :, column] += (applies * offsets[:, number])[:, None]
        factors += own.passes[cards, :, arrays.kinds][:, :, None]
        predicted = pass_seconds(np.exp(factors), arrays.work)
        error = (logarithms - np.log(predicted)) / _SCATTER
        robust = np.sign(error) * np.sqrt(2 * (np.sqrt(1 + error**2) - 1)) * weights
        return np.concatenate([
            robust.ravel(),
            ((own.common - start.common) / _COMMON_SPREAD).ravel(),
            (own.kin / _KIN_SPREAD).ravel(),
            (own.cards / _CARD_SPREAD).ravel(),
            (own.passes / _PASS_SPREAD).ravel(),
        ])  # fmt: skip

    flat = np.concatenate([part.ravel() for part in start])
    result = least_squares(residuals, flat, max_nfev=_MOST_EVALUATIONS, x_scale="jac")
    return _split(result.x, start)


def _tied(common: Floats) -> Floats:
    """TF32 changes products alone: other operations move and compute float32 as ever."""
    tied = common.copy()
    tf32, float32 = UNITS.index("tf32"), UNITS.index("float32")
    tied[:, tf32, PARAMETERS:] = common[:, float32, PARAMETERS:]
    return tied


def _split(flat: Floats, like: _Parameters) -> _Parameters:
    parts, first = [], 0
    for part in like:
        parts.append(flat[first : first + part.size].reshape(part.shape))
        first += part.size
    return _Parameters(*parts)
