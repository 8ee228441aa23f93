"""`heterps.run`: what the command `heterps run` does, from Python, with a training program.

    # train.py
    import heterps

    def make():
        return heterps.TrainingProgram(loss=..., optimizer=..., data=...)

    if __name__ == "__main__":
        result = heterps.run("plan.yaml", make, {"steps": 300}, elastic=True)
        print(result.losses[-1])

It starts one process for each device, as the command does; these import the file of `make`.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.plans import problem_of_plan
from heterps.run_commands.conduct import conduct, write_trace
from heterps.run_commands.event_files import read_events
from heterps.run_commands.run_request import RUN_DIRECTORY, RunRequest, check_file
from heterps_configs.arguments import PATH, check_callable, check_type
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_run_settings
from heterps_envs.problem import Problem
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.launcher import LAUNCHER_VARIABLE
from heterps_runtime.training.program import TrainingProgram

# What messages say is allowed.
_A_PLAN = "a plan, its file, or what heterps.place returned"
_A_PROGRAM = "a function that returns a heterps.TrainingProgram, or its reference (train.py:make)"
_SOME_FILES = "a file, or several"
_SOME_SETTINGS = "a RunSettings, its fields, its file or a shipped name, or None"


def run(
    plan: str | os.PathLike[str] | Plan | PlaceResult,
    program: str | Callable[[], TrainingProgram] | None = None,
    settings: RunSettings | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    elastic: bool = False,
    online: bool = False,
    events: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    tensorboard: str | os.PathLike[str] | None = None,
    trace: str | os.PathLike[str] | None = None,
    trust_code: bool = False,
) -> RunResult:
    """Executes a plan on this host: trains, measures, and says what was predicted.

    Progress and remarks go to stderr, as with the command.

    Args:
        plan: A plan, its file, or what `heterps.place` returned.
        program: What is the user's own of the training: a function at the top of a file, or its
            reference (`train.py:make`); by default the plan's model on synthetic batches. To name
            it is to trust it; code that the plan's model names is asked for, as by the command.
        settings: Of the run: steps, checkpoints, directory, seed, and so on; a document, its
            fields, a file or a shipped name.
        elastic: Go on where devices are lost or come.
        online: Plan anew where devices drift from their profile.
        events: Files of what is done to devices, or a spot trace; a single one may stand alone.
        tensorboard: Folder.
        trace: File of the last steps' timelines.
        trust_code: Code that the plan's model or the settings name runs without a question.

    Raises:
        KeyboardInterrupt: It was interrupted; of `verify` alone, its directory has the result.
        HeterpsError: See `heterps run`; or the program is no function that other processes find.
    """
    if LAUNCHER_VARIABLE in os.environ:
        raise HeterpsError(
            "heterps.run: was called while a process of a run imports the file of its program; "
            'call it below `if __name__ == "__main__":`'
        )
    check_type("plan", plan, (Plan, PlaceResult, *PATH), _A_PLAN)
    for name, path in (("tensorboard", tensorboard), ("trace", trace)):
        if path is not None:
            check_type(name, path, PATH, "a path, or None")
    chosen = _with_program(_settings_of(settings), program)
    if isinstance(settings, str | os.PathLike):
        check_file(os.fspath(settings), chosen, beside=() if program is None else ("program",))
    files = _event_files(events)
    injected, spot = read_events(files, chosen)
    request = RunRequest(
        Path("plan" if isinstance(plan, Plan | PlaceResult) else plan),
        chosen,
        at_hand=_at_hand(plan),
        events=injected,
        event_files=tuple(files),
        spot=spot,
        is_online=online,
        is_elastic=elastic,
        trace=None if trace is None else Path(trace),
        tensorboard=None if tensorboard is None else Path(tensorboard),
        trusts_code=trust_code,
        has_own_program=program is not None,
    )
    outcome = conduct(request)
    assert outcome.result is not None
    write_trace(request, outcome)
    if outcome.interrupt is not None:
        raise outcome.interrupt
    return outcome.result


def _event_files(events: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    check_type("events", events, (*PATH, Sequence), _SOME_FILES)
    files = [events] if isinstance(events, PATH) else list(events)
    for file in files:
        check_type("events", file, PATH, _SOME_FILES)
    return [os.fspath(file) for file in files]


def _settings_of(
    settings: RunSettings | Mapping[str, Any] | str | os.PathLike[str] | None,
) -> RunSettings:
    """With a run directory."""
    if settings is not None:
        check_type("settings", settings, (RunSettings, Mapping, *PATH), _SOME_SETTINGS)
    if isinstance(settings, str | os.PathLike):
        settings = load_run_settings(settings)
    elif not isinstance(settings, RunSettings):
        settings = RunSettings.from_mapping(dict(settings or {}), "settings of heterps.run")
    return settings.changed(run_directory=settings.run_directory or RUN_DIRECTORY)


def _with_program(
    settings: RunSettings, program: str | Callable[[], TrainingProgram] | None
) -> RunSettings:
    if program is None:
        return settings
    if not isinstance(program, str):
        check_callable("program", program, _A_PROGRAM)
    reference = program if isinstance(program, str) else reference_of(program)
    return settings.changed(program=reference)


def reference_of(function: Callable[..., object]) -> str:
    """Where other processes find a function: its file and its name.

    Raises:
        HeterpsError: They would not: it has no file, or is no function at the top of one.
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    if not inspect.isfunction(function) or file is None or not Path(file).is_file():
        raise HeterpsError(
            f"program: {name} is in no file, where the processes of the run would find it; write "
            "it into one"
        )
    if getattr(module, name, None) is not function:
        raise HeterpsError(
            f"program: {name} is no function at the top of {Path(file).name}, where the processes "
            "of the run look for it by name"
        )
    return f"{Path(file).absolute()}:{name}"


def _at_hand(plan: str | os.PathLike[str] | Plan | PlaceResult) -> tuple[Plan, Problem] | None:
    """A plan that is in no file, with its problem."""
    if isinstance(plan, PlaceResult):
        return plan.plan, plan.problem
    if not isinstance(plan, Plan):
        return None
    try:
        return plan, problem_of_plan(plan, Path())
    except HeterpsError as error:
        raise HeterpsError(
            f"plan: {error}; what heterps.place returned has the problem of its plan with it"
        ) from error
