"""What a folder of published workloads says of cards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from heterps.calibration.cephalo_blocks import CEPHALO, cephalo_samples
from heterps.calibration.sailor_blocks import SAILOR, sailor_samples
from heterps_configs.errors import HeterpsError
from heterps_envs.card_times.fit import CardSample


class _Source(NamedTuple):
    """A file that may be in a folder.

    Attributes:
        path: Below the folder.
        words: What it is, who published it, under which licence.
        read: All samples of a folder that has it.
    """

    path: Path
    words: str
    read: Callable[[Path], Iterable[CardSample]]


_SOURCES = (
    _Source(
        CEPHALO,
        "benson-guo/cephalo (MIT), data/model_latencies.json: transformer blocks, forward and "
        "backward",
        cephalo_samples,
    ),
    _Source(
        SAILOR,
        "eth-easl/sailor (MIT), Planner/simulations/profiles_tmp.json: transformer blocks in "
        "float32 and TF32, forward and backward",
        sailor_samples,
    ),
)


class PublishedSamples(NamedTuple):
    """What was found.

    Attributes:
        sources: In words.
    """

    samples: Sequence[CardSample]
    sources: Sequence[str]


def published_samples(folder: Path) -> PublishedSamples:
    """All samples in a folder of published workloads.

    Raises:
        HeterpsError: The folder has none, or a file is malformed.
    """
    found = [source for source in _SOURCES if (folder / source.path).is_file()]
    if not found:
        names = " nor ".join(str(source.path) for source in _SOURCES)
        raise HeterpsError(f"--workloads: {folder} has neither {names}")
    samples = [sample for source in found for sample in _read(source, folder)]
    return PublishedSamples(samples, [source.words for source in found])


def _read(source: _Source, folder: Path) -> list[CardSample]:
    samples = list(source.read(folder))
    if not samples:
        raise HeterpsError(
            f"--workloads: {folder / source.path}: has no block times of known cards"
        )
    return samples
