"""AMP's own GPT-2 case, from its measured profiles, which have no licence: read where they lie.

    python benchmarks/strategy/published.py --workloads FOLDER --only amp

FOLDER/amp holds `gpt2_P3_T.npy` and `gpt2_G4_T.npy` of AMP's repository, for each tensor-parallel
degree T: seconds of each of 30 layers for one sample, on two kinds of cards. Three of four nodes
are of the first kind, so a layer takes 0.75 of the one and 0.25 of the other.

Taken for granted here: the layers are an embedding, 24 blocks from the third on, and a head, the
last but one, as in DeepSpeed's GPT-2 pipeline; the others have no parameters; all else is as in the
twin (`amp_twin`). Whether that is AMP's case is checked with the split that its repository answers:
`as published` says whether it costs here what is printed there, and nothing is met else.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.strategy import amp_twin
from heterps_agents.systems.amp.split import Layers, Stages, best_split
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats

LAYERS, FIRST_BLOCK, HEAD = 30, 2, 28
SHARE_OF_P3 = 0.75
# Seconds are published with four decimals.
DIGITS = 5e-5


class Figure(NamedTuple):
    """Seconds that are known of one choice of degrees.

    Attributes:
        published_s: Of the repository's split.
        stops: That split, where it is known.
        most_s: What an exact split that counts all-reduces is at or below.
    """

    published_s: float
    most_s: float
    stops: tuple[int, ...] | None = None


FIGURES = {
    (1, 1, 4, 4): Figure(1.0859, 1.0846, (7, 14, 20, 30)),
    (1, 1, 2, 8): Figure(1.1402, 1.1402),
    (1, 2, 2, 4): Figure(2.0038, 2.0038),
    (2, 1, 4, 4): Figure(1.3291, 1.3279),
    (1, 1, 8, 2): Figure(1.9761, 1.9761),
}


def rows(workloads: Path) -> list[dict[str, Any]]:
    """A row for each choice of degrees; none without the folder.

    Raises:
        HeterpsError: A file is missing, or holds something else.
    """
    folder = workloads / "amp"
    if not folder.is_dir():
        return []
    return [_row(folder, amp_twin.Degrees(*cell), figure) for cell, figure in FIGURES.items()]


def case_of(folder: Path, degrees: amp_twin.Degrees) -> amp_twin.Case:
    """AMP's case at some degrees, with the measured seconds."""
    size, degree = degrees.micro_batch_size, degrees.tensor_parallel
    fast, slow = (_seconds(folder / f"gpt2_{kind}_{degree}.npy") for kind in ("P3", "G4"))
    parameters = np.zeros(LAYERS)
    twin = amp_twin.case_of(degrees)
    parameters[FIRST_BLOCK : FIRST_BLOCK + amp_twin.LAYERS] = twin.parameters[1]
    parameters[[0, HEAD]] = twin.parameters[0]
    seconds = size * (SHARE_OF_P3 * fast + (1 - SHARE_OF_P3) * slow)
    return dataclasses.replace(
        twin, compute_s=tuple(seconds.tolist()), parameters=tuple(parameters.tolist())
    )


def _row(folder: Path, degrees: amp_twin.Degrees, figure: Figure) -> dict[str, Any]:
    case = case_of(folder, degrees)
    layers = Layers(np.array(case.compute_s), np.array(case.parameters), np.ones(LAYERS))
    rings = (case.seconds_per_parameter,) * case.stages
    stages = Stages(case.micro_batches, rings, (case.message_s,) * (case.stages - 1))
    start = time.process_time()
    ours_s = best_split(layers, stages).seconds
    cpu_s = time.process_time() - start
    is_case = figure.stops is None or abs(case.cost_s(figure.stops) - figure.published_s) < DIGITS
    size, tp, dp, pp = degrees
    return {
        "case": f"AMP's GPT-2, batch {size} tp {tp} dp {dp} pp {pp}",
        "unit": "iterations/s",
        "ours": 1 / ours_s,
        "best_column": 1 / figure.most_s,
        "column": "exact split, whole cost",
        "cpu_s": cpu_s,
        "as published": is_case,
        "met": is_case and ours_s <= figure.most_s + DIGITS,
    }


def _seconds(path: Path) -> Floats:
    if not path.is_file():
        raise HeterpsError(f"{path}: no such file")
    found = np.load(path, allow_pickle=False).astype(float).ravel()
    if found.shape != (LAYERS,):
        raise HeterpsError(f"{path}: {found.size} numbers; {LAYERS} layers have one each")
    return np.asarray(found)
