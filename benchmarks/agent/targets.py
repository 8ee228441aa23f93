"""What the agent is asked to reach, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.agent.outputs import shown
from benchmarks.agent.section import Row, SectionResult, TableRows

NORMAL, HIGH = "policy, effort normal", "policy, effort high"
NO_SWEEP = "without the exact solver's sweep"
# A gap or a share that is asked to be zero is below this.
ZERO = 1e-3


class Target(NamedTuple):
    """A number of one line of one table that must not be above a limit.

    Attributes:
        what: In words.
        section, table: Where the line stands.
        line: Method and budget, as in `Entry.name`.
        column: The number.
        limit: Largest value; where `column` is `optimal`, the smallest.
    """

    what: str
    section: str
    table: str
    line: str
    column: str
    limit: float


def _chain(what: str, table: str, line: str, **limits: float) -> list[Target]:
    return [Target(what, "chains", table, line, column, limit) for column, limit in limits.items()]


TARGETS = [
    *_chain(
        "chains in range, beam 16 (effort normal)", "in-range", NORMAL,
        gap_median=ZERO, gap_mean=3e-3, gap_p95=2e-3, cpu_ms=5.0,
    ),
    *_chain("the same, beam 256 (effort high)", "in-range", HIGH, optimal=0.99, cpu_ms=15.0),
    # What of it the policy and its own search do, and what the exact solver behind them.
    *_chain(f"effort normal, {NO_SWEEP}", "in-range", f"{NORMAL}, no sweep", gap_p95=2e-3),
    *_chain(f"effort high, {NO_SWEEP}", "in-range", f"{HIGH}, no sweep", optimal=0.99),
    *_chain("greedy only", "in-range", "policy, greedy", gap_median=ZERO, gap_p95=0.08),
    *_chain("3 x longer chains, effort high", "longer", HIGH, gap_p95=2e-3),
    *_chain("unseen numbers of classes, effort high", "more-types", HIGH, gap_p95=2e-3),
    *_chain("beyond exact, effort high", "beyond-exact", HIGH, infeasible=0.0),
    Target(
        "graphs, 16 samples against earliest finish", "graphs", "in-range", "policy, 16 samples",
        "over earliest finish", -0.15,
    ),
    Target(
        "larger graphs, policy + annealing", "graphs", "larger", "policy + annealing, normal",
        "gap_mean", 0.015,
    ),
]  # fmt: skip


def targets_table(results: Mapping[str, SectionResult]) -> TableRows | None:
    """The numbers that the finished sections have; None where they have none of them."""
    rows = [_judged(target, results) for target in TARGETS]
    rows += [*_beyond_exact(results), *_graphs_against_annealing(results), *_training(results)]
    found = [row for row in rows if row is not None]
    note = "Of the tables below. *met* is about this run, on these problems and this machine."
    return (
        TableRows("targets", "What is asked for, and what was measured", note, found)
        if found
        else None
    )


def _row(what: str, asked: str, measured: str, is_met: bool) -> Row:
    return {
        "what": what,
        "must reach": asked,
        "measured": measured,
        "met": "yes" if is_met else "no",
    }


def _judged(target: Target, results: Mapping[str, SectionResult]) -> Row | None:
    line = _line(results, target.section, target.table, target.line)
    if line is None or target.column not in line:
        return None
    value, name = line[target.column], target.column.removeprefix("gap_").replace("_", " ")
    is_share = target.column == "optimal"
    is_met = value >= target.limit if is_share else value <= target.limit
    asked = f"{name} {'at least' if is_share else 'at most'} {shown(target.column, target.limit)}"
    return _row(target.what, asked, shown(target.column, value), is_met)


def _tables(results: Mapping[str, SectionResult], section: str) -> list[TableRows]:
    return results[section].tables if section in results else []


def _line(results: Mapping[str, SectionResult], section: str, table: str, name: str) -> Row | None:
    for found in _tables(results, section):
        for row in found.rows if found.name == table else []:
            if name in (row.get("method"), f"{row.get('method')}, {row.get('budget')}"):
                return row
    return None


def _beyond_exact(results: Mapping[str, SectionResult]) -> Iterator[Row]:
    """At equal CPU, better than every baseline in median and 95th percentile."""
    ours = _line(results, "chains", "beyond-exact", HIGH)
    rows = [r for t in _tables(results, "chains") if t.name == "beyond-exact" for r in t.rows]
    others = [row for row in rows if row["budget"] == "CPU of effort high"]
    if ours is None or not others:
        return
    for column in ("gap_median", "gap_p95"):
        best = min(others, key=lambda row: float(row[column]))
        yield _row(
            "beyond exact, equal CPU, effort high",
            f"{column.removeprefix('gap_')} below every search's: {best['method']} "
            f"{shown(column, best[column])}",
            shown(column, ours[column]),
            ours[column] < best[column] or ours[column] < ZERO,
        )


def _graphs_against_annealing(results: Mapping[str, SectionResult]) -> Iterator[Row]:
    """16 samples against 1,000 evaluations; on larger graphs at most half of annealing's gap."""
    samples = _line(results, "graphs", "in-range", "policy, 16 samples")
    search = _line(results, "graphs", "in-range", "annealing, 1,000 evaluations")
    if samples and search:
        gap, other = samples["gap_mean"], search["gap_mean"]
        asked = f"mean below annealing's of 1,000 evaluations: {shown('gap_mean', other)}"
        yield _row("graphs in range, 16 samples", asked, shown("gap_mean", gap), gap < other)
    both = _line(results, "graphs", "larger", "policy + annealing, normal")
    alone = _line(results, "graphs", "larger", "annealing, CPU of normal")
    if both and alone:
        gap, other = both["gap_mean"], alone["gap_mean"]
        asked = f"mean at most half of annealing's at equal CPU: {shown('gap_mean', other)}"
        yield _row(
            "the same, against annealing alone", asked, shown("gap_mean", gap), gap <= other / 2
        )


def _training(results: Mapping[str, SectionResult]) -> Iterator[Row]:
    """CPU seconds to the milestones, the environment's share, and the worst seed's medians."""
    for table in _tables(results, "training"):
        runs = [row for row in table.rows if table.name == "runs" and row["seed"] != "spread"]
        columns = [name for name in (runs[0] if runs else {}) if name.startswith("cpu_s until")]
        limits = dict(zip(columns, (26.0, 150.0), strict=False)) | {"environment_share": 0.05}
        for column, limit in limits.items():
            values = [row[column] for row in runs if row[column] != ""]
            if values:
                worst = max(math.inf if value == "never" else float(value) for value in values)
                text = "never" if math.isinf(worst) else shown(column, worst)
                asked = f"at most {shown(column, limit)}"
                yield _row(
                    f"training, worst seed: {column.replace('_', ' ')}", asked, text, worst <= limit
                )
        seeds = [row for row in table.rows if table.name == "seeds" and row["set"] == "in-range"]
        for effort in dict.fromkeys(row["effort"] for row in seeds):
            median = max(float(row["gap_median"]) for row in seeds if row["effort"] == effort)
            what = f"shipped seeds, worst, effort {effort}"
            yield _row(what, "median 0", shown("gap_median", median), median < ZERO)
    for decoding in ("policy, greedy", NORMAL):
        for count in range(2, 10):
            line = _line(results, "training", "in-range", f"{decoding}, worst of {count}")
            if line is not None:
                text = shown("gap_median", line["gap_median"])
                yield _row(
                    f"worst of {count} seeds, {decoding}",
                    "median 0",
                    text,
                    line["gap_median"] < ZERO,
                )
