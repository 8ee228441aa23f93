"""What HAP would do and our plans cannot say, in plain words."""

from __future__ import annotations

from itertools import groupby
from typing import get_args

from heterps_agents.systems.hap.chain import Program, Way

MOST_RUNS = 4


def layer_ways(program: Program) -> list[str]:
    """How each layer is carried out, without the collectives."""
    ways = set(get_args(Way))
    return [each.name for each in program if each.name in ways]


def is_by_batch(program: Program) -> bool:
    """Whether every device has all layers and a part of the samples."""
    return set(layer_ways(program)) == {"split batch"}


def program_text(program: Program) -> str:
    """Such as `split batch for the layers 0-3, split columns for the layers 4-15`."""
    runs, first = [], 0
    for way, group in groupby(layer_ways(program)):
        count = len(list(group))
        layers = f"layer {first}" if count == 1 else f"layers {first}-{first + count - 1}"
        runs.append(f"{way} for the {layers}")
        first += count
    more = len(runs) - MOST_RUNS
    shown = runs if more <= 0 else [*runs[:MOST_RUNS], f"and {more} more such changes"]
    return ", ".join(shown)
