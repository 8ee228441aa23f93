"""Gap over CPU time, one curve for each method."""

from __future__ import annotations

import math

from matplotlib.figure import Figure

from benchmarks.agent.section import Row, TableRows

# Smaller gaps are drawn here: a logarithmic axis has no zero. Larger ones, and infinite ones, at
# the top.
LEAST_GAP, LARGEST_GAP = 1e-4, 10.0
MARKERS = "osD^v<>PX*hp"


def gap_figure(table: TableRows) -> Figure:
    """Median and 95th percentile of a table's gaps over CPU milliseconds, both logarithmic."""
    figure = Figure(figsize=(12, 5), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, column, title in zip(
        axes, ("gap_median", "gap_p95"), ("median", "95th percentile"), strict=True
    ):
        for number, (method, rows) in enumerate(_by_method(table.rows)):
            points = sorted((row["cpu_ms"], _drawn(row[column])) for row in rows)
            axis.plot(
                *zip(*points, strict=True),
                marker=MARKERS[number % len(MARKERS)],
                label=method,
                color=f"C{number % 10}",
                linewidth=2.5 if method.startswith("policy") else 1.2,
            )
        axis.set(
            xscale="log", yscale="log", ylim=(LEAST_GAP / 1.5, LARGEST_GAP * 1.5),
            xlabel="CPU milliseconds per problem", title=f"gap, {title}",
        )  # fmt: skip
        axis.axhline(1e-3, color="grey", linestyle=":", linewidth=1)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("gap (dotted: counts as optimal)")
    ticks = [1e-4, 1e-3, 1e-2, 1e-1, 1, 10]
    axes[0].set_yticks(ticks, ["0.01 % or less", "0.1 %", "1 %", "10 %", "100 %", "1000 % or none"])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=9)
    figure.suptitle(table.title)
    return figure


def family(method: str) -> str:
    """What a curve is drawn for: a method, all decodings of a policy, or all its efforts."""
    name, _, effort = method.partition(", ")
    return f"{name}, efforts" if effort.startswith("effort") else name


def _by_method(rows: list[Row]) -> list[tuple[str, list[Row]]]:
    """Rows of each family, in the order of the table."""
    families: dict[str, list[Row]] = {}
    for row in rows:
        families.setdefault(family(row["method"]), []).append(row)
    return list(families.items())


def _drawn(gap: float) -> float:
    return LARGEST_GAP if math.isnan(gap) else min(max(gap, LEAST_GAP), LARGEST_GAP)
