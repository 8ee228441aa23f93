"""How long a fault takes to end all processes: whole commands, from their start to the last exit.

    python benchmarks/runtime/faults.py
    python benchmarks/runtime/faults.py --quick --json faults.json

Two ranks under torchrun train a small model that has one fault; the program is the one that the
tests of the runtime use. `ends_s` counts everything, starting Python and importing torch on both
ranks included; the row `none` is a run of two steps without a fault, so the difference is what the
fault itself takes. `left` counts processes that outlive the command. Plans that do not fit their
model or cluster are refused by `heterps run` before any process starts.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_text
from tests.runtime.faulty_script import FAULTS
from tests.runtime.torchrun import torchrun_command
from tests.runtime.trainer_plans import plan_of_cuts

REPEATS = 3
LIMIT_S = 60.0
WRONG_WORLD_SIZE = "three ranks for a plan of two"
UNCOVERED = "a plan whose stages do not cover the model"


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    repeats = 1 if options.quick else REPEATS
    cases = [*FAULTS, WRONG_WORLD_SIZE, UNCOVERED]
    rows = [case_row(case, repeats) for case in cases]
    faults = [row for row in rows if row["fault"] != "none"]
    summary = {
        "slowest_end_s": max(row["ends_s"] for row in faults),
        "processes_left": sum(row["left"] for row in rows),
        "ranks_that_disagree": sum(row["messages"] > 1 for row in faults),
    }
    report("faults", rows, summary, options)


def case_row(case: str, repeats: int) -> dict[str, Any]:
    """One fault, several times: the slowest end, and the message that every rank shows."""
    runs = [ended(case) for _ in range(repeats)]
    messages = runs[-1]["messages"]
    return {
        "fault": case,
        "ends_s": max(run["ends_s"] for run in runs),
        "median_s": statistics.median(run["ends_s"] for run in runs),
        "left": sum(run["left"] for run in runs),
        "messages": len(messages),
        "message": min(messages)[:90] if messages else "",
    }


def ended(case: str) -> dict[str, Any]:
    """Runs one case to its end."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder, "plan.yaml")
        plan_of_cuts(1, num_layers=3).to_file(plan)
        command = _command(case, plan, folder)
        log = Path(folder, "log")
        start_s = time.perf_counter()
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )
            process.wait(LIMIT_S)
        ends_s = time.perf_counter() - start_s
        return {
            "ends_s": ends_s,
            "left": _left(process.pid),
            "messages": _messages(Path(folder), case, log.read_text()),
        }


def _command(case: str, plan: Path, folder: str) -> list[str]:
    if case == UNCOVERED:
        content = Plan.from_file(plan).to_mapping()
        content["stages"][-1]["last_layer"] += 1
        write_text(plan, json.dumps(content))  # JSON is YAML
        run = ["run", str(plan), "--run-directory", str(Path(folder, "run"))]
        return [sys.executable, "-m", "heterps", *run]
    num_ranks, fault = (3, "none") if case == WRONG_WORLD_SIZE else (2, case)
    module = "tests.runtime.faulty_script"
    return [*torchrun_command(plan, num_ranks, module=module), folder, fault]


def _messages(folder: Path, case: str, log: str) -> set[str]:
    """What the ranks wrote; of cases in which none can write, the last line of the log."""
    found = [json.loads(path.read_text()) for path in folder.glob("rank-*.json")]
    if found:
        return {entry[name] for entry in found for name in entry}
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return {next((line for line in lines if "rror" in line), lines[-1] if lines else "")}


def _left(group: int) -> int:
    """1 where a process of the group lives on for long; it is killed."""
    for _ in range(40):
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return 0
        time.sleep(0.05)
    os.killpg(group, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    main()
