"""`heterps run`: execute a plan; predicted against measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from heterps.reports.console import answer, print_json, remarks
from heterps.reports.run_report import print_result, result_mapping
from heterps.run_commands.conduct import conduct, write_trace
from heterps.run_commands.failures import ON_EVERY_HOST, to_go_on_from
from heterps.run_commands.run_request import RunRequest
from heterps_configs.errors import HeterpsError
from heterps_configs.interrupts import ended_by_sigterm, exit_code
from heterps_runtime.process.rank_log import rank_log_path
from heterps_runtime.results.result import RESULT_FILE, RunResult

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController


def run_run(request: RunRequest) -> None:
    """Runs, prints, and says where the logs are. Of several hosts, host 0 prints."""
    with _interrupts_explained(request):
        outcome = conduct(request)
    if outcome.result is None:
        return
    directory = Path(request.settings.run_directory or "")
    try:
        write_trace(request, outcome)
    finally:
        _print(request, outcome.result, outcome.watcher)
        remarks.print(f"logs: {rank_log_path(directory, '*')}", soft_wrap=True)
    if outcome.interrupt is not None:
        remarks.print(
            "interrupted during the training in one process (--verify); the run itself is done, "
            f"its result: {directory / RESULT_FILE}",
            soft_wrap=True,
        )
        raise typer.Exit(exit_code(outcome.interrupt))
    if outcome.result.checkpoint_error is not None:
        saving = request.settings.saving
        hint = "" if outcome.result.checkpoint is None else f"; {to_go_on_from(saving)}"
        raise HeterpsError(f"{outcome.result.checkpoint_error}; the run itself is done{hint}")
    if outcome.result.verification_error is not None:
        raise HeterpsError("--verify: the training in one process failed; the run itself is done")


def _print(request: RunRequest, result: RunResult, watcher: OnlineController | None) -> None:
    """The answer, as JSON or for people."""
    spot = None if request.spot is None else request.spot.report
    if request.as_json:
        data = result_mapping(result, watcher)
        print_json(data if spot is None else {**data, "spot": spot.to_mapping()})
        return
    print_result(result)
    for line in () if spot is None else spot.lines():
        answer.print(line, soft_wrap=True)


@contextmanager
def _interrupts_explained(request: RunRequest) -> Iterator[None]:
    """After an interrupt, says what there is to go on from.

    SIGTERM, with which a batch system ends a job, ends the run as Ctrl-C does.
    """
    try:
        with ended_by_sigterm():
            yield
    except KeyboardInterrupt as interrupt:
        where = "" if request.hosts is None else ON_EVERY_HOST
        hint = to_go_on_from(request.settings.saving, where)
        remarks.print(f"interrupted; {hint}", soft_wrap=True)
        raise typer.Exit(exit_code(interrupt)) from None
