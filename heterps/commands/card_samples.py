"""Published block times of a folder as samples for the calibration of cards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heterps.commands.published_blocks import traced_block
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.cephalo import BLOCKS, BlockTimes, load_block_times
from heterps_envs.card_times.fit import CardSample
from heterps_envs.card_times.work import card_work

CEPHALO = Path("cephalo") / "model_latencies.json"
SOURCES = (
    "benson-guo/cephalo (MIT), data/model_latencies.json: transformer blocks, forward and backward",
)


def published_samples(folder: Path) -> list[CardSample]:
    """All samples in a folder of published workloads.

    Raises:
        HeterpsError: The folder has none, or a file is malformed.
    """
    path = folder / CEPHALO
    if not path.is_file():
        raise HeterpsError(f"--workloads: {folder} has no {CEPHALO}")
    return [sample for times in load_block_times(path) for sample in block_samples(times)]


def block_samples(times: BlockTimes) -> Iterator[CardSample]:
    """The samples of one table."""
    entry = device_type_named(times.gpu)
    profile = traced_block(BLOCKS[times.model], times.sequence_length, times.dtype)
    for size, forward_s, backward_s in zip(
        times.micro_batch_sizes, times.forward_s, times.backward_s, strict=True
    ):
        job = Job(global_batch_size=size, micro_batch_size=size, dtype=times.dtype)
        work = card_work(profile.layers, profile.activation_scale(job.dtype), entry, job)
        yield CardSample(
            entry,
            times.model,
            f"{times.model} {times.gpu} {times.sequence_length} {times.dtype}",
            work.units,
            work.forward[0],
            work.backward[0],
            (forward_s, backward_s),
            times.is_line,
        )
