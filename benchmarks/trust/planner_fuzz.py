"""Planners on drawn problems with hostile corners, their kernels compiled with bounds checks.

    python -m benchmarks.trust.planner_fuzz --count 20000
    python -m benchmarks.trust.planner_fuzz --count 5000 --first 15000
    python -m benchmarks.trust.planner_fuzz --count 200 --json planners.json

Every planner answers every problem of `hostile_problems`, systems of papers and `uniform-3d` by
turns; those that train a network for every problem come once in a thousand. What they answer is
checked by `planner_checks`. They run in a process of their own, under `NUMBA_BOUNDSCHECK=1` with a
cache of its own: a read out of bounds is an error there, and a crash or a hang ends that process
alone. It goes on behind the problem that it was at.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.shared.common import parse_options, report
from benchmarks.trust.hostile_problems import draw_problem
from benchmarks.trust.planner_checks import QUICK, SYSTEMS, TRAINING, ask, compare
from heterps_envs.problem import Problem

Row = dict[str, Any]
ROOT = Path(__file__).parents[2]
# Numba looks only at the file of a kernel, not at those of the kernels that it calls.
_SOURCES = sorted(path for floor in ("envs", "agents") for path in (ROOT / floor).rglob("*.py"))
_DIGEST = hashlib.sha256(b"".join(path.read_bytes() for path in _SOURCES)).hexdigest()[:12]
CACHE = Path(tempfile.gettempdir()) / f"heterps-bounds-checks-{os.getuid()}-{_DIGEST}"
# Processor seconds of one problem, compilation included: other work beside it is no hang of ours.
LONGEST_PROBLEM_CPU_S, LOOK_EVERY_S = 200.0, 2.0
REPORT_EVERY = 250
TRAINING_EVERY = 1000
# It has no kernel of its own, and simulates for longer than all others plan.
_ENUMERATES = "uniform-3d"
_ALWAYS = tuple(name for name in QUICK if name != _ENUMERATES)
_BY_TURNS = (*SYSTEMS, _ENUMERATES)


@dataclass
class Outcome:
    """What came of the problems.

    Attributes:
        asked: Problems that each planner was asked.
        plans: Of these, how many it answered with a plan.
        findings: What is wrong, with the problem's number.
    """

    problems: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    plans: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def planners_of(index: int) -> tuple[str, ...]:
    """Who is asked problem `index`."""
    names = (*_ALWAYS, _BY_TURNS[index % len(_BY_TURNS)])
    return (*names, *TRAINING) if index % TRAINING_EVERY == TRAINING_EVERY - 1 else names


def check_problem(problem: Problem, names: tuple[str, ...]) -> Row:
    """What the planners answer to one problem, and what is wrong with it."""
    answers = [ask(problem, name) for name in names]
    findings = [f"{entry.planner}: {text}" for entry in answers for text in entry.findings]
    return {
        "asked": list(names),
        "plans": [answer.planner for answer in answers if answer.plan is not None],
        "findings": [*findings, *compare(problem, answers)],
    }


def fuzz(
    count: int, seed: int = 0, first: int = 0, tell: Callable[[str], None] = lambda line: None
) -> Outcome:
    """Asks the planners `count` problems, the first of them number `first`.

    Args:
        count: Problems.
        seed: Of all of them.
        first: Number of the first one: what was interrupted goes on there.
        tell: Gets a line for each finding at once, and now and then for how far it is.
    """
    outcome, start, index = Outcome(), time.perf_counter(), first
    while index < first + count:
        for row in _answers(index, first + count - index, seed):
            outcome.problems += 1
            outcome.asked.update(row["asked"])
            outcome.plans.update(row["plans"])
            for text in row["findings"]:
                outcome.findings.append(f"problem {index}: {text}")
                tell(outcome.findings[-1])
            index += 1
            if outcome.problems % REPORT_EVERY == 0:
                tell(f"{outcome.problems} of {count}, up to number {index - 1}")
    outcome.seconds = time.perf_counter() - start
    return outcome


def _answers(first: int, count: int, seed: int) -> Iterator[Row]:
    """Rows of a process's problems, until it is done, dies or hangs."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(CACHE)}
    command = [sys.executable, "-m", "benchmarks.trust.planner_fuzz", "--worker"]
    command += [str(number) for number in (first, count, seed)]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_forward, args=(process.stdout, lines), daemon=True).start()
        errors: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=_forward, args=(process.stderr, errors), daemon=True).start()
        for _ in range(count):
            line = _next_line(process.pid, lines)
            if line is None:
                process.kill()
                yield _failed(f"no answer within {LONGEST_PROBLEM_CPU_S:g} processor seconds")
                return
            if not line:
                last = [text for text in list(errors.queue) if text.strip()][-1:]
                yield _failed(f"the process died with {process.wait()}: {last}")
                return
            yield json.loads(line)


def _next_line(pid: int, lines: queue.Queue[bytes]) -> bytes | None:
    """A process's next line; None where it computes for too long first."""
    before_s = _cpu_seconds(pid)
    while True:
        try:
            return lines.get(timeout=LOOK_EVERY_S)
        except queue.Empty:
            if _cpu_seconds(pid) - before_s > LONGEST_PROBLEM_CPU_S:
                return None


def _cpu_seconds(pid: int) -> float:
    """Processor seconds that a process has used; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _failed(text: str) -> Row:
    return {"asked": [], "plans": [], "findings": [text]}


def _forward(stream: IO[bytes], lines: queue.Queue[bytes]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(b"")


def worker(first: int, count: int, seed: int) -> None:
    """Prints a row for each problem."""
    for index in range(first, first + count):
        row = check_problem(draw_problem(seed, index), planners_of(index))
        print(json.dumps(row), flush=True)


def rows(outcome: Outcome) -> list[Row]:
    """One row for each planner."""
    return [
        {
            "planner": name,
            "problems": outcome.asked[name],
            "plans": outcome.plans[name],
            "findings": sum(f": {name}: " in text for text in outcome.findings),
        }
        for name in outcome.asked
    ]


def summary(outcome: Outcome) -> Row:
    """The numbers that the table of the subject shows."""
    return {
        "planner_fuzz_problems": outcome.problems,
        "planner_fuzz_answers": outcome.asked.total(),
        "planner_fuzz_findings": len(outcome.findings),
        "planner_fuzz_seconds": outcome.seconds,
    }


def main() -> None:
    """Runs the benchmark and prints its table and what it found."""
    if sys.argv[1:2] == ["--worker"]:
        worker(*map(int, sys.argv[2:5]))
        return
    options = _options()
    count = 200 if options.quick else int(options.count or 20_000)
    tell = functools.partial(print, file=sys.stderr, flush=True)
    outcome = fuzz(count, options.seed, int(options.first or 0), tell)
    report("Planners on hostile problems", rows(outcome), summary(outcome), options)


def _options() -> argparse.Namespace:
    return parse_options(
        __doc__ or "", count="problems, 20000 by default", first="number of the first"
    )


if __name__ == "__main__":
    main()
