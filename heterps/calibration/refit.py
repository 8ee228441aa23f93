"""Fits the calibration of cards to samples, and says what changed."""

from __future__ import annotations

from typing import Any

from heterps.calibration.samples import PublishedSamples
from heterps.reports.console import remarks
from heterps_envs.card_times.document import CardCalibration, Knowledge
from heterps_envs.card_times.errors import LeftOut, left_out_errors, summary
from heterps_envs.card_times.fit import fit_cards

# What a fit has not seen, by what is known of a card. Models are never known.
LEFT_OUT: dict[Knowledge, LeftOut] = {"card": "model", "kin": "card and model", "none": "kin"}


def fitted_with_errors(published: PublishedSamples) -> CardCalibration:
    """The fit to all samples, with the errors of fits that have not seen some of them."""
    samples, errors = published.samples, {}
    for knowledge, left_out in LEFT_OUT.items():
        with remarks.status(f"errors where a {left_out} is left out") as status:
            found = left_out_errors(
                samples,
                left_out,
                lambda group, what=left_out: status.update(f"without {what} {group}"),  # type: ignore[misc]
            )
        errors[knowledge] = summary(found)
    # Of a card whose kin nobody has measured less is known than of one whose kin somebody has.
    worst = max(errors["kin"].half_width, errors["none"].half_width)
    errors["none"] = errors["none"].changed(half_width=worst)
    with remarks.status("fitting"):
        return fit_cards(samples, published.sources, errors)


def changed_factors(before: CardCalibration, after: CardCalibration) -> list[dict[str, Any]]:
    """What differs by 1 % or more."""
    old, new = _flat(before.model_dump(mode="json")), _flat(after.model_dump(mode="json"))
    return [
        {"factor": name, "before": old.get(name), "after": new.get(name)}
        for name in sorted(old.keys() | new.keys())
        if not _is_near(old.get(name), new.get(name))
    ]


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in tree.items():
        name = f"{above}.{key}" if above else key
        if isinstance(value, dict):
            found |= _flat(value, name)
        elif isinstance(value, float | int):
            found[name] = float(value)
    return found


def _is_near(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return False
    return abs(first - second) <= 0.01 * max(abs(first), abs(second))
