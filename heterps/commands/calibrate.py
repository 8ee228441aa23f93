"""`heterps calibrate`: fits the calibration of cards again, and says what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from heterps.commands.card_samples import SOURCES, published_samples
from heterps.reports.console import answer, print_json, remarks
from heterps_configs.errors import HeterpsError
from heterps_envs.card_times.document import CardCalibration, Knowledge, shipped_calibration
from heterps_envs.card_times.errors import LeftOut, left_out_errors, summary
from heterps_envs.card_times.fit import CardSample, fit_cards

# What a fit has not seen, by what is known of a card. Models are never known.
LEFT_OUT: dict[Knowledge, LeftOut] = {"card": "model", "kin": "card and model", "none": "kin"}


def run_calibrate(workloads: Path, *, output: Path | None, as_json: bool) -> None:
    """Fits, prints, and writes where that is wanted.

    Raises:
        HeterpsError: The folder has no published times.
    """
    if not workloads.is_dir():
        raise HeterpsError(f"--workloads: {workloads} is no folder")
    with remarks.status("tracing the published blocks"):
        samples = published_samples(workloads)
    before, fitted = shipped_calibration(), fitted_with_errors(samples)
    if output is not None:
        fitted.to_file(output)
    changes = changed_factors(before, fitted)
    if as_json:
        print_json({"calibration": fitted.model_dump(mode="json"), "changes": changes})
        return
    _print(samples, fitted, changes)


def fitted_with_errors(samples: Sequence[CardSample]) -> CardCalibration:
    """The fit to all samples, with the errors of fits that have not seen some of them."""
    errors = {}
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
        return fit_cards(samples, SOURCES, errors)


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


def _print(
    samples: Sequence[CardSample], fitted: CardCalibration, changes: Sequence[dict[str, Any]]
) -> None:
    measured = sum(not sample.is_line for sample in samples)
    impossible = sum(not sample.is_possible for sample in samples)
    answer.print(
        f"{len(samples)} block times ({measured} measured one by one, {len(samples) - measured} "
        f"from lines; {impossible} quicker than the card's peak, left out) of "
        f"{len(fitted.cards)} cards and {len({sample.model for sample in samples})} models"
    )
    table = Table("known of the card", "median error", "p90", "80 % within", box=None)
    for knowledge, error in fitted.errors.items():
        table.add_row(
            {"card": "others of its times", "kin": "times of its kin", "none": "none"}[knowledge],
            f"{100 * error.median:.1f} %",
            f"{100 * error.p90:.0f} %",
            f"a factor of {math.exp(error.half_width):.2f}",
        )
    answer.print(table)
    if not changes:
        answer.print("nothing changed by 1 % or more")
    for change in changes:
        before, after = (
            "none" if change[key] is None else f"{change[key]:.4g}" for key in ("before", "after")
        )
        answer.print(f"{change['factor']}: {before} -> {after}")
