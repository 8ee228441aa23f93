"""Step time and host time of the executor, beside torch.distributed.pipelining.

    python benchmarks/runtime/runtime.py
    python benchmarks/runtime/runtime.py --quick --json runtime.json

Two processes of one thread each on this host, gloo, models cut in the middle. The cases of one
model take turns, step by step. Both executors start from the same parameters, and their losses are
compared. Host time: what a step of 32 micro-batches takes beyond the same number of plain forward
and backward passes of one tiny linear layer, for each micro-batch, waiting and loss included; the
CPU time of the main thread leaves the waiting out. Stages of a plain `nn.Sequential` run their
layers one after the other; those of a model with a `forward` of its own go through that to find
theirs, and take longer: both are shown. Step time: 8 micro-batches of 4 samples, with the
optimizer.

Host time depends on the machine more than on the executor: a message wakes a thread of gloo and
then the one that waits, in both processes. `messages alone` is what the two messages of a
micro-batch take on this machine when nothing else is done, from one to the other and back. It is
within the host time, and grows with whatever else runs: compare host times by their difference to
it, or with torch's in the same run.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.runtime.worker import OVERHEAD_MODELS
from benchmarks.shared.common import parse_options, report

NUM_RANKS = 2
LIMIT_S = 600.0


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rows = measure(repeats=10 if options.quick else 60)
    steps = [row for row in rows if row["what"] == "step time"]
    plain = [row for row in rows if row["model"] == OVERHEAD_MODELS["linear_pair"]]
    hosts = [row for row in plain if row["what"].startswith("host time")]
    threads = [row for row in plain if row["what"].startswith("of which")]
    walked = [row for row in rows if row["model"] == OVERHEAD_MODELS["own_forward"]]
    floors = [row["gloo_us"] for row in rows if row["what"].startswith("messages alone")]
    summary = {
        "median_ratio_to_torch": statistics.median(row["ratio"] for row in steps),
        "worst_ratio_to_torch": max(row["ratio"] for row in steps),
        "host_us_per_micro_batch": max(row["heterps_us"] for row in hosts),
        "host_us_per_micro_batch_torch": max(row["torch_us"] for row in hosts),
        "host_us_per_micro_batch_own_forward": max(
            row["heterps_us"] for row in walked if row["what"].startswith("host time")
        ),
        "messages_alone_us_per_micro_batch": min(floors),
        "main_thread_us_per_micro_batch": max(row["heterps_us"] for row in threads),
        "main_thread_us_per_micro_batch_torch": max(row["torch_us"] for row in threads),
    }
    report("Executor, two processes", rows, summary, options)


def measure(repeats: int, worker: str = "benchmarks.runtime.worker") -> list[dict[str, Any]]:
    """Starts the processes, and reads what they found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", worker, str(path), str(repeats)]
        processes = [subprocess.Popen(command, env=environment) for environment in _environments()]
        try:
            codes = [process.wait(LIMIT_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise SystemExit(f"the processes ended with codes {codes}")
        rows: list[dict[str, Any]] = json.loads(path.read_text())
        return rows


def _environments() -> list[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(NUM_RANKS),
            "RANK": str(rank),
        }
        for rank in range(NUM_RANKS)
    ]


if __name__ == "__main__":
    main()
