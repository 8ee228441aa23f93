"""From rows to what the tables say: of each planner, of `auto` beside all others."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
AUTO = "auto"
# Equal step times: two sums in another order, and what nobody measures.
EXACTLY, NEARLY = 1e-9, 1e-3
# A bound is found to this share of itself.
BOUND_ROUNDING = 1e-6
_NAME_LENGTH = 20


def best_s(rows: Iterable[Row]) -> dict[str, float]:
    """The shortest simulated step that any planner found, by problem."""
    found: dict[str, float] = {}
    for row in rows:
        if row["step_time_s"] is not None:
            before = found.get(row["problem"], math.inf)
            found[row["problem"]] = min(before, row["step_time_s"])
    return found


def with_scores(rows: Sequence[Row]) -> list[Row]:
    """The rows with the step over the best, the gap to the largest bound, and the own error."""
    least, bounds = best_s(rows), dict[str, float]()
    for row in rows:
        bound_s = row.get("bound_s")
        if bound_s:
            bounds[row["problem"]] = max(bounds.get(row["problem"], 0.0), bound_s)
    return [_scored(row, least, bounds) for row in rows]


def _scored(row: Row, least: Mapping[str, float], bounds: Mapping[str, float]) -> Row:
    step_s, predicted_s = row["step_time_s"], row.get("predicted_s")
    if step_s is None:
        return {**row, "over_best": None, "gap": None, "predicted_over_simulated": None}
    bound_s = bounds.get(row["problem"]) if row.get("is_bounded") else None
    return {
        **row,
        "over_best": step_s / least[row["problem"]],
        "gap": None if bound_s is None else step_s / bound_s - 1,
        "predicted_over_simulated": None if predicted_s is None else predicted_s / step_s,
    }


def planner_row(name: str, rows: Sequence[Row]) -> Row:
    """One planner on all problems: how far from the best known, how often not at all, how long.

    Args:
        name: The planner's.
        rows: Its rows, with scores.
    """
    found = [row for row in rows if row["step_time_s"] is not None]
    over = [row["over_best"] for row in found]
    ratios = [r for row in found if (r := row["predicted_over_simulated"]) is not None]
    gaps = [row["gap"] for row in found if row["gap"] is not None]
    spent = [row["cpu_s"] for row in rows]
    return {
        "planner": name,
        "over_best_median": _median(over),
        "over_best_p95": percentile(over, 0.95),
        "best_or_equal": sum(each <= 1 + NEARLY for each in over),
        "no_answer_share": 1 - len(found) / len(rows) if rows else math.nan,
        "cpu_s_median": _median(spent),
        "cpu_s_max": max(spent, default=math.nan),
        "predicted_over_simulated": _median(ratios),
        "gap_median": _median(gaps),
        "gap_p95": percentile(gaps, 0.95),
        "reasons": reasons_text(rows),
    }


def family_rows(names: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """The median over the best known, by family; and of how many problems of it."""
    families = dict.fromkeys(row["family"] for row in rows)
    table = []
    for name in names:
        entry: Row = {"planner": name}
        for family in families:
            own = [r for r in rows if (r["planner"], r["family"]) == (name, family)]
            found = [row["over_best"] for row in own if row["over_best"] is not None]
            part = "" if len(found) == len(own) else f" ({len(found)} of {len(own)})"
            entry[family] = f"{statistics.median(found):.3f}{part}" if found else "none"
        table.append(entry)
    return table


def reasons_text(rows: Iterable[Row]) -> str:
    """Why there was no plan, the most frequent first; without details."""
    counts = Counter(_short(row["reason"]) for row in rows if row["step_time_s"] is None)
    return "; ".join(f"{number} x {reason}" for reason, number in counts.most_common(3))


def _short(reason: str) -> str:
    """What problems have in common: the part in front of details, without its numbers."""
    for mark in ("; ", " ("):
        reason = reason.partition(mark)[0]
    head = reason.partition(": ")[0]
    # Where little stands in front of a colon, it is a name.
    common = head if len(head) >= _NAME_LENGTH else reason
    return re.sub(r"\b\d[\d.,]*(e[+-]?\d+)?", "n", common)[:90]


def auto_summary(rows: Sequence[Row]) -> Row:
    """Of `auto` beside all others, on the problems that anybody answered.

    A problem that others answer and `auto` does not counts as beaten, with a ratio of inf.
    """
    least = best_s(rows)
    auto = {row["problem"]: row for row in rows if row["planner"] == AUTO}
    others = [row for row in rows if row["planner"] != AUTO and row["problem"] in auto]
    ratios = {
        problem: (auto[problem]["step_time_s"] or math.inf) / shortest_s
        for problem, shortest_s in least.items()
        if problem in auto
    }
    slowest = {
        problem: max((r["cpu_s"] for r in others if r["problem"] == problem), default=0.0)
        for problem in auto
    }
    gaps = [row["gap"] for row in auto.values() if row["gap"] is not None]
    spent = {problem: row["cpu_s"] for problem, row in auto.items()}
    return {
        "problems": len(ratios),
        "auto_at_or_below_all": sum(ratio <= 1 + EXACTLY for ratio in ratios.values()),
        "auto_within_0.1_percent": sum(ratio <= 1 + NEARLY for ratio in ratios.values()),
        "auto_worst_over_best": max(ratios.values(), default=math.nan),
        "auto_cpu_s_median": _median(spent.values()),
        "auto_cpu_s_max": max(spent.values(), default=math.nan),
        "slowest_other_cpu_s_median": _median(slowest.values()),
        "slowest_other_cpu_s_max": max(slowest.values(), default=math.nan),
        "auto_no_slower_than_slowest_other": sum(
            spent[problem] <= slowest[problem] for problem in spent
        ),
        "auto_gap_median": _median(gaps),
        "auto_gap_p95": percentile(gaps, 0.95),
        "auto_proven": sum(gap <= BOUND_ROUNDING for gap in gaps),
        "plans_below_a_bound": sum((row["gap"] or 0.0) < -BOUND_ROUNDING for row in rows),
    }


def beaten_rows(rows: Sequence[Row]) -> list[Row]:
    """Problems on which somebody is ahead of `auto`, the worst first, with all who are."""
    auto = {row["problem"]: row for row in rows if row["planner"] == AUTO}
    table = []
    for problem, own in auto.items():
        own_s = own["step_time_s"] or math.inf
        ahead = sorted(
            (row["step_time_s"], row["planner"])
            for row in rows
            if row["problem"] == problem
            and row["step_time_s"] is not None
            and row["step_time_s"] * (1 + EXACTLY) < own_s
        )
        if ahead:
            table.append(
                {
                    "problem": problem,
                    "what": own["what"],
                    "auto_over_best": own_s / ahead[0][0],
                    "ahead": ", ".join(name for _, name in ahead),
                }
            )
    return sorted(table, key=lambda row: -row["auto_over_best"])


def percentile(values: Iterable[float], share: float) -> float:
    """The value that so large a share of all are not above; nan of none."""
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1] if ordered else math.nan


def _median(values: Iterable[float]) -> float:
    known = list(values)
    return statistics.median(known) if known else math.nan
