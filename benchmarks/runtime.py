"""Step time and host time of the executor, beside torch.distributed.pipelining.

    python benchmarks/runtime.py
    python benchmarks/runtime.py --quick --json runtime.json

Two processes of one thread each on this host, gloo, models cut in the middle. The cases of one
model take turns, step by step. Both executors start from the same parameters, and their losses are
compared. Host time: what a step of 32 micro-batches takes beyond the same number of plain forward
and backward passes of one tiny linear layer, for each micro-batch, waiting and loss included; the
CPU time of the main thread leaves the waiting out. Step time: 8 micro-batches of 4
samples, with the optimizer.
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

from benchmarks.common import parse_options, report

NUM_RANKS = 2
LIMIT_S = 600.0


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rows = measure(repeats=10 if options.quick else 60)
    steps = [row for row in rows if row["what"] == "step time"]
    hosts = [row for row in rows if row["what"].startswith("host time")]
    threads = [row for row in rows if row["what"].startswith("of which")]
    summary = {
        "median_ratio_to_torch": statistics.median(row["ratio"] for row in steps),
        "worst_ratio_to_torch": max(row["ratio"] for row in steps),
        "host_us_per_micro_batch": max(row["heterps_us"] for row in hosts),
        "host_us_per_micro_batch_torch": max(row["torch_us"] for row in hosts),
        "main_thread_us_per_micro_batch": max(row["heterps_us"] for row in threads),
        "main_thread_us_per_micro_batch_torch": max(row["torch_us"] for row in threads),
    }
    report("Executor, two processes", rows, summary, options)


def measure(repeats: int) -> list[dict[str, Any]]:
    """Starts the processes, and reads what they found."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "benchmarks.runtime_worker", str(path), str(repeats)]
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
