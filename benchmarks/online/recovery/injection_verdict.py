"""Runs one case of the fault injections, and judges what became of it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence, Set
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.agent.section import Row
from benchmarks.online.recovery.injection_cases import (
    CHECKPOINT_EVERY,
    LONG_STEPS,
    STEPS,
    Case,
    plan_named,
    problem,
)
from benchmarks.online.recovery.injection_run import processes_in
from benchmarks.shared.sockets import Listener, listeners_of, still_open
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_files import checkpoint_path, complete_checkpoints

# A run that takes longer hangs; the slowest takes a fraction of it, even on two busy cores.
LIMIT_S = 120.0
# Workers see within about a second that the supervisor has gone.
ORPHAN_S = 8.0
TOLERANCE = 1e-5
# A step that is reported so soon after a fault was done before it.
SEEN_S = 0.05
# How often the sockets of a run are looked at, and how long they may outlive its processes.
LOOK_S, CLOSE_S = 0.2, 1.0
FAILURES = (
    "hang",
    "error",
    "wrong losses",
    "wrong state",
    "bad checkpoint",
    "processes left",
    "open sockets",
)


def case_row(case: Case, keep: Path | None = None) -> Row:
    """Runs one case and judges it.

    Args:
        case: What is done.
        keep: Everything that the run leaves is left here.
    """
    with tempfile.TemporaryDirectory(prefix="injection-") as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "case.json", case.model_dump_json())
        began_s = time.monotonic()
        with listeners_while(folder) as seen:
            failure, detail, outcome = _lived(case, folder)
            left = _left_behind(folder, 0.5 if not failure else 0.0)
        sockets = open_sockets(seen)
        if left and not failure:
            failure, detail = "processes left", "; ".join(left)[:300]
        elif sockets and not failure:
            failure, detail = "open sockets", "; ".join(sockets)[:300]
    losses = outcome.get("losses", [])
    wanted = reference(case.is_of_blocks).losses[outcome.get("first_step", 0) :]
    differences = [abs(a - b) for a, b in zip(losses, wanted, strict=False)]
    return {
        "seed": case.seed,
        "kind": case.kind,
        "plan": case.plan,
        "failure": failure,
        "detail": detail,
        "loss_difference": max(differences, default=0.0),
        "listeners": len({each.inode for each in seen}),
        "pauses": [entry["pause_s"] for entry in outcome.get("recoveries", [])],
        "first_step_s": first_new_step_s(
            outcome.get("done_at_s", []), outcome.get("steps_at_s", [])
        ),
        "recovery_s": recovery_s(outcome),
        "wall_s": time.monotonic() - began_s,
    }


def recovery_s(outcome: dict[str, Any]) -> float:
    """From the loss to the end of the next step, less a usual step of the new plan; 0: unknown.

    How long a step takes depends on the plan, and on how busy the machine is.
    """
    recoveries, faults_s = outcome.get("recoveries", []), outcome.get("done_at_s", [])
    if len(recoveries) != 1 or len(faults_s) != 1:
        return 0.0
    first_step_s: float = recoveries[0]["first_step_s"]
    ends_s = [end_s for end_s in outcome["steps_at_s"] if end_s > faults_s[0] + first_step_s]
    usual_s: float = statistics.median([b - a for a, b in pairwise(ends_s)] or [0.0])
    return first_step_s - usual_s


def first_new_step_s(faults_s: Sequence[float], steps_s: Sequence[float]) -> float:
    """The longest time from a fault to the next step, where no further fault came between."""
    longest_s = 0.0
    for fault_s, next_fault_s in zip(faults_s, [*faults_s, math.inf][1:], strict=True):
        step_s = next((step_s for step_s in steps_s if step_s > fault_s + SEEN_S), None)
        if step_s is not None and step_s < next_fault_s:
            longest_s = max(longest_s, step_s - fault_s)
    return longest_s


def _lived(case: Case, folder: Path) -> tuple[str, str, dict[str, Any]]:
    """Failure, its detail and the outcome of the last process."""
    ended, log = _ended(folder)
    if not ended:
        return "hang", log, {}
    if case.kind == "supervisor killed":
        left = _left_behind(folder, ORPHAN_S)
        if left:
            return "processes left", "; ".join(left)[:300], {}
        bad = _bad_checkpoint(case, folder)
        if bad:
            return "bad checkpoint", bad, {}
        # After a crash before the first checkpoint was complete, a user starts anew.
        is_resumed = bool(complete_checkpoints(folder / "checkpoints"))
        ended, log = _ended(folder, is_resumed=is_resumed, is_second=True)
        if not ended:
            return "hang", f"again: {log}", {}
    path = folder / "outcome.json"
    if not path.exists():
        return "error", f"no outcome: {log}", {}
    outcome = json.loads(path.read_text())
    return *_judged(case, folder, outcome), outcome


def _ended(folder: Path, *, is_resumed: bool = False, is_second: bool = False) -> tuple[bool, str]:
    """Whether the run ended within its time, and the end of what it printed."""
    server = _server()
    assert server.stdin is not None
    options = f"{' --resume' if is_resumed else ''}{' --quiet' if is_second else ''}"
    server.stdin.write(f"{folder}{options}\n")
    server.stdin.flush()
    pid = int(_line(server, LIMIT_S) or 0)
    is_over = _line(server, LIMIT_S) is not None
    if not is_over:
        os.killpg(pid, signal.SIGKILL)
        _line(server, LIMIT_S)
    return is_over, (folder / "log.txt").read_text(errors="replace")[-500:]


@cache
def _server() -> subprocess.Popen[str]:
    """Forks the processes of all runs; it ends with this one, whose pipe it reads."""
    module = "benchmarks.online.recovery.injection_run"
    return subprocess.Popen(
        [sys.executable, "-m", module, "--serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def _line(server: subprocess.Popen[str], wait_s: float) -> str | None:
    """Its next line; None where none comes in time."""
    assert server.stdout is not None
    if not select.select([server.stdout], [], [], wait_s)[0]:
        return None
    line = server.stdout.readline()
    if not line:
        raise HeterpsError("the process that forks the runs has ended")
    return line


def _judged(case: Case, folder: Path, outcome: dict[str, Any]) -> tuple[str, str]:
    if outcome["error"]:
        return "error", outcome["error"][:300]
    first, losses = outcome["first_step"], outcome["losses"]
    wanted = reference(case.is_of_blocks).losses[first : case.steps]
    if len(losses) != len(wanted):
        return "wrong losses", f"{len(losses)} losses from step {first}, not {len(wanted)}"
    differences = [abs(a - b) for a, b in zip(losses, wanted, strict=True)]
    if not all(difference <= TOLERANCE for difference in differences):
        worst = max(range(len(wanted)), key=lambda step: differences[step])
        return "wrong losses", f"step {first + worst}: {losses[worst]}, not {wanted[worst]}"
    bad = _bad_checkpoint(case, folder, case.steps)
    if bad:
        is_state = bad.startswith("parameters")
        return ("wrong state" if is_state else "bad checkpoint"), bad
    return "", ""


def _bad_checkpoint(case: Case, folder: Path, step: int | None = None) -> str:
    """What is wrong with the newest checkpoint; `step` is after which step it should be."""
    found = complete_checkpoints(folder / "checkpoints")
    if not found:
        return "there is none" if step is not None else ""
    try:
        state = load_state_dict(found[-1])
    except HeterpsError as error:
        return str(error)
    if step is not None and state.document.step != step:
        return f"the newest is after step {state.document.step}, not {step}"
    wanted = reference(case.is_of_blocks).states[state.document.step].model
    squares = [((state.model[name] - wanted[name]) ** 2).mean().item() for name in wanted]
    rms = math.sqrt(max(squares))
    # A step that is left out or done twice moves all parameters by about the learning rate, 1e-3.
    return f"parameters differ by {rms:.2g} (RMS)" if not rms <= TOLERANCE else ""


def _left_behind(folder: Path, wait_s: float) -> list[str]:
    """Command lines of processes of a run that outlive it; they are killed."""
    deadline_s = time.monotonic() + wait_s
    while True:
        left = processes_in(folder)
        if not left or time.monotonic() > deadline_s:
            break
        time.sleep(0.05)
    for pid, _ in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return [text for _, text in left]


@contextlib.contextmanager
def listeners_while(folder: Path) -> Iterator[set[Listener]]:
    """All that processes of a run listen on, looked at again and again; complete after the end."""
    seen: set[Listener] = set()
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(LOOK_S):
            seen.update(listeners_of(pid for pid, _ in processes_in(folder)))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield seen
    finally:
        is_over.set()
        looking.join()


def open_sockets(seen: Set[Listener]) -> list[str]:
    """Those that other hosts could reach, and after a moment those that still listen."""
    deadline_s = time.monotonic() + CLOSE_S
    while (left := still_open(seen)) and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
    outer = {each for each in seen if not each.is_loopback}
    return [
        f"{each.address}:{each.port} {'beyond the loopback' if each in outer else 'left open'}"
        for each in sorted(outer | left)
    ]


class Reference:
    """The uninterrupted run, on one device.

    Attributes:
        losses: Of every step.
        states: By steps that are done.
    """

    def __init__(self, *, is_of_blocks: bool) -> None:
        of = problem(is_emulated=False, is_of_blocks=is_of_blocks)
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory(prefix="injection-reference-") as folder:
            settings = CheckpointSettings(folder=folder, every=CHECKPOINT_EVERY, keep=LONG_STEPS)
            plan = plan_named("one device", of)
            self.losses = run_plan(
                of, plan, RunSettings(steps=LONG_STEPS, checkpoint=settings)
            ).losses
            # Others are not looked at: a run with more steps is a long one, and ends after them.
            wanted = [
                checkpoint_path(Path(folder), step) for step in (*range(STEPS + 1), LONG_STEPS)
            ]
            found = [load_state_dict(path) for path in wanted if path.exists()]
            self.states = {state.document.step: state for state in found}


@cache
def reference(is_of_blocks: bool) -> Reference:
    """Trained once for each model."""
    return Reference(is_of_blocks=is_of_blocks)
