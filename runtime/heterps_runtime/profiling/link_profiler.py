"""Measures links and collectives of the processes of this host, and how they disturb each other.

A link is fitted as `latency + bytes / bandwidth` to the median time of each message size: least
squares of the relative errors, so that small messages count as much as large ones.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Collective, CollectiveKind, Link
from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.numbers import LEAST_BYTES_PER_S, MOST_BYTES_PER_S
from heterps_runtime.profiling.host_worker import (
    NUM_MESSAGES,
    NUM_ROUNDS,
    PHASE_S,
    RESULT_FILE,
)
from heterps_runtime.run.launcher import run_ranks

TIMEOUT_S = 180.0


@dataclass(frozen=True)
class MeasuredLink:
    """One direction between two ranks.

    Attributes:
        seconds: Median one-way seconds by bytes of the message.
        spread: Interquartile range over the median, the largest of the message sizes.
        link: The fit.
        residual: Mean absolute relative error of the fit over the message sizes.
    """

    source: int
    destination: int
    seconds: dict[int, float]
    link: Link
    residual: float
    spread: float = 0.0


@dataclass(frozen=True)
class MeasuredCollective:
    """One kind of collective over some processes; the fit is to even and uneven parts together.

    Attributes:
        seconds: Median seconds for even and for uneven parts, by the bytes that count.
        collective: The fit.
        residuals: Mean absolute relative error of the fit for even and for uneven parts.
    """

    seconds: dict[str, dict[int, float]]
    collective: Collective
    residuals: dict[str, float]


@dataclass(frozen=True)
class Together:
    """How much slower each of k processes computes one kind of layer while k of them do.

    Attributes:
        factors: For k = 1, 2, ...
        spreads: Interquartile range of each factor over its rounds.
    """

    factors: tuple[float, ...]
    spreads: tuple[float, ...]


@dataclass(frozen=True)
class MeasuredHost:
    """What the processes of one host measured.

    Attributes:
        links: Every ordered pair of ranks.
        together: By kind of layer.
        steps_together: By kind of optimizer, of its step.
        collectives: Each kind over the first 2, 3, .. processes.
    """

    links: tuple[MeasuredLink, ...]
    together: dict[str, Together]
    steps_together: dict[Optimizer, Together] = field(default_factory=dict)
    collectives: tuple[MeasuredCollective, ...] = ()

    def node_links(self) -> tuple[Link, Link | None]:
        """One link between any two of them: to processes of higher rank, and to lower ones.

        The second is None where the two directions do not differ by more than their messages do
        among themselves: both are then one.
        """
        up = [link for link in self.links if link.source < link.destination]
        down = [link for link in self.links if link.source > link.destination]
        if not up or not down or not _differ(up, down):
            return _fit_of(self.links), None
        return _fit_of(up), _fit_of(down)

    def slowdown_together(self) -> tuple[float, ...]:
        """The median over the kinds of layers; never below 1, never falling."""
        return _medians_of_factors(self.together.values())

    def optimizer_slowdown_together(self) -> dict[Optimizer, tuple[float, ...]]:
        """The same for the step of each kind of optimizer."""
        return {name: _medians_of_factors([found]) for name, found in self.steps_together.items()}


def _medians_of_factors(together: Iterable[Together]) -> tuple[float, ...]:
    rows = zip(*(entry.factors for entry in together), strict=True)
    medians = [max(statistics.median(row), 1.0) for row in rows]
    return tuple(float(f"{v:.4g}") for v in np.maximum.accumulate(medians))


def _fit_of(links: Sequence[MeasuredLink]) -> Link:
    """The fit of the medians over some links."""
    return fit_link(_medians(links))[0]


def _medians(links: Sequence[MeasuredLink]) -> dict[int, float]:
    return {
        size: statistics.median(link.seconds[size] for link in links) for size in links[0].seconds
    }


def _differ(up: Sequence[MeasuredLink], down: Sequence[MeasuredLink]) -> bool:
    """Whether one direction is slower for every message size, by more than the spread."""
    there, back = _medians(up), _medians(down)
    spread = max(link.spread for link in (*up, *down))
    ratios = [there[size] / back[size] for size in there]
    return min(ratios) > 1 + spread or 1 / max(ratios) > 1 + spread


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
    # (A fit over a few noisy times may be faster than any link.)
    per_byte = float(np.clip(per_byte, 1 / MOST_BYTES_PER_S, 1 / LEAST_BYTES_PER_S))
    link = Link(
        latency_s=float(f"{latency:.4g}"), bandwidth_bytes_per_s=float(f"{1 / per_byte:.4g}")
    )
    errors = [abs(link.transfer_s(size) / took - 1) for size, took in seconds.items()]
    return link, float(np.mean(errors))


def measure_host(
    num_processes: int,
    directory: Path | None = None,
    num_rounds: int = NUM_ROUNDS,
    phase_s: float = PHASE_S,
    num_messages: int = NUM_MESSAGES,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> MeasuredHost:
    """Starts processes that measure their links and their disturbance; about half a minute.

    Args:
        num_processes: At least 2.
        directory: Where log and results are left; by default a temporary one.
        num_rounds: How often processes compute side by side, and alone; at least 2.
        phase_s: Seconds of each time; a call is measured at least once.
        num_messages: Of each size and direction; at least 2.
        progress: Called with (done, total, what is measured next), and at the end.

    Raises:
        HeterpsError: A process failed or did not end in time.
    """
    assert num_processes >= 2
    assert num_rounds >= 2
    assert num_messages >= 2
    with tempfile.TemporaryDirectory() as temporary:
        folder = directory or Path(temporary)
        module = "heterps_runtime.profiling.host_worker"
        arguments = [str(number) for number in (num_rounds, phase_s, num_messages)]
        total = 0

        def show(line: dict[str, Any]) -> None:
            nonlocal total
            total = line["total"]
            progress(line["done"], total, line["text"])

        run_ranks(module, num_processes, folder, TIMEOUT_S, arguments, show)
        progress(total, total, "")
        content = json.loads((folder / RESULT_FILE).read_text())
    return MeasuredHost(
        links=tuple(
            _measured_link(entry["source"], entry["destination"], entry["seconds"])
            for entry in content["links"]
        ),
        together={name: _together(rounds) for name, rounds in content["together"].items()},
        steps_together={
            name: _together(rounds) for name, rounds in content["steps_together"].items()
        },
        collectives=tuple(
            fit_collective(entry["kind"], entry["devices"], entry["seconds"])
            for entry in content["collectives"]
        ),
    )


def fit_collective(
    kind: CollectiveKind, devices: int, seconds: Mapping[str, Mapping[str, Sequence[float]]]
) -> MeasuredCollective:
    """Latency and bandwidth of a collective.

    Args:
        kind: What it does.
        devices: How many processes took part.
        seconds: For even and uneven parts, by the bytes that count: samples.
    """
    found = {
        parts: {int(size): statistics.median(samples) for size, samples in by_size.items()}
        for parts, by_size in seconds.items()
    }
    sizes = dict.fromkeys(size for by_size in found.values() for size in by_size)
    link, _ = fit_link(
        {size: statistics.mean(s[size] for s in found.values() if size in s) for size in sizes}
    )
    errors = {
        parts: float(np.mean([abs(link.transfer_s(n) / took - 1) for n, took in by_size.items()]))
        for parts, by_size in found.items()
    }
    fitted = Collective(kind=kind, devices=devices, **link.model_dump())
    return MeasuredCollective(found, fitted, errors)


def _measured_link(
    source: int, destination: int, seconds: Mapping[str, Sequence[float]]
) -> MeasuredLink:
    medians = {int(size): statistics.median(values) for size, values in seconds.items()}
    spread = max(_range(values) / statistics.median(values) for values in seconds.values())
    link, residual = fit_link(medians)
    return MeasuredLink(source, destination, medians, link, residual, spread)


def _together(rounds: Sequence[Sequence[float]]) -> Together:
    """Medians and spreads over the rounds, for 2, 3, ... processes; alone it is 1."""
    return Together(
        factors=(1.0, *(statistics.median(ratios) for ratios in rounds)),
        spreads=(0.0, *(_range(ratios) for ratios in rounds)),
    )


def _range(values: Sequence[float]) -> float:
    """The interquartile range."""
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
