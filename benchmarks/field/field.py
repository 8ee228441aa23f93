"""The field: all planners and all systems of papers on sixty problems, and what papers claim.

    python benchmarks/field/field.py --quick
    python benchmarks/field/field.py --set development --planner auto,whale,sailor --keep rows.jsonl
    python benchmarks/field/field.py --set frozen --keep rows.jsonl --markdown docs/results/field.md

Problems are those of `heterps_envs.problem_sets.field`: six families of ten, a seed for each set.
Every planner has the same processor seconds for each problem (--cpu-seconds) and is asked in a
process of its own; planners take turns, problem by problem. All plans are judged by our simulator.
A planner that is missing, fails, refuses or does not end has a row that says so. With --keep
finished rows are kept in a file: a run that was interrupted goes on there. Choose and debug on the
development set; the frozen one is for judging a version.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.field.outputs import markdown, printed, wordy_lines
from benchmarks.field.scores import (
    AUTO,
    auto_summary,
    beaten_rows,
    family_rows,
    planner_row,
    with_scores,
)
from benchmarks.shared.common import machine, parse_options
from benchmarks.shared.row_store import RowStore
from heterps_agents.interface.registry import SECONDS_PER_LAYER, planner_names, system_names
from heterps_configs.documents.yaml_files import write_text
from heterps_envs.problem_sets.field import (
    CASES,
    FAMILIES,
    SEEDS,
    FieldCase,
    described,
    field_problem,
)

Row = dict[str, Any]
# NumPy's libraries read these when they are loaded, which is in processes that are forked later.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
CPU_SECONDS, QUICK_CPU_SECONDS = 5.0, 0.2
CLAIMS_PART = "claims"
# Columns of a table that nobody has to unfold.
LEAST_WIDTH = 110
# A look: the smallest problem of each family.
QUICK_CASES = tuple(case for case in CASES if case.number == 0)


def main() -> None:
    """Runs the benchmark, prints its tables and writes what was asked for."""
    options = parse_options(
        __doc__ or "",
        set=f"which problems: {' or '.join(SEEDS)} (default: development)",
        only=f"families or `{CLAIMS_PART}`, with commas between: {', '.join(FAMILIES)}",
        planner="planners and systems, with commas between (default: all)",
        cpu_seconds=f"budget of each planner for each problem (default: {CPU_SECONDS:g})",
        processes="in so many `auto` searches at the same time, each with that budget (default: 1)",
        keep="file of finished rows, for a run that goes on where it was interrupted",
        markdown="write the tables to this file",
    )
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    if options.set not in (None, *SEEDS):
        sys.exit(f"error: --set {options.set}: {', '.join(SEEDS)}")
    parts = options.only.split(",") if options.only else [*FAMILIES, CLAIMS_PART]
    unknown = [part for part in parts if part not in (*FAMILIES, CLAIMS_PART)]
    if unknown:
        sys.exit(f"error: --only {unknown[0]}: {', '.join((*FAMILIES, CLAIMS_PART))}")
    run(options, parts)


def run(options: argparse.Namespace, parts: Sequence[str]) -> None:
    """Asks, scores, shows and writes."""
    from benchmarks.field.asking import Limits, prepare

    name = options.set or "development"
    default_s = QUICK_CPU_SECONDS if options.quick else CPU_SECONDS
    processes = int(options.processes or 1)
    limits = Limits(float(options.cpu_seconds or default_s), options.seed, processes)
    settings: Row = {"set": name, "seed": options.seed, "cpu_seconds": limits.cpu_seconds}
    if processes > 1:
        settings["processes"] = processes
    path = Path(options.keep) if options.keep else None
    store = RowStore(path, {**settings, **machine()})
    names = _planners(options)
    cases = [case for case in (QUICK_CASES if options.quick else CASES) if case.family in parts]
    say(f"preparing {len(names)} planners")
    prepare(names)
    rows = with_scores(_field_rows(cases, names, SEEDS[name], limits, store)) if cases else []
    claims = _claim_rows(options, limits, store) if CLAIMS_PART in parts else []
    tables = {
        "Planners": [planner_row(n, [r for r in rows if r["planner"] == n]) for n in names],
        "Families": family_rows(names, rows),
        "Where others are ahead of auto": beaten_rows(rows) if AUTO in names else [],
        "Claims": claims,
    }
    if not cases:
        tables = {"Claims": claims}
    summary = {**settings, **(auto_summary(rows) if cases and AUTO in names else {})}
    _show(tables, summary)
    if options.json:
        content: Row = {"rows": rows, **tables, "summary": {**summary, **machine()}}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.markdown:
        what = (
            f"The {name} set, {len(cases)} problems, {limits.cpu_seconds:g} processor seconds for "
            "each planner and problem."
        )
        command = f"python benchmarks/field/field.py --set {name} --markdown FILE"
        if processes > 1:
            what += f" `{AUTO}` searches in {processes} processes, each with as much."
            command += f" --processes {processes}"
        write_text(Path(options.markdown), markdown(tables, summary, command, what))


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _planners(options: argparse.Namespace) -> list[str]:
    """Those that were named; else all, without those that train a network where it is a look."""
    if options.planner:
        return list(options.planner.split(","))
    left_out = SECONDS_PER_LAYER if options.quick else ()
    return [name for name in (*planner_names(), *system_names()) if name not in left_out]


def _field_rows(
    cases: Sequence[FieldCase], names: Sequence[str], seed: int, limits: Any, store: RowStore
) -> list[Row]:
    """A row for each problem and planner; whose turn it is first changes with the problem."""
    from benchmarks.field.asking import ask

    rows: list[Row] = []
    for number, case in enumerate(cases):
        problem = field_problem(case, seed)
        what, start = described(problem), time.perf_counter()
        order = random.Random(number).sample(names, len(names))
        for name in order:
            key = f"{case.name}|{name}"
            if _is_due(store, key):
                store.add(key, ask(problem, name, limits))
            given = {"problem": case.name, "family": case.family, "what": what, "planner": name}
            rows.append({**given, **store[key]})
        found = sum(row["step_time_s"] is not None for row in rows[-len(names) :])
        say(
            f"{number + 1} of {len(cases)}: {case.name}, {what}: {found} of {len(names)} have a "
            f"plan, {time.perf_counter() - start:.0f} s"
        )
    return rows


def _is_due(store: RowStore, key: str) -> bool:
    """Whether a row is not there; a planner that failed may have been mended since."""
    return key not in store or store[key]["kind"] == "failed"


def _claim_rows(options: argparse.Namespace, limits: Any, store: RowStore) -> list[Row]:
    from benchmarks.field.asking import ask
    from benchmarks.field.baselines import planner_or_baseline
    from benchmarks.field.claim_cases import problem_of
    from benchmarks.field.claims import CLAIMS, QUICK, claim_row, planners_of

    wanted = [claim for claim in CLAIMS if not options.quick or claim.system in QUICK]
    answers: dict[tuple[str, str], Row] = {}
    for number, claim in enumerate(wanted):
        say(f"claim {number + 1} of {len(wanted)}: {claim.system} over {', '.join(claim.over)}")
        for case in claim.cases:
            problem = problem_of(case)
            for name in planners_of(claim):
                key = f"{case.name}|{name}"
                if _is_due(store, key):
                    store.add(key, ask(problem, name, limits, planner_or_baseline))
                answers[case.name, name] = store[key]
    return [claim_row(claim, answers) for claim in wanted]


def _show(tables: dict[str, list[Row]], summary: Row) -> None:
    console = Console()
    console.width = max(console.width, LEAST_WIDTH)
    for title, rows in tables.items():
        console.print(printed(f"\n{title} ({machine()['machine']})", rows))
        for line in wordy_lines(rows):
            console.print(line, style="dim", highlight=False, markup=False, soft_wrap=True)
    for name, value in summary.items():
        console.print(f"{name}: {value}", highlight=False)


if __name__ == "__main__":
    main()
