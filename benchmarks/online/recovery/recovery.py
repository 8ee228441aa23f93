"""Recovery of killed and hung ranks: from the fault to the first new step.

python benchmarks/online/online.py --only recovery
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.recovery.recovery_run import HEARTBEAT_S, KINDS, PERIOD_S, TWO
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_configs.errors import HeterpsError

TITLE = "Recovery of killed and hung ranks"
PLANS = ("two pipelines", "chain of four")
REPEATS, QUICK_REPEATS = 3, 1
RUN_LIMIT_S = 400.0
# Switches torchrun's shared store off: with it, restarted ranks never met here.
SHARED_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
TARGETS = [
    Target("killed rank: fault to first new step, median", "kill median_s", 1.0, unit=" s"),
    Target("killed rank: the same, slowest", "kill slowest_s", 1.0, unit=" s"),
    Target(
        "hung rank: the same, median (heartbeat + 1 s)", "hang median_s", HEARTBEAT_S + 1, unit=" s"
    ),
    Target("hung rank: the same, slowest", "hang slowest_s", HEARTBEAT_S + 1, unit=" s"),
]
NOTE = (
    "Four emulated devices, a model of 340,000 parameters, AdamW, a checkpoint every 20 steps; "
    f"plans by the controller of the command, heartbeats missed for {HEARTBEAT_S:g} s. Devices "
    "that are lost come back, and others go. `first_step_s`: from the fault to the end of the new "
    "step: `noticed`, `planned`, `connected` (ranks have met), `state` (all of it is in place), "
    "and the step itself; medians. Every stage of `two pipelines` has a replica of its layers. "
    "Processes are forked from one that has imported torch, so that devices come back at once. "
    "torchrun: the same number of ranks on one host, one is killed, `--max-restarts 3`, until the "
    f"first step of all; it loads no state, and needs {SHARED_STORE}=1 to restart at all."
)


def run(settings: Settings) -> SectionResult:
    """Every kind of fault under every plan."""
    repeats = QUICK_REPEATS if settings.quick else REPEATS
    plans = PLANS[:1] if settings.quick else PLANS
    store = settings.store("recovery", repeats=repeats, period_s=PERIOD_S)
    cases = [(kind, plan) for kind in KINDS for plan in plans]
    with progress_bar("recovery", len(cases) + 1) as advance:
        for kind, plan in cases:
            if f"{kind} {plan}" not in store:
                store.add(f"{kind} {plan}", {"found": _recoveries(kind, plan, repeats)})
            advance(f"{kind}, {plan}")
        if "torchrun" not in store:
            store.add("torchrun", {"seconds": [_torchrun_s() for _ in range(min(repeats, 2))]})
        advance("torchrun")
    rows, summary = [], {}
    for kind, plan in cases:
        found = store[f"{kind} {plan}"]["found"]
        rows.append(_row(kind, plan, found))
    for kind in KINDS:
        every = [e["first_step_s"] for p in plans for e in store[f"{kind} {p}"]["found"]]
        summary[f"{kind} median_s"] = statistics.median(every) if every else float("inf")
        summary[f"{kind} slowest_s"] = max(every, default=float("inf"))
    restarts = [seconds for seconds in store["torchrun"]["seconds"] if seconds is not None]
    summary["torchrun restart median_s"] = statistics.median(restarts) if restarts else None
    rows.append(
        {
            **dict.fromkeys(rows[0], ""),
            "fault": "kill, torchrun restarts",
            "repeats": len(store["torchrun"]["seconds"]),
            "first_step_s": summary["torchrun restart median_s"] or "never",
            "slowest_s": max(restarts, default="never"),
        }
    )
    return SectionResult([TableRows("recovery", "Recovery", NOTE, rows)], summary, store)


def _row(kind: str, plan: str, found: Sequence[Row]) -> Row:
    def median(name: str) -> float:
        return statistics.median([entry[name] or 0.0 for entry in found]) if found else float("nan")

    return {
        "fault": kind,
        "plan": plan,
        "repeats": len(found),
        "first_step_s": median("first_step_s"),
        "slowest_s": max((entry["first_step_s"] for entry in found), default=float("nan")),
        "noticed_s": median("detected_s"),
        "planned_s": median("replanned_s"),
        "connected_s": median("connected_s"),
        "state_s": median("state_s"),
        "prepared share": sum("prepared before" in e["decision"] for e in found)
        / max(len(found), 1),
        "steps repeated": median("steps_repeated"),
    }


def _recoveries(kind: str, plan: str, repeats: int) -> list[Row]:
    """Of one run in which devices are lost and come back: its recoveries from losses."""
    with tempfile.TemporaryDirectory() as folder:
        module = "benchmarks.online.recovery.recovery_run"
        command = [sys.executable, "-m", module, folder, kind, plan, str(repeats)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=RUN_LIMIT_S)
        path = Path(folder, "recoveries.json")
        if not path.exists():
            raise HeterpsError(f"{kind}, {plan}: {ended.stderr[-500:]}")
        found: list[Row] = json.loads(path.read_text())
    return [entry for entry in found if _is_wanted(entry, kind)]


def _is_wanted(entry: Row, kind: str) -> bool:
    """A recovery from the whole fault, not from a join, and of devices that trained."""
    return len(entry["lost"]) == (2 if kind == TWO else 1) and not entry["joined"]


def _torchrun_s() -> float | None:
    """Seconds from a rank's end to the first step after torchrun's restart; None: never."""
    script = Path(__file__).with_name("torchrun_restart.py")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4",
            "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
            str(script), folder,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", SHARED_STORE: "1"},
        )
        try:
            process.wait(180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        times = [Path(folder, name) for name in ("fault", "again")]
        if not times[0].exists():
            raise HeterpsError("torchrun did not start in time")
        if not times[1].exists():
            return None
        fault_s, again_s = (float(path.read_text()) for path in times)
        return again_s - fault_s
