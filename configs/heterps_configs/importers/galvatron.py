"""Imports Galvatron's tables (PKU-DAIR/Hetu-Galvatron): forward times and link bandwidths.

A computation table has milliseconds of whole forward passes by number of layers, batch size and
sequence length. The time of one layer is the slope over the number of layers; what is left at no
layers is embedding and head. (Keys `layertype_...` are Galvatron's own results of that, for one
sample; they are left out.)
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from heterps_configs.importers.json_entry import Entry

PathLike = str | os.PathLike[str]
_COMPUTATION = re.compile(r"layernum\[(\d+)\]_bsz(\d+)_seq(\d+)")
_DERIVED = "layertype_"
_ALL_REDUCE = re.compile(r"allreduce_size_(\d+)_consec_([01])")
_POINT_TO_POINT = re.compile(r"pp_size_(\d+)")
_MILLISECOND, _GIGABYTE = 1e-3, 1e9


class GalvatronBatch(NamedTuple):
    """What a forward pass was measured for."""

    batch_size: int
    sequence_length: int


class GalvatronForward(NamedTuple):
    """Forward seconds of one batch.

    Attributes:
        layer_s: Of one layer.
        other_s: Of everything else.
    """

    layer_s: float
    other_s: float


class GalvatronGroup(NamedTuple):
    """A group of GPUs that reduce together; consecutive ones or strided ones."""

    num_gpus: int
    consecutive: bool


def load_forward_times(path: PathLike) -> dict[GalvatronBatch, GalvatronForward]:
    """Reads `computation_profiling_*.json`.

    Raises:
        DocumentError: The file is malformed, or a batch was measured for one number of layers only.
        HeterpsError: The file cannot be read.
    """
    top = Entry.from_json(path)
    points: dict[GalvatronBatch, dict[int, float]] = {}
    for key, entry in top.items():
        if key.startswith(_DERIVED):
            continue
        layers, batch, sequence = map(int, _matched(_COMPUTATION, key, entry).groups())
        measured = points.setdefault(GalvatronBatch(batch, sequence), {})
        measured[layers] = entry.number() * _MILLISECOND
    return {batch: _fitted(top, batch, measured) for batch, measured in points.items()}


def load_all_reduce_bandwidths(path: PathLike) -> dict[GalvatronGroup, float]:
    """Reads `allreduce_bandwidth_*.json`: bytes/s by group.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    bandwidths = {}
    for key, entry in Entry.from_json(path).items():
        count, consecutive = _matched(_ALL_REDUCE, key, entry).groups()
        group = GalvatronGroup(int(count), consecutive == "1")
        bandwidths[group] = entry.number(above=True) * _GIGABYTE
    return bandwidths


def load_point_to_point_bandwidths(path: PathLike) -> dict[int, float]:
    """Reads `p2p_bandwidth_*.json`: bytes/s by number of pipeline stages.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    return {
        int(_matched(_POINT_TO_POINT, key, entry)[1]): entry.number(above=True) * _GIGABYTE
        for key, entry in Entry.from_json(path).items()
    }


def _matched(pattern: re.Pattern[str], key: str, entry: Entry) -> re.Match[str]:
    found = pattern.fullmatch(key)
    if found is None:
        entry.fail(f"expected a key of the form {pattern.pattern}")
    return found


def _fitted(top: Entry, batch: GalvatronBatch, seconds: dict[int, float]) -> GalvatronForward:
    """The least-squares line over the number of layers."""
    if len(seconds) < 2:
        top.fail(
            f"batch size {batch.batch_size}, sequence length {batch.sequence_length}: one number "
            "of layers gives no time for one layer"
        )
    middle = sum(seconds) / len(seconds)
    average = sum(seconds.values()) / len(seconds)
    rise = sum((layers - middle) * value for layers, value in seconds.items())
    layer_s = rise / sum((layers - middle) ** 2 for layers in seconds)
    return GalvatronForward(layer_s, average - layer_s * middle)
