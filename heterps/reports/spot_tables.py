"""What the strategies made of a spot trace: figures, a table and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from heterps.online.spot_strategies import FullPlans, ceiling_samples
from heterps.reports.console import percent_text
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem
from heterps_envs.spot.availability import SpotMoment, mean_available_devices, num_changes
from heterps_envs.spot.costs import CAUSES, SpotSettings
from heterps_envs.spot.records import SpotResult


@dataclass(frozen=True)
class SpotComparison:
    """All strategies on one trace.

    Attributes:
        ceiling_samples_per_s: With the best plan that was seen at every moment, and no second lost.
    """

    moments: tuple[SpotMoment, ...]
    duration_s: float
    num_devices: int
    ceiling_samples_per_s: float
    results: tuple[SpotResult, ...]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        losses, returns = num_changes(self.moments)
        return {
            "duration_s": self.duration_s,
            "losses": losses,
            "returns": returns,
            "mean_available_devices": mean_available_devices(self.moments, self.duration_s),
            "ceiling_samples_per_s": self.ceiling_samples_per_s,
            "strategies": [self._row(result) for result in self.results],
        }

    def _row(self, result: SpotResult) -> dict[str, Any]:
        return {
            "strategy": result.strategy,
            "goodput_samples_per_s": result.goodput_samples_per_s,
            "share_of_ceiling": self.share(result),
            "steps": result.steps,
            "samples": result.samples,
            "trained_s": result.trained_s,
            "lost_s": dict(result.lost_s),
            "cost_usd": result.cost_usd,
            "used_cost_usd": result.used_cost_usd,
            "usd_per_million_samples": result.usd_per_million_samples,
            "rules": dict(Counter(entry.rule for entry in result.recoveries)),
            "recoveries": [entry._asdict() for entry in result.recoveries],
        }

    def share(self, result: SpotResult) -> float:
        """Goodput over that of the ceiling."""
        ceiling = self.ceiling_samples_per_s
        return result.goodput_samples_per_s / ceiling if ceiling > 0 else 0.0


def compared(
    problem: Problem,
    moments: Sequence[SpotMoment],
    full: FullPlans,
    results: Sequence[SpotResult],
) -> SpotComparison:
    """Puts results beside their ceiling."""
    duration_s, batch = results[0].duration_s, problem.job.global_batch_size
    samples = ceiling_samples(full, moments, duration_s, batch)
    return SpotComparison(
        moments=tuple(moments),
        duration_s=duration_s,
        num_devices=len(problem.cluster.devices),
        ceiling_samples_per_s=samples / duration_s,
        results=tuple(results),
    )


def spot_table(found: SpotComparison) -> Table:
    """One column for each strategy: what it commits, pays and loses."""
    table = Table(title="spot trace, by strategy", title_justify="left", box=None)
    table.add_column("")
    for result in found.results:
        table.add_column(result.strategy, justify="right")
    rows = {
        "goodput, samples/s": [f"{r.goodput_samples_per_s:.5g}" for r in found.results],
        "of the ceiling": [percent_text(found.share(r), 1) for r in found.results],
        "USD": [f"{r.cost_usd:.4g}" for r in found.results],
        "USD of used devices": [f"{r.used_cost_usd:.4g}" for r in found.results],
        "USD per million samples": [_price(r) for r in found.results],
        "changes after losses": [
            str(sum(not e.is_join for e in r.recoveries)) for r in found.results
        ],
        "devices taken in": [str(sum(e.is_join for e in r.recoveries)) for r in found.results],
        "read from storage": [
            bytes_text(sum(e.storage_bytes for e in r.recoveries)) for r in found.results
        ],
        "moved between devices": [
            bytes_text(sum(e.live_bytes for e in r.recoveries)) for r in found.results
        ],
        **{
            f"s lost: {cause}": [f"{r.lost_s[cause]:.1f}" for r in found.results]
            for cause in CAUSES
        },
        "s lost": [f"{sum(r.lost_s.values()):.1f}" for r in found.results],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _price(result: SpotResult) -> str:
    price = result.usd_per_million_samples
    return "-" if price is None else f"{price:.4g}"


def spot_lines(found: SpotComparison, settings: SpotSettings) -> Iterator[str]:
    """The trace, the ceiling, and what was assumed."""
    losses, returns = num_changes(found.moments)
    mean = mean_available_devices(found.moments, found.duration_s)
    yield (
        f"trace     {found.duration_s / 3600:.4g} h, {losses} losses, {returns} returns, "
        f"{mean:.1f} of {found.num_devices} devices on average"
    )
    yield (
        f"ceiling   {found.ceiling_samples_per_s:.5g} samples/s: the best plan seen at every "
        "moment, no second lost"
    )
    yield (
        f"assumed   detection {settings.detection_s:g} s, restart {settings.restart_s:g} s, "
        f"planning {settings.planning_s:g} s, change in place {settings.overhead_s:g} s, "
        f"storage {settings.storage_bytes_per_s / 1e9:g} GB/s to a node, "
        f"a checkpoint every {settings.checkpoint_every_s:g} s, "
        f"horizon {settings.horizon_s:g} s"
    )
    yield "steps     as simulated; nothing here was measured"
