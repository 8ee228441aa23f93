"""Random fault injections into elastic runs on four emulated devices.

python benchmarks/online/online.py --only injections --json online.json
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.recovery.injection_cases import (
    CHECKPOINT_EVERY,
    IN_GROUPS,
    KINDS,
    NO_GROUPS,
    draw,
    draw_group,
)
from benchmarks.online.recovery.injection_verdict import (
    FAILURES,
    LIMIT_S,
    TOLERANCE,
    case_row,
)
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings

TITLE = "Random fault injections"
CASES, QUICK_CASES = 200, 2
# Half of them with groups.
GROUP_CASES, QUICK_GROUP_CASES = 24, 2
FIRST_STEP = "first step in groups"
TARGETS = [
    Target("injections that hang, of all", "hang", 0),
    Target("runs with a lost or doubled sample (losses or parameters differ)", "wrong", 0),
    Target("runs that leave a process", "processes left", 0),
    Target("runs that listen beyond the loopback, or after their end", "open sockets", 0),
    Target("runs whose newest checkpoint is corrupt", "bad checkpoint", 0),
    Target("runs that end with an error", "error", 0),
    Target("largest loss difference to the uninterrupted run", "max loss difference", TOLERANCE),
    Target(
        "first new step, less a usual one, where a rank of a group is killed, over none",
        FIRST_STEP,
        1.0,
    ),
]
NOTE = (
    f"Four emulated devices, a model of 340,000 parameters, AdamW, a checkpoint every "
    f"{CHECKPOINT_EVERY} steps. Kind, plan, device and moment are drawn by the seed of the case; "
    "three in ten are planned by the controller of the command, the others by its rules alone. "
    f"Expected of every run: it ends within {LIMIT_S:g} s, every step has the loss of the "
    "uninterrupted run, the last checkpoint its parameters, no process is left, and it listened on "
    "the loopback alone. Where the "
    "supervisor is killed, all workers must end, and the run must reach the end with `--resume`, "
    "or anew where no checkpoint was complete. Full disk: "
    "writes of one process fail. Processes are forked from one that has imported torch instead of "
    "started; nothing else differs. `pause_s`: from the last step before a fault to the first "
    "after it, on a busy machine."
)

GROUP_NOTE = (
    "Ten blocks of 33,000 parameters on the same devices: two groups in a chain, replicas in two "
    "groups, these with shared state; and beside each a chain of four, two pipelines, or two that "
    "share state, killed at the same moment. What is left goes on as a chain, in the first case "
    "with a group of two at its front. `first step`: from the fault to the end of the next step; "
    "`less a step`: from when the loss is noticed, without the median of the steps that follow, "
    "because sums over a group take long where its processes wait for a core."
)


def run(settings: Settings) -> SectionResult:
    """All cases; with the same seeds it goes on after those that are done."""
    number = QUICK_CASES if settings.quick else CASES
    first = settings.seed * CASES
    store = settings.store("injections")
    with progress_bar("injections", number) as advance:
        for seed in range(first, first + number):
            if str(seed) not in store:
                store.add(str(seed), case_row(draw(seed)))
            advance(f"{seed} {store[str(seed)]['failure'] or 'passed'}")
    rows = [store[str(seed)] for seed in range(first, first + number)]
    num_groups = QUICK_GROUP_CASES if settings.quick else GROUP_CASES
    with progress_bar("losses in groups", num_groups) as advance:
        for index in range(num_groups):
            if f"groups {index}" not in store:
                store.add(f"groups {index}", case_row(draw_group(index)))
            advance(f"{index} {store[f'groups {index}']['failure'] or 'passed'}")
    grouped = [store[f"groups {index}"] for index in range(num_groups)]
    shown = [_shown(kind, [r for r in rows if r["kind"] == kind]) for kind in KINDS]
    tables = [TableRows("injections", f"{number} injections", NOTE, [r for r in shown if r])]
    tables.append(TableRows("groups", "A rank of a group is killed", GROUP_NOTE, [
        _shown_first_step(kind, [row for row in grouped if row["kind"] == kind])
        for kind in (IN_GROUPS, NO_GROUPS)
    ]))  # fmt: skip
    failed = [row for row in (*rows, *grouped) if row["failure"]]
    if failed:
        columns = ("seed", "kind", "plan", "failure", "detail")
        bad = [{name: row[name] for name in columns} for row in failed]
        tables.append(TableRows("failures", "Runs that failed", "By seed.", bad))
    rows = [*rows, *grouped]
    counts = {failure: sum(r["failure"] == failure for r in rows) for failure in FAILURES}
    first_s = {
        kind: statistics.median(r["recovery_s"] for r in grouped if r["kind"] == kind)
        for kind in (IN_GROUPS, NO_GROUPS)
    }
    summary = {
        "injections": len(rows),
        FIRST_STEP: first_s[IN_GROUPS] / max(first_s[NO_GROUPS], 1e-9),
        **counts,
        "wrong": counts["wrong losses"] + counts["wrong state"],
        "max loss difference": max((r["loss_difference"] for r in rows), default=0.0),
    }
    return SectionResult(tables, summary, store)


def _shown(kind: str, rows: Sequence[Row]) -> Row | None:
    if not rows:
        return None
    pauses = sorted(pause for row in rows for pause in row["pauses"])
    return {
        "kind": kind,
        "runs": len(rows),
        "passed": sum(not row["failure"] for row in rows),
        "recoveries": sum(len(row["pauses"]) for row in rows),
        "pause_s median": pauses[len(pauses) // 2] if pauses else 0.0,
        "pause_s largest": pauses[-1] if pauses else 0.0,
        "loss difference": max(row["loss_difference"] for row in rows),
    }


def _shown_first_step(kind: str, rows: Sequence[Row]) -> Row:
    seconds = sorted(row["first_step_s"] for row in rows)
    return {
        "kind": kind,
        "runs": len(rows),
        "passed": sum(not row["failure"] for row in rows),
        "first step s median": statistics.median(seconds),
        "first step s largest": seconds[-1],
        "less a step s median": statistics.median(row["recovery_s"] for row in rows),
        "loss difference": max(row["loss_difference"] for row in rows),
    }


def main() -> None:
    """Runs single seeds and keeps what they leave: SEED... [FOLDER]; g0, g1, ...: with groups."""
    *seeds, last = sys.argv[1:]
    folder = None if last.removeprefix("g").isdecimal() else Path(last)
    for seed in [*seeds, last] if folder is None else seeds:
        case = draw_group(int(seed[1:])) if seed.startswith("g") else draw(int(seed))
        print(case.model_dump_json(indent=1, exclude_defaults=True))
        print(json.dumps(case_row(case, folder and folder.resolve() / seed), indent=1), flush=True)


if __name__ == "__main__":
    main()
