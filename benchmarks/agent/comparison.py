"""Methods on the same problems: every one in turn on each problem, under one kind of budget.

A section has a table of entries, a method and its budget each, and an independent cost of an
answer. All entries run on one problem before the next problem begins, so that a slow moment of the
machine falls on all of them. CPU seconds are this process's; sections run on one thread.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar

import numpy as np

from heterps_agents.interface.planner import Budget

Row = dict[str, Any]
Case = TypeVar("Case")
Answer = TypeVar("Answer")

# Within this of the reference an answer counts as optimal.
OPTIMAL = 1e-3
# A quick answer without a limit in time is measured so often, up to so many CPU seconds; the median
# counts.
REPEATS, REPEATED_UP_TO_S = 3, 0.05


@dataclass(frozen=True)
class Entry(Generic[Case, Answer]):
    """One line of a table: a method with its budget.

    Attributes:
        method: Name of the method.
        run: Answers a case within a budget; the last argument is the seed. None: nothing found.
        evaluations: Limit of the budget; None for no limit.
        cpu_of: Name of an entry above, whose CPU seconds on the same problem are the limit.
        cpu_divisor: Of these seconds one part of so many is.
        proves: An answer is the proven optimum, None says that the method gave up.
        first: Only so many problems of a set, for slow methods; None for all.
    """

    method: str
    run: Callable[[Case, Budget, int], Answer | None]
    evaluations: int | None = None
    cpu_of: str | None = None
    cpu_divisor: int = 1
    proves: bool = False
    first: int | None = None

    @property
    def budget(self) -> str:
        """The budget in words; empty where the method sets its own end."""
        if self.evaluations is not None:
            return f"{self.evaluations:,} evaluations"
        if self.cpu_of is None:
            return ""
        part = "" if self.cpu_divisor == 1 else f"1/{self.cpu_divisor} of the "
        return f"{part}CPU of {_short(self.cpu_of)}"

    @property
    def name(self) -> str:
        """Method and budget."""
        return f"{self.method}, {self.budget}" if self.budget else self.method


def _short(name: str) -> str:
    """The decoding or effort of a policy."""
    return name.partition(", ")[2] or name


class Measured(TypedDict):
    """What an entry did with one problem. `cost` is None where nothing usable was found."""

    cost: float | None
    cpu_s: float
    evaluations: int


def measure(
    entries: Sequence[Entry[Case, Answer]],
    case: Case,
    cost: Callable[[Case, Answer], float],
    seed: int,
) -> dict[str, Measured]:
    """All entries on one problem, one after another.

    Args:
        entries: Those that others take the CPU seconds of stand before them.
        case: The problem.
        cost: Cost of an answer, by the definition; inf where it may not be used.
        seed: Of all methods.
    """
    found: dict[str, Measured] = {}
    for entry in entries:
        whole_s = None if entry.cpu_of is None else found[entry.cpu_of]["cpu_s"]
        limit_s = None if whole_s is None else whole_s / entry.cpu_divisor
        found[entry.name] = _measured(entry, case, cost, seed, limit_s)
    return found


def _measured(
    entry: Entry[Case, Answer],
    case: Case,
    cost: Callable[[Case, Answer], float],
    seed: int,
    limit_s: float | None,
) -> Measured:
    seconds: list[float] = []
    while True:
        budget = Budget(evaluations=entry.evaluations, cpu_seconds=limit_s)
        start = time.process_time()
        answer = entry.run(case, budget, seed)
        seconds.append(time.process_time() - start)
        is_slow = sum(seconds) > REPEATED_UP_TO_S
        if limit_s is not None or is_slow or len(seconds) == REPEATS:
            break
    value = math.inf if answer is None else cost(case, answer)
    return Measured(
        cost=value if math.isfinite(value) else None,
        cpu_s=max(statistics.median(seconds), 1e-6),
        evaluations=budget.evaluations_used,
    )


class References(NamedTuple):
    """The costs that gaps are counted from.

    Attributes:
        cost: For each problem the proven optimum, else the best that any entry found; inf: none.
        is_proven: Whether it is the optimum.
    """

    cost: list[float]
    is_proven: list[bool]

    @classmethod
    def of(
        cls,
        measured: Sequence[Mapping[str, Measured]],
        entries: Sequence[Entry[Case, Answer]],
    ) -> References:
        """The references of all problems of a set."""
        proofs = [entry.name for entry in entries if entry.proves]
        costs, proven = [], []
        for row in measured:
            optimum = [row[name]["cost"] for name in proofs if name in row]
            is_proven = any(value is not None for value in optimum)
            known = [value for value in optimum if value is not None]
            if not is_proven:
                known = [m["cost"] for m in row.values() if m["cost"] is not None]
            costs.append(min(known, default=math.inf))
            proven.append(is_proven)
        return cls(costs, proven)

    @property
    def described(self) -> str:
        """What the gaps of a table are counted from, in one or two sentences."""
        found = [p for p, c in zip(self.is_proven, self.cost, strict=True) if math.isfinite(c)]
        total, proven, lost = len(found), sum(found), len(self.cost) - len(found)
        if proven == total:
            text = f"Gaps are against the exact optimum of all {total} problems."
        elif proven == 0:
            text = f"Gaps are against the best that any method of this table found ({total})."
        else:
            text = (
                f"Gaps are against the exact optimum of {proven} problems, and on the other "
                f"{total - proven} against the best that any method of this table found."
            )
        return text + (f" No method found a placement of {lost} more." if lost else "")


def summarise(
    measured: Sequence[Mapping[str, Measured]],
    entries: Sequence[Entry[Case, Answer]],
    against: str | None = None,
) -> list[Row]:
    """One row for each entry.

    `infeasible` counts the problems of which any entry found a placement, but this one did not;
    such a problem has an infinite gap in median and 95th percentile, and is left out of the mean.
    Both quantiles are values that occur, the lower one of two.

    Args:
        measured: Of each problem.
        entries: In the order of the table.
        against: Name of an entry; adds the mean of the cost over that entry's, minus 1.
    """
    references = References.of(measured, entries).cost
    rows = []
    for entry in entries:
        pairs = [
            (row[entry.name], reference, row)
            for row, reference in zip(measured, references, strict=True)
            if entry.name in row and math.isfinite(reference)
        ]
        if entry.proves:
            pairs = [pair for pair in pairs if pair[0]["cost"] is not None]
        if not pairs:
            continue
        gaps = np.array([_gap(found["cost"], reference) for found, reference, _ in pairs])
        rows.append({"method": entry.method, "budget": entry.budget, **_statistics(gaps)})
        if against is not None:
            rows[-1]["over " + against] = _mean_ratio(
                [found["cost"] for found, _, _ in pairs], [row[against] for _, _, row in pairs]
            )
        rows[-1]["cpu_ms"] = 1e3 * statistics.fmean(found["cpu_s"] for found, _, _ in pairs)
        rows[-1]["cpu_ms_median"] = 1e3 * statistics.median(f["cpu_s"] for f, _, _ in pairs)
        rows[-1]["evaluations"] = statistics.median(f["evaluations"] for f, _, _ in pairs)
    return rows


def _gap(cost: float | None, reference: float) -> float:
    return math.inf if cost is None else max(0.0, cost / reference - 1)


def _statistics(gaps: Any) -> Row:
    found = gaps[np.isfinite(gaps)]
    median, p95 = np.quantile(gaps, [0.5, 0.95], method="lower")
    return {
        "problems": len(gaps),
        "gap_median": float(median),
        "gap_mean": float(found.mean()) if len(found) else math.inf,
        "gap_p95": float(p95),
        "optimal": float((gaps < OPTIMAL).mean()),
        "infeasible": len(gaps) - len(found),
    }


def _mean_ratio(costs: Sequence[float | None], others: Sequence[Measured]) -> float:
    """Mean of cost over the other's cost, minus 1, where both found something."""
    ratios = [
        cost / other["cost"] - 1
        for cost, other in zip(costs, others, strict=True)
        if cost is not None and other["cost"] is not None
    ]
    return statistics.fmean(ratios) if ratios else math.nan
