"""Measures the links between the processes of this host, and how they disturb each other.

A link is fitted as `latency + bytes / bandwidth` to the median time of each message size: least
squares of the relative errors, so that small messages count as much as large ones.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from heterps_configs.cluster import Link
from heterps_runtime.host_worker import RESULT_FILE
from heterps_runtime.launcher import Workers, torchrun_command

TIMEOUT_S = 180.0


@dataclass(frozen=True)
class MeasuredLink:
    """One direction between two ranks.

    Attributes:
        seconds: Median one-way seconds by bytes of the message.
        link: The fit.
        residual: Mean absolute relative error of the fit over the message sizes.
    """

    source: int
    destination: int
    seconds: dict[int, float]
    link: Link
    residual: float


@dataclass(frozen=True)
class MeasuredHost:
    """What the processes of one host measured.

    Attributes:
        links: Every ordered pair of ranks.
        slowdowns: For a compute-bound and a memory-bound layer, how much slower each of k
            processes computes while k of them do, for k = 1, 2, ...
    """

    links: tuple[MeasuredLink, ...]
    slowdowns: dict[str, tuple[float, ...]]

    def typical_link(self) -> Link:
        """One link for any two of them: the fit of the medians over all directions."""
        sizes = self.links[0].seconds
        return fit_link(
            {size: statistics.median(link.seconds[size] for link in self.links) for size in sizes}
        )[0]

    def slowdown_together(self) -> tuple[float, ...]:
        """The geometric mean of both layers; never below 1, never falling."""
        means = [
            statistics.geometric_mean(row) for row in zip(*self.slowdowns.values(), strict=True)
        ]
        return tuple(float(f"{v:.4g}") for v in np.maximum.accumulate(np.maximum(means, 1.0)))


def fit_link(seconds: Mapping[int, float]) -> tuple[Link, float]:
    """Latency and bandwidth from seconds by message size.

    Args:
        seconds: At least two sizes; all above 0.

    Returns:
        The link, and the mean absolute relative error of its times.
    """
    assert len(seconds) >= 2
    sizes, times = np.array(list(seconds), float), np.array(list(seconds.values()))
    weighted = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    latency, per_byte = np.linalg.lstsq(weighted, np.ones_like(times), rcond=None)[0]
    if latency < 0 or per_byte <= 0:
        # No physical fit: the fastest message is all latency, the largest gives the bandwidth.
        latency = times.min()
        per_byte = max(times[sizes.argmax()] - latency, 1e-12) / sizes.max()
    link = Link(
        latency_s=float(f"{latency:.4g}"), bandwidth_bytes_per_s=float(f"{1 / per_byte:.4g}")
    )
    errors = [abs(link.transfer_s(size) / took - 1) for size, took in seconds.items()]
    return link, float(np.mean(errors))


def measure_host(num_processes: int, directory: Path | None = None) -> MeasuredHost:
    """Starts processes that measure their links and their disturbance; about ten seconds.

    Args:
        num_processes: At least 2.
        directory: Where log and results are left; by default a temporary one.

    Raises:
        HeterpsError: A process failed or did not end in time.
    """
    assert num_processes >= 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = directory or Path(temporary)
        command = torchrun_command(folder, num_processes, module="heterps_runtime.host_worker")
        with Workers(command, folder) as workers:
            workers.wait(lambda line: None, lambda: None, TIMEOUT_S)
        content = json.loads((folder / RESULT_FILE).read_text())
    return MeasuredHost(
        links=tuple(
            _measured_link(entry["source"], entry["destination"], entry["seconds"])
            for entry in content["links"]
        ),
        slowdowns={name: tuple(values) for name, values in content["slowdowns"].items()},
    )


def _measured_link(
    source: int, destination: int, seconds: Mapping[str, Sequence[float]]
) -> MeasuredLink:
    medians = {int(size): statistics.median(values) for size, values in seconds.items()}
    link, residual = fit_link(medians)
    return MeasuredLink(source, destination, medians, link, residual)
