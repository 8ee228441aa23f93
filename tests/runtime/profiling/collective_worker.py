"""One of four processes: every collective on parts of 1, 2, 3 and 4; rank 0 writes what all got."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from heterps_runtime.profiling.collectives import (
    Parts,
    all_reduce,
    all_to_all,
    grouped_gather,
    grouped_scatter,
    padded_gather,
    padded_scatter,
)
from heterps_runtime.transport.communication import Communicator

SIZES = (1, 2, 3, 4)


def main(arguments: list[str]) -> int:
    communicator = Communicator()
    ranks = tuple(range(communicator.world_size))
    group = communicator.groups([ranks])[ranks]
    parts = Parts(SIZES, communicator.rank, group, ranks)
    whole = torch.arange(10.0)
    own = parts.split(whole)[communicator.rank]
    terms = whole * (communicator.rank + 1)
    rows = torch.split(torch.arange(100.0).view(10, 10), list(SIZES))[communicator.rank]
    found = {
        "all-reduce": all_reduce(terms.clone(), parts),
        "all-gather": padded_gather(own, parts),
        "grouped all-gather": grouped_gather(own, parts),
        "reduce-scatter": padded_scatter(terms, parts),
        "grouped reduce-scatter": grouped_scatter(terms.clone(), parts),
        "all-to-all": all_to_all(rows.reshape(-1), parts),
    }
    gathered = communicator.gather({n: v.tolist() for n, v in found.items()}, dict[str, list])  # type: ignore[type-arg]
    if communicator.rank == 0:
        (Path(arguments[0]) / "found.json").write_text(json.dumps(gathered))
    communicator.close()
    return 0
