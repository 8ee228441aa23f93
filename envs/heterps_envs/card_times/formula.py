"""Seconds of a model's layers on a card, by the calibration of the shipped cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats
from heterps_envs.card_times.document import (
    CardCalibration,
    Offsets,
    Pass,
    UnitFactors,
    kin_of,
)
from heterps_envs.card_times.work import OFFSET_KINDS, UnitKind, card_work, pass_seconds

_NO_OFFSETS = Offsets()


class CardSeconds(NamedTuple):
    """(L,) seconds of one micro-batch."""

    forward_s: Floats
    backward_s: Floats


def card_seconds(
    calibration: CardCalibration, profile: ModelProfile, entry: DeviceType, job: Job
) -> CardSeconds:
    """Forward and backward seconds of every layer on a card.

    Args:
        calibration: Its factors.
        profile: The layers.
        entry: The card.
        job: Its micro-batch size and numbers.
    """
    work = card_work(profile.layers, profile.activation_scale(job.dtype), entry, job)
    return CardSeconds(
        pass_seconds(card_factors(calibration, entry, "forward", work.units), work.forward),
        pass_seconds(card_factors(calibration, entry, "backward", work.units), work.backward),
    )


def card_factors(
    calibration: CardCalibration, entry: DeviceType, of: Pass, units: UnitKind
) -> Floats:
    """(6,) factors of a card: those of all cards, of its kin, and its own."""
    common: Mapping[Pass, UnitFactors] = getattr(calibration, units)
    factors = np.array(common[of].values)
    for found in (
        calibration.kin.get(kin_of(entry), _NO_OFFSETS),
        calibration.cards.get(entry.name, _NO_OFFSETS),
    ):
        factors = factors * _multipliers(found, of, units)
    return factors


def _multipliers(found: Offsets, of: Pass, units: UnitKind) -> Floats:
    kind = OFFSET_KINDS[units]
    every: float = getattr(found, f"{kind}_{of}")
    products: float = getattr(found, f"{kind}_products")
    energy: float = getattr(found, f"{kind}_energy")
    return every * np.array([products, energy, 1.0, 1.0, found.traffic, found.launch])
