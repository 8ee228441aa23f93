"""What a command makes of a file: one line and exit code 2, or an answer; and nothing left behind.

Commands run in this process through their front door, as the console script does. Only the last
step of some is left out: `run` starts no ranks and `train` does not train.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from heterps.cli.app import main
from heterps_configs.errors import HeterpsError

LONGEST_S = 10.0
REFUSED, ANSWERED = 2, 0
# What a stand-in says where everything was read, and the work would begin.
BEGINS = "all is read, and nothing is started here"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def begin_nothing(*_: Any, **__: Any) -> NoReturn:
    """In the place of a last step.

    Raises:
        HeterpsError: Always.
    """
    raise HeterpsError(BEGINS)


# Stand-ins by where they are looked up.
LAST_STEPS: Mapping[str, Callable[..., NoReturn]] = dict.fromkeys(
    (
        "heterps.run_commands.conduct.run_plan",
        "heterps.run_commands.conduct.make_controller",
        "heterps_runtime.elastic.run_elastic.run_elastic",
        "heterps_agents.training.train.train",
    ),
    begin_nothing,
)


class TooLong(BaseException):
    """A command took longer than a user would wait for a refusal."""


@dataclass(frozen=True)
class Verdict:
    """What a command did.

    Attributes:
        code: Its exit code.
        seconds: Wall clock.
        findings: What is wrong with that, one line each.
        is_through: It read everything, and answered or would have begun its work.
        text: What it wrote to stderr.
    """

    code: int
    seconds: float
    findings: tuple[str, ...]
    is_through: bool
    text: str


def check_command(
    arguments: Sequence[str],
    folder: Path,
    limit_s: float = LONGEST_S,
    last_steps: Mapping[str, Callable[..., NoReturn]] = LAST_STEPS,
) -> Verdict:
    """Runs a command in a folder.

    Args:
        arguments: The command line, without the program's name.
        folder: Where it runs; what stands there before, and nothing else, may stand there after
            a refusal.
        limit_s: How long it may take.
        last_steps: What stands in for the steps that are left out; ends by `BEGINS`.
    """
    before = set(folder.rglob("*"))
    start = time.perf_counter()
    code, error, seen, findings = _run(arguments, folder, limit_s, last_steps)
    seconds = time.perf_counter() - start
    if seconds > limit_s and not findings:
        findings.append(f"an answer after {seconds:.1f} s")
    findings += _problems_of_text(code, error)
    findings += [
        f"{entry.category.__name__}: {entry.message} ({entry.filename}:{entry.lineno})"
        for entry in seen
        if issubclass(entry.category, RuntimeWarning)
    ]
    left = sorted(path for path in folder.rglob("*") if path not in before)
    if code != ANSWERED and left and BEGINS not in error:
        findings.append(f"left behind: {', '.join(path.name for path in left)}")
    for path in sorted(left, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    is_through = code == ANSWERED or BEGINS in error
    return Verdict(code, seconds, tuple(findings), is_through, error[-1000:])


def _run(
    arguments: Sequence[str],
    folder: Path,
    limit_s: float,
    last_steps: Mapping[str, Callable[..., NoReturn]],
) -> tuple[int, str, list[warnings.WarningMessage], list[str]]:
    output, error = io.StringIO(), io.StringIO()
    code, findings = ANSWERED, []
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        for name, stand_in in last_steps.items():
            stack.enter_context(patch(name, stand_in))
        seen = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(error))
        stack.enter_context(_alarm(limit_s))
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except TooLong:
            code, findings = 1, [f"no answer within {limit_s:g} s"]
        except BaseException as escaped:
            code, findings = 1, [f"{type(escaped).__name__} escapes: {escaped}"]
    return code, error.getvalue(), list(seen or ()), findings


def _problems_of_text(code: int, error: str) -> Iterator[str]:
    if code not in (ANSWERED, REFUSED, 3):
        yield f"exit code {code}: {error.strip()[-300:]}"
    if "Traceback" in error or "internal error" in error:
        yield f"no clear line: {error.strip()[-300:]}"
    if code == REFUSED and error.count("error: ") + error.count("Error ") == 0:
        yield f"a refusal without a line: {error.strip()[-300:]!r}"
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    if len(lines) == 1 and not error.rstrip("\n").endswith(lines[0]):
        yield f"more than one line: {error[-300:]!r}"
    if any(_CONTROL.search(text) for text in lines):
        yield f"control characters in the message: {lines[0]!r}"


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises `TooLong` in the main thread, also where it is within a loop of Python's."""

    def ring(*_: object) -> NoReturn:
        raise TooLong

    before: Any = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def quiet_environment() -> None:
    """Makes terminals plain, so that messages are what a file would hold."""
    os.environ["COLUMNS"], os.environ["NO_COLOR"] = "200", "1"
