"""A long run: memory and descriptors of all its processes stay as they are, and it ends at once.

    python benchmarks/trust/long_run.py
    python benchmarks/trust/long_run.py --quick --json long_run.json

The command `heterps run` with TensorBoard and a checkpoint every 20 steps, also with `--elastic`,
of a small model on two devices. Sampled twice a second: memory (RSS) and open descriptors of the
command and of all processes under it. `growth`: the mean of the last tenth of the samples less that
of the tenth behind the first 100 steps. `ends after`: from the end of the last rank to that of the
command.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.shared.common import Row, report
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType

STEPS, QUICK_STEPS, WARM_STEPS, CHECKPOINT_EVERY = 2000, 300, 100, 20
SAMPLE_S = 0.5
FORMS = {"run": (), "run --elastic": ("--elastic",)}


@dataclass
class Watched:
    """What was seen of a command.

    Attributes:
        steps: That were done by then, as its checkpoints say.
        memory_bytes: Of all its processes together, at each sample.
        descriptors: Likewise.
        num_processes: Likewise.
        ends_after_s: From the end of its last rank to its own.
        wall_s: Of all.
        code: It ended with.
    """

    steps: list[int] = field(default_factory=list)
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    num_processes: list[int] = field(default_factory=list)
    ends_after_s: float = 0.0
    wall_s: float = 0.0
    code: int = 0

    def growth(self, values: Sequence[int], warm_steps: int) -> float:
        """Between the first warm tenth of the samples and the last."""
        kept = [v for v, step in zip(values, self.steps, strict=True) if step >= warm_steps]
        tenth = max(1, len(kept) // 10)
        return statistics.fmean(kept[-tenth:]) - statistics.fmean(kept[:tenth]) if kept else 0.0


def long_run_rows(steps: int = STEPS) -> list[dict[str, Any]]:
    """One row for each form of the command."""
    return [_row(name, options, steps) for name, options in FORMS.items()]


def _row(name: str, options: Sequence[str], steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        seen = watched(Path(folder), steps, options)
    warm = min(WARM_STEPS, steps // 3)
    return {
        "command": name,
        "steps": steps,
        "code": seen.code,
        "processes": max(seen.num_processes, default=0),
        "memory MiB": max(seen.memory_bytes, default=0) / 2**20,
        "memory growth MiB": seen.growth(seen.memory_bytes, warm) / 2**20,
        "descriptors": max(seen.descriptors, default=0),
        "descriptor growth": seen.growth(seen.descriptors, warm),
        "ends after s": seen.ends_after_s,
        "wall s": seen.wall_s,
    }


def watched(folder: Path, steps: int, options: Sequence[str] = ()) -> Watched:
    """Runs the command to its end."""
    plan, settings, cluster = (folder / name for name in ("plan.yaml", "run.yaml", "two.yaml"))
    two_cores().to_file(cluster)
    place = ["place", "perceptron", "-c", str(cluster), "--global-batch", "8", "-o", str(plan)]
    subprocess.run([sys.executable, "-m", "heterps", *place], check=True, capture_output=True)
    settings.write_text(f"checkpoint: {{every: {CHECKPOINT_EVERY}, keep: 2}}\n")
    saved = folder / "saved"
    run = [
        "run", str(plan), "--settings", str(settings), "--steps", str(steps), "--checkpoint",
        str(saved), "--tensorboard", str(folder / "board"), "--run-directory", str(folder / "run"),
        *options,
    ]  # fmt: skip
    seen, began_s = Watched(), time.monotonic()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "heterps", *run], stdout=log, stderr=log)
        last_rank_s = sampled_s = time.monotonic()
        while process.poll() is None:
            now_s = time.monotonic()
            tree = list(processes_under(process.pid))
            if any(_name_of(pid).startswith("heterps ") for pid in tree):
                last_rank_s = now_s
                if now_s - sampled_s >= SAMPLE_S:
                    sampled_s = now_s
                    seen.steps.append(_newest_step(saved))
                    seen.memory_bytes.append(sum(map(_memory_bytes, tree)))
                    seen.descriptors.append(sum(map(_num_descriptors, tree)))
                    seen.num_processes.append(len(tree))
            time.sleep(0.02)
    seen.code = process.returncode
    seen.ends_after_s, seen.wall_s = time.monotonic() - last_rank_s, time.monotonic() - began_s
    if seen.code:
        sys.stderr.write((folder / "log").read_text()[-2000:])
    return seen


def two_cores() -> Cluster:
    """Two devices that run at the speed of the host."""
    device = DeviceType(
        name="core",
        kind="cpu",
        memory_bytes=10**9,
        peak_flops_per_s={"float32": 1e10},
        memory_bandwidth_bytes_per_s=1e10,
        price_usd_per_hour=1.0,
    )
    node = Node(
        name="node",
        devices=(DeviceGroup(name="core", type="core", count=2),),
        link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
    )
    return Cluster(name="two cores", device_types=(device,), nodes=(node,))


def processes_under(pid: int) -> Iterator[int]:
    """A process, and all that it and they have started."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from processes_under(int(child))


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        # A process that has ended, and that nobody has asked for its code, counts no more.
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            return Path(f"/proc/{pid}/comm").read_text()
    return ""


def _memory_bytes(pid: int) -> int:
    """Without what it shares with the process that it was forked from."""
    with contextlib.suppress(OSError):
        _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _num_descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def _newest_step(saved: Path) -> int:
    return max((int(path.name[5:]) for path in saved.glob("step-*")), default=0)


def summary_of(rows: Sequence[Row]) -> dict[str, Any]:
    """Of all forms together."""
    return {
        "largest_memory_growth_mib": max(row["memory growth MiB"] for row in rows),
        "largest_descriptor_growth": max(row["descriptor growth"] for row in rows),
        "slowest_end_s": max(row["ends after s"] for row in rows),
        "failed": sum(row["code"] != 0 for row in rows),
    }


def main() -> None:
    """Runs the commands and prints their table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS, help="of each run")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps")
    parser.add_argument("--json", type=Path, help="write rows and summary to this file")
    options = parser.parse_args()
    rows = long_run_rows(QUICK_STEPS if options.quick else options.steps)
    report("long runs", rows, summary_of(rows), options)


if __name__ == "__main__":
    main()
