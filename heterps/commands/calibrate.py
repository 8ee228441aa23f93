"""`heterps calibrate`: fits the calibration of cards again, and says what changed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from heterps.calibration.refit import changed_factors, fitted_with_errors
from heterps.calibration.samples import published_samples
from heterps.reports.console import answer, print_json, remarks
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import DOCUMENT_SUFFIXES, try_outputs
from heterps_envs.card_times.document import CardCalibration, shipped_calibration
from heterps_envs.card_times.fit import CardSample


def run_calibrate(workloads: Path, *, output: Path | None, as_json: bool) -> None:
    """Fits, prints, and writes where that is wanted.

    Raises:
        HeterpsError: The folder has too few published times, or the output cannot be written.
    """
    try_outputs({"--output": (output, DOCUMENT_SUFFIXES)})
    if not workloads.is_dir():
        raise HeterpsError(f"--workloads: {workloads} is no folder")
    with remarks.status("tracing the published blocks"):
        published = published_samples(workloads)
    before, fitted = shipped_calibration(), fitted_with_errors(published)
    if output is not None:
        fitted.to_file(output)
    changes = changed_factors(before, fitted)
    if as_json:
        print_json({"calibration": fitted.model_dump(mode="json"), "changes": changes})
        return
    _print(published.samples, fitted, changes)


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
