"""Own runs: step time and peak memory, predicted before each run and measured in it.

    python benchmarks/fidelity/fidelity.py --only own --json out.json

Four groups of rows. `emulated`: four emulated devices of four speeds behind slow links, under the
real launcher. `plain`: two processes at the speed of this machine, layers profiled alone right
before and after each run. `memory limit`: random plans with a limit near their need, executed in
one process, and a few of them by processes. Constants come from profiles taken here; nothing is
fitted on the rows. Interrupted, the same command goes on where it was (with --json only).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from benchmarks.fidelity import own_emulated, own_plain
from benchmarks.fidelity.own_errors import (
    activation_errors,
    distribution,
    memory_errors,
    saved_activation_errors,
    summary,
)
from benchmarks.fidelity.own_limits import (
    LimitCase,
    draw_case,
    limit_row,
    measured_profiles,
    process_row,
)
from benchmarks.fidelity.own_models import EMULATED
from benchmarks.fidelity.own_runs import Ticker
from benchmarks.shared.common import machine
from benchmarks.shared.row_store import Row, RowStore
from heterps_configs.documents.model_profile import ModelProfile

NUM_LIMITED, NUM_PROCESSES = 200, 6
QUICK_LIMITED, QUICK_PROCESSES = 20, 1


class Task(NamedTuple):
    """One row to be made."""

    key: str
    run: Callable[[Ticker], Row]


def rows(
    workloads: Path | None, quick: bool, seed: int, partial_file: Path | None = None
) -> tuple[list[Row], Row]:
    """All rows, and the errors over all of them.

    Args:
        workloads: Not needed.
        quick: A few runs of each group.
        seed: Of parameters and data; random plans take the seeds from here on.
        partial_file: Where finished rows are kept; a run that finds them goes on after them.
    """
    del workloads
    store = RowStore(partial_file, {"quick": quick, "seed": seed, **machine()})
    tasks = list(_tasks(quick, seed, store))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        warnings.catch_warnings(),
        Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress,
    ):
        warnings.filterwarnings("ignore", message="batch normalisation")
        bar = progress.add_task("own runs", total=len(tasks))
        for key, run in tasks:
            if key not in store:
                store.add(key, run(partial(_tick, progress, bar, key)))
            progress.advance(bar)
    found = [store[task.key] for task in tasks]
    return found, summarise(found)


def _tick(progress: Progress, bar: TaskID, key: str, text: str) -> None:
    progress.update(bar, description=f"{key}: {text}" if text else key)


def _tasks(quick: bool, seed: int, store: RowStore) -> Iterator[Task]:
    for name, run in own_emulated.tasks(quick, seed):
        yield Task(f"emulated, {name}", run)
    for name, run in own_plain.tasks(quick, seed, store):
        yield Task(f"plain, {name}", run)
    yield from _limit_tasks(quick, seed)


def _limit_tasks(quick: bool, seed: int) -> Iterator[Task]:
    profiles: list[ModelProfile] = []

    def case(number: int) -> LimitCase:
        if not profiles:
            profiles.extend(measured_profiles(EMULATED))
        return draw_case(profiles, number)

    def limited(number: int, tick: Ticker) -> Row:
        tick("")
        return limit_row(case(number), number)

    def by_processes(number: int, tick: Ticker) -> Row:
        tick("")
        return process_row(case(number), number)

    for number in range(seed, seed + (QUICK_LIMITED if quick else NUM_LIMITED)):
        yield Task(f"memory limit, seed {number}", partial(limited, number))
    for number in range(seed, seed + (QUICK_PROCESSES if quick else NUM_PROCESSES)):
        yield Task(f"memory limit by processes, seed {number}", partial(by_processes, number))


def summarise(found: Sequence[Row]) -> Row:
    """Errors by group, in words that `docs/results/fidelity.md` explains."""
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(row["part"], []).append(row)
    emulated, plain = groups.get("emulated", []), groups.get("plain", [])
    ranks = [row["memory"] for row in (*emulated, *plain)]
    limited = groups.get("memory limit", [])
    processes = groups.get("memory limit, processes", [])
    return {
        **summary("emulated_step_time", [row["error"] for row in emulated]),
        "emulated_runs": len(emulated),
        "emulated_flagged": sum(row["is_flagged"] for row in emulated),
        **summary("plain_step_time", [row["error"] for row in plain]),
        "plain_runs": len(plain),
        **summary("memory", [error for rank in ranks for error in memory_errors(rank)]),
        **summary("activations", [error for rank in ranks for error in activation_errors(rank)]),
        "memory_ranks": sum(len(rank) for rank in ranks),
        **_saved_activations("saved_activations", (*emulated, *plain)),
        "random_plans": len(limited),
        **distribution(
            "random_plans_memory", [e for row in limited for e in row["errors"].values()]
        ),
        **_saved_activations("random_plans_saved_activations", limited),
        "fits_wrongly": sum(row["predicted_to_fit"] and not row["fits"] for row in limited),
        "does_not_fit_wrongly": sum(row["fits"] and not row["predicted_to_fit"] for row in limited),
        "random_plans_by_processes": len(processes),
        "processes_as_in_one_process": sum(_agrees(row, limited) for row in processes),
    }


def _saved_activations(name: str, found: Sequence[Row]) -> dict[str, float]:
    """Predicted against measured peaks of saved activations, over the ranks of some rows.

    Zero-bubble schedules are told apart: they save the gradients of outputs, too.
    """
    split = [row for row in found if row["schedule"] == "zero-bubble"]
    whole = [row for row in found if row["schedule"] != "zero-bubble"]
    return {
        key: value
        for words, rows in (("", whole), ("_zero_bubble", split))
        for key, value in distribution(
            name + words, [e for row in rows for e in saved_activation_errors(row["memory"])]
        ).items()
    }


def _agrees(row: Row, limited: Sequence[Row]) -> bool:
    return any(other["seed"] == row["seed"] and other["fits"] == row["fits"] for other in limited)


def shown(found: Sequence[Row]) -> list[Row]:
    """The rows of the printed table: one for each run, and those random plans that were wrong."""
    runs = [
        {
            "part": row["part"],
            "model": row["model"],
            "plan": row["plan"],
            "schedule": row["schedule"],
            "predicted_ms": 1e3 * row["predicted_s"],
            "measured_ms": 1e3 * row["measured_s"],
            "error_%": 100 * row["error"],
            "spread_%": 100 * row["spread"],
            "drift_%": 100 * row["drift"] if "drift" in row else "",
            "attempts": len(row["attempts"]) if "attempts" in row else "",
            "overruns_%": 100 * row["overruns"] if row["part"] == "emulated" else "",
            "memory_error_%": 100 * row["memory_error"],
        }
        for row in found
        if "error" in row
    ]
    wrong = [
        {
            "part": row["part"],
            "model": row["model"],
            "plan": f"seed {row['seed']}: {row['plan']}",
            "schedule": row["schedule"],
            "memory_error_%": 100 * row["memory_error"],
        }
        for row in found
        if row["part"] == "memory limit" and row["fits"] != row["predicted_to_fit"]
    ]
    return [*runs, *wrong]
