"""Trust, in one table: who gets in, what hangs, what breaks.

    python benchmarks/trust/trust.py --quick
    python benchmarks/trust/trust.py --json trust.json
    python -m benchmarks.trust.injections --count 500 --load 6     # a part alone

Attacks on running jobs, checkpoints and plans; what every command listens on; broken documents
given to commands; planners on hostile problems, under bounds checks; processes killed in the midst
of recoveries; a long run. Without --quick it takes hours: 500 injections, 5,000 documents, 20,000
problems, 2,000 steps.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report
from benchmarks.trust import attacks, document_fuzz, injections, long_run, planner_fuzz

Row = dict[str, Any]
# Of a whole run and of a quick one.
INJECTIONS, DOCUMENTS, PROBLEMS, STEPS = (500, 10), (5000, 200), (20_000, 60), (2000, 300)
# Processes that compute beside the injections.
LOAD = (6, 0)
# A long run is flat within these; it ends so long after its last rank at the latest.
MOST_GROWTH_MIB, MOST_DESCRIPTORS, LATEST_END_S = 16.0, 1.0, 3.0


def main() -> None:
    """Runs all parts; ends with code 1 where something got in or broke."""
    options = parse_options(__doc__ or "", only="one part, or several with commas between")
    is_quick, seed = int(options.quick), int(options.seed)
    parts: dict[str, Callable[[], list[Row]]] = {
        "attacks": _attacks,
        "sockets": _sockets,
        "documents": lambda: _documents(DOCUMENTS[is_quick], seed),
        "planners": lambda: _planners(PROBLEMS[is_quick], seed),
        "injections": lambda: _injections(INJECTIONS[is_quick], seed, LOAD[is_quick]),
        "long-run": lambda: _long_run(STEPS[is_quick]),
    }
    wanted = options.only.split(",") if options.only else list(parts)
    unknown = [name for name in wanted if name not in parts]
    if unknown:
        sys.exit(f"error: no part {unknown[0]!r}; there are {', '.join(parts)}")
    rows: list[Row] = []
    for name in wanted:
        print(f"{name} ...", file=sys.stderr, flush=True)
        rows += parts[name]()
    failed = sum(row["failed"] for row in rows)
    report("Trust", rows, {"tried": sum(row["tried"] for row in rows), "failed": failed}, options)
    sys.exit(1 if failed else 0)


def _row(what: str, tried: int, failed: int, note: str = "") -> Row:
    return {"what": what, "tried": tried, "failed": failed, "note": note}


def _attacks() -> list[Row]:
    """An attack that succeeded is a failure of ours."""
    with tempfile.TemporaryDirectory() as folder:
        found = attacks.attacks(Path(folder))
    return [_row(f"attack: {one.attack}", one.tried, one.succeeded, one.note) for one in found]


def _sockets() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        found = attacks.sockets(Path(folder))
    return [
        _row(
            f"sockets of {one.command}",
            len(one.listeners),
            len(one.open_ones),
            ", ".join(f"{each.address}:{each.port}" for each in one.open_ones),
        )
        for one in found
    ]


def _documents(count: int, seed: int) -> list[Row]:
    outcome = document_fuzz.fuzz(count, seed)
    note = "; ".join(outcome.findings[:3])
    slowest_s = max(outcome.slowest_s.values(), default=0.0)
    note = note or f"slowest answer {slowest_s:.1f} s"
    return [_row("broken documents", outcome.files.total(), len(outcome.findings), note)]


def _planners(count: int, seed: int) -> list[Row]:
    outcome = planner_fuzz.fuzz(count, seed)
    note = "; ".join(outcome.findings[:3]) or f"{outcome.asked.total()} answers"
    return [_row("planners, bounds checked", outcome.problems, len(outcome.findings), note)]


def _injections(count: int, seed: int, load: int) -> list[Row]:
    found = injections.injection_rows(count, seed, load)
    return [
        _row(
            f"injections: {row['kind']}",
            row["runs"],
            row["runs"] - row["passed"],
            row["failures"] or f"slowest first new step {row['first new step s, slowest']:.1f} s",
        )
        for row in found
    ]


def _long_run(steps: int) -> list[Row]:
    rows = []
    for row in long_run.long_run_rows(steps):
        grown_mib, grown = row["memory growth MiB"], row["descriptor growth"]
        ends_s = row["ends after s"]
        is_flat = grown_mib <= MOST_GROWTH_MIB and grown <= MOST_DESCRIPTORS
        failed = row["code"] != 0 or not is_flat or ends_s > LATEST_END_S
        note = f"{grown_mib:+.1f} MiB, {grown:+.1f} descriptors, ends after {ends_s:.1f} s"
        rows.append(_row(f"long run of {steps} steps: {row['command']}", 1, int(failed), note))
    return rows


if __name__ == "__main__":
    main()
