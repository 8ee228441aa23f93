"""Layer times of cards from what others have published: errors where a fit has not seen something.

python benchmarks/cost_model/cards.py --workloads FOLDER
python benchmarks/cost_model/cards.py --workloads FOLDER --quick --json cards.json

FOLDER holds block times of Cephalo or Sailor (`cephalo/`, `sailor/`); without it,
`$HETERPS_WORKLOADS`. Left out
of the fit in turn are a model (all cards known), a card (one chip in several shapes is one card),
and a card together with a model. Errors are of a block at one micro-batch size, forward plus
backward, of times that were measured one by one; `passes` are forward and backward apart. `inside`
is the share of errors within the interval that the errors of all other groups lead to, which should
be 80 %.

The form of the estimate (six terms, a p-norm of 4, the small power of the FLOPs, which cards are
kin) and its spreads were chosen on these very files: errors on others may be larger.
The last rows say what `heterps place` states for a shipped cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared.common import parse_options, report
from heterps.calibration.samples import published_samples
from heterps_configs.documents.device import device_type_named
from heterps_configs.errors import HeterpsError
from heterps_envs.card_times.document import shipped_calibration
from heterps_envs.card_times.errors import (
    BlockError,
    LeftOut,
    block_error,
    left_out_errors,
    share_inside,
    summary,
)
from heterps_envs.card_times.fit import CardSample
from heterps_envs.layer_costs.estimated import published_half_width

LEFT_OUT: tuple[LeftOut, ...] = ("model", "card", "card and model", "kin")
PLACED = ("A100-40G", "V100-16G", "T4", "H100-80G", "RTX-4090")


def main() -> None:
    """Runs the benchmark and prints its tables."""
    options = parse_options(
        __doc__ or "", workloads="folder of the published files (default: $HETERPS_WORKLOADS)"
    )
    folder = options.workloads or os.environ.get("HETERPS_WORKLOADS")
    try:
        if not folder or not Path(folder).is_dir():
            raise HeterpsError(f"--workloads: {folder or 'nothing'} is no folder")
        samples = published_samples(Path(folder)).samples
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    left_out = LEFT_OUT[:2] if options.quick else LEFT_OUT
    rows = [_row("nothing", _seen(samples))]
    rows += [_row(each, left_out_errors(samples, each)) for each in left_out]
    summary_ = {f"{row['left out']}: median %": row["median %"] for row in rows}
    for name in PLACED:
        half_width = published_half_width(device_type_named(name))
        summary_[f"{name}: interval"] = f"{np.exp(-half_width):.2f} to {np.exp(half_width):.2f}"
    report("Layer times of cards from published measurements", rows, summary_, options)


def _seen(samples: Sequence[CardSample]) -> list[BlockError]:
    shipped = shipped_calibration()
    return [
        block_error(shipped, sample, sample.model)
        for sample in samples
        if sample.is_possible and not sample.is_line
    ]


def _row(name: str, errors: Sequence[BlockError]) -> dict[str, Any]:
    whole = summary(errors)
    passes = np.abs(np.expm1([value for each in errors for value in (each.forward, each.backward)]))
    return {
        "left out": name,
        "blocks": len(errors),
        "median %": round(100 * whole.median, 1),
        "p90 %": round(100 * whole.p90, 1),
        "passes: median %": round(100 * float(np.median(passes)), 1),
        "passes: p90 %": round(100 * float(np.quantile(passes, 0.9)), 1),
        "inside %": round(100 * share_inside(errors), 1) if name != "nothing" else "",
        "interval": f"{np.exp(-whole.half_width):.2f} to {np.exp(whole.half_width):.2f}",
    }


if __name__ == "__main__":
    main()
