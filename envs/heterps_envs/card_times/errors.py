"""How far estimates of cards are off: cards, models, or both are left out of the fit in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.card_times.document import CardCalibration, LeftOutError, Pass, kin_of
from heterps_envs.card_times.fit import CardSample, fit_cards
from heterps_envs.card_times.formula import card_factors
from heterps_envs.card_times.work import pass_seconds

LeftOut = Literal["model", "card", "card and model", "kin"]
COVERAGE = 0.8


class BlockError(NamedTuple):
    """Of one sample that the fit has not seen.

    Attributes:
        group: What was left out together with it.
        logarithm: Of predicted over measured seconds, forward plus backward.
        forward, backward: The same of one pass.
    """

    group: str
    logarithm: float
    forward: float
    backward: float


def card_family(sample: CardSample) -> str:
    """Cards that are left out together: one chip in several shapes is one card."""
    chip = sample.entry.name.split("-")[0]
    return chip if chip in ("V100", "A100") else sample.entry.name


def model_family(sample: CardSample) -> str:
    """Models that are left out together: two versions of one block are one model."""
    return sample.model.replace("v2", "")


def left_out_errors(
    samples: Sequence[CardSample],
    left_out: LeftOut,
    on_group: Callable[[str], None] = lambda _: None,
) -> list[BlockError]:
    """Errors of all samples that were measured one by one, each predicted without its group.

    Args:
        samples: Published ones; impossible ones are left out.
        left_out: What a group is.
        on_group: Called before each fit.

    Raises:
        HeterpsError: There are too few: without a group none are left, or none were measured one
            by one.
    """
    possible = [sample for sample in samples if sample.is_possible]
    found = []
    for group, tested, training in _groups(possible, left_out):
        if not training:
            raise HeterpsError(
                f"published times: without the {left_out} {group} none are left to fit; needed are "
                "several models, on cards of several kinds"
            )
        on_group(group)
        fitted = fit_cards(training, (), {})
        found += [block_error(fitted, sample, group) for sample in tested if not sample.is_line]
    if not found:
        raise HeterpsError("published times: none of a known card that was measured one by one")
    return found


def _groups(
    samples: Sequence[CardSample], left_out: LeftOut
) -> Iterator[tuple[str, list[CardSample], list[CardSample]]]:
    """Name, samples that are predicted, samples that are fitted."""
    if left_out == "card and model":
        pairs = sorted({(card_family(each), model_family(each)) for each in samples})
        for card, model in pairs:
            yield (
                f"{card}, {model}",
                [s for s in samples if (card_family(s), model_family(s)) == (card, model)],
                [s for s in samples if card_family(s) != card and model_family(s) != model],
            )
        return
    keys: dict[str, Callable[[CardSample], str]] = {
        "model": model_family,
        "card": card_family,
        "kin": lambda sample: kin_of(sample.entry),
    }
    key = keys[left_out]
    for name in sorted({key(sample) for sample in samples}):
        yield (
            name,
            [sample for sample in samples if key(sample) == name],
            [sample for sample in samples if key(sample) != name],
        )


def block_error(fitted: CardCalibration, sample: CardSample, group: str) -> BlockError:
    """Of one sample under a fit."""
    of: dict[Pass, Floats] = {"forward": sample.forward, "backward": sample.backward}
    forward_s, backward_s = (
        float(pass_seconds(card_factors(fitted, sample.entry, each, sample.units), work))
        for each, work in of.items()
    )
    measured_forward_s, measured_backward_s = sample.seconds
    return BlockError(
        group,
        float(np.log((forward_s + backward_s) / (measured_forward_s + measured_backward_s))),
        float(np.log(forward_s / measured_forward_s)),
        float(np.log(backward_s / measured_backward_s)),
    )


def summary(errors: Sequence[BlockError]) -> LeftOutError:
    """Median, p90, and the half-width that covers `COVERAGE` of them."""
    logarithms = np.array([error.logarithm for error in errors])
    relative = np.abs(np.expm1(logarithms))
    return LeftOutError(
        half_width=float(np.quantile(np.abs(logarithms), COVERAGE)),
        median=float(np.median(relative)),
        p90=float(np.quantile(relative, 0.9)),
    )


def share_inside(errors: Sequence[BlockError]) -> float:
    """Of errors, how many lie in the interval that the errors of all *other* groups lead to."""
    inside = []
    for group in sorted({error.group for error in errors}):
        own = np.array([abs(error.logarithm) for error in errors if error.group == group])
        others = [abs(error.logarithm) for error in errors if error.group != group]
        inside.append(own <= np.quantile(others, COVERAGE))
    return float(np.mean(np.concatenate(inside)))
