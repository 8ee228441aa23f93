"""A lost device of a model with 1 GB of state: local sources first, against a restart from remote.

python benchmarks/online/online.py --only state
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.recovery.state_cases import (
    LAYERS,
    LOST_STEP,
    QUICK_WIDTH,
    SAVE_EVERY,
    WIDTH,
    cases,
    problem_of,
    recovered,
    restarted_s,
    state_bytes,
)
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_envs.problem import Problem
from heterps_runtime.results.changes import Recovery
from heterps_runtime.state.checkpoint_files import find_checkpoint
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.remote_upload import upload_checkpoint

TITLE = "Recovery with a large state"
REPEATS = 1
RATES_BYTES_PER_S = (1e8, 1e9)
LEAST = "least times faster"
TARGETS = [
    Target(
        "killed rank, 1 GB of state: times faster than a restart from remote storage, worst case",
        LEAST, 4.4, at_least=True,
    )
]  # fmt: skip
NOTE = (
    "{layers} linear layers of width {width} with AdamW: {gigabytes:.2f} GB of parameters and "
    "moments, on four processes of this host, none emulated, links at the speed of the host; one "
    "is killed after step {lost}, every {every} steps are saved. `recovery_s`: from "
    "the kill until the first step under the new plan is done, that step, detection and the new "
    "generation included; the plan is given. Steps that are repeated after a rollback are not in "
    "it. `restart_s`: from the start of three new processes until their first step is done; each "
    "fetches its third of the state at the rate of its row, which it has for itself. Detection, "
    "the end of the old processes and planning are not in it. Files are in the page cache. On a "
    "busy host all of these are longer; what counts is their ratio."
)


def run(settings: Settings) -> SectionResult:
    """Recoveries first; then restarts from a copy of their checkpoint."""
    problem = problem_of(settings.quick)
    store = settings.store("state", layers=LAYERS, rates=RATES_BYTES_PER_S)
    with progress_bar("large state", (len(RATES_BYTES_PER_S) + 3) * REPEATS) as advance:
        for repeat in range(REPEATS):
            key = str(repeat)
            if key not in store:
                store.add(key, _measured(problem, advance))
    measured = [store[str(repeat)] for repeat in range(REPEATS)]
    medians = {
        name: statistics.median(entry[name] for entry in measured)
        for name in measured[0]
        if isinstance(measured[0][name], int | float)
    }
    rows = _rows(problem, medians)
    summary: Row = {
        "state_bytes": state_bytes(problem.profile),
        LEAST: min(row["times_faster"] for row in rows),
        **{f"recovery, {case.name}, s": medians[f"{case.name} s"] for case in cases(problem)},
        "restart from the local folder, s": medians["local s"],
    }
    note = NOTE.format(
        layers=LAYERS,
        width=QUICK_WIDTH if settings.quick else WIDTH,
        gigabytes=state_bytes(problem.profile) / 1e9,
        lost=LOST_STEP,
        every=SAVE_EVERY,
    )
    table = TableRows("large state", "Local sources first, and a restart from remote", note, rows)
    return SectionResult([table], summary, store)


def _measured(problem: Problem, advance: Callable[[str], object]) -> Row:
    """Each recovery and each restart once."""
    found: Row = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, case in enumerate(cases(problem)):
            recovery = recovered(problem, case, folder / str(number))
            found |= _figures(case.name, recovery)
            advance(case.name)
        url = f"file://{folder / 'remote'}"
        upload_checkpoint(RemoteStorage(url), find_checkpoint(folder / "1"))
        after = cases(problem)[1].after
        for rate in RATES_BYTES_PER_S:
            found[f"{rate:g} s"] = restarted_s(problem, after, f"{url}?bytes_per_s={rate:g}")
            advance(f"restart at {rate / 1e6:g} MB/s")
        found["local s"] = restarted_s(problem, after, None, folder / "1")
        advance("restart from the local folder")
    return found


def _figures(name: str, recovery: Recovery) -> Row:
    sources = recovery.bytes_by_source
    return {
        f"{name} s": recovery.first_step_s,
        f"{name} state_s": recovery.state_s,
        f"{name} detected_s": recovery.detected_s or 0.0,
        f"{name} steps": recovery.steps_repeated,
        **{
            f"{name} {source}": sources.get(source, 0)
            for source in ("replica", "snapshot", "local")
        },
    }


def _rows(problem: Problem, medians: Row) -> list[Row]:
    return [
        {
            "lost layers": case.name,
            "remote_bytes_per_s": rate,
            "recovery_s": medians[f"{case.name} s"],
            "state_s": medians[f"{case.name} state_s"],
            "replica_bytes": medians[f"{case.name} replica"],
            "memory_bytes": medians[f"{case.name} snapshot"],
            "local_bytes": medians[f"{case.name} local"],
            "steps repeated": medians[f"{case.name} steps"],
            "restart_s": medians[f"{rate:g} s"],
            "times_faster": medians[f"{rate:g} s"] / medians[f"{case.name} s"],
        }
        for case in cases(problem)
        for rate in RATES_BYTES_PER_S
    ]
