"""What passes before the first step: imports of a worker, and the start of four ranks after them.

    python benchmarks/runtime/startup.py
    python benchmarks/runtime/startup.py --quick --json startup.json

Imports: `heterps_runtime.run.worker` in a fresh process, alone, from the first line of its program
on. Start: four processes of one thread each have imported all that they need, the model's library
too. From there until the slowest of them could begin its first step: connections, the
specification, the own stages with their parameters, the owners of each parameter, and the
optimizer. Medians of fresh processes.
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

from benchmarks.runtime.models import source_of
from benchmarks.shared.common import parse_options, report
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.tracing.trace import trace_source

NUM_RANKS = 4
REPEATS = 5
LIMIT_S = 300.0
MODELS = ("mlp", "cnn", "llama")
_IMPORTS = """
import time; start_s = time.perf_counter()
import heterps_runtime.run.worker, sys
seconds = time.perf_counter() - start_s
assert "torch.distributed.pipelining" not in sys.modules
print(seconds)
"""


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    repeats = 1 if options.quick else REPEATS
    imports = [import_s() for _ in range(repeats)]
    rows: list[dict[str, Any]] = [
        {
            "what": "imports of a worker",
            "median_s": statistics.median(imports),
            "worst_s": max(imports),
        }
    ]
    for name in MODELS:
        found = [start_s(specification_of(name)) for _ in range(repeats)]
        rows.append(
            {
                "what": f"start of {NUM_RANKS} ranks, {name}",
                "median_s": statistics.median(found),
                "worst_s": max(found),
            }
        )
    summary = {
        "import_s": rows[0]["median_s"],
        "start_s": max(row["median_s"] for row in rows[1:]),
    }
    report("Start of a run", rows, summary, options)


def import_s() -> float:
    """Seconds of the imports of a worker."""
    command = [sys.executable, "-c", _IMPORTS]
    done = subprocess.run(
        command, env=_environment(), capture_output=True, text=True, check=True, timeout=LIMIT_S
    )
    return float(done.stdout)


def start_s(specification: RunSpecification) -> float:
    """Seconds from the last import to the first step of the slowest rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        specification.to_json_file(Path(folder) / SPECIFICATION_FILE)
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.runtime.startup_worker", folder],
                env={
                    **_environment(),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "WORLD_SIZE": str(NUM_RANKS),
                    "RANK": str(rank),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(NUM_RANKS)
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    found: list[float] = [json.loads(output)["start_s"] for output in outputs]
    return max(found)


def specification_of(name: str) -> RunSpecification:
    """A chain of four stages."""
    profile = trace_source(source_of(name), name)
    devices = [f"d{rank}" for rank in range(NUM_RANKS)]
    cuts = [rank * profile.num_layers // NUM_RANKS for rank in range(NUM_RANKS + 1)]
    job = Job(global_batch_size=32, micro_batch_size=4, dtype="float32")
    plan = Plan(
        model=name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster="here",
        job=job,
        stages=tuple(
            Stage(
                name=device,
                first_layer=cuts[rank],
                last_layer=cuts[rank + 1] - 1,
                devices=(device,),
            )
            for rank, device in enumerate(devices)
        ),
        pipelines=(
            Pipeline(stages=tuple(devices), micro_batches=tuple(range(job.num_micro_batches))),
        ),
    )
    problem = Problem(profile, _cluster(devices), job)
    schedule = build_schedule(problem, plan)
    return build_specification(problem, plan, schedule, RunSettings(steps=1), devices=devices)


def _cluster(devices: list[str]) -> Cluster:
    kind = DeviceType(
        name="core",
        kind="cpu",
        memory_bytes=2**40,
        peak_flops_per_s={"float32": 1e11},
        memory_bandwidth_bytes_per_s=1e10,
        price_usd_per_hour=0.0,
    )
    node = Node(
        name="here",
        devices=tuple(DeviceGroup(name=name, type=kind.name) for name in devices),
        link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
    )
    return Cluster(name="here", device_types=(kind,), nodes=(node,))


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    main()
