"""Section `mixed`: a CPU and a GPU in one pipeline, messages over gloo through pinned memory.

    python -m benchmarks.gpu.mixed

The first layers on the CPU (of a click-through model the tables, of a language model the embedding
and a block), the rest on the GPU; beside each of them alone.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.gpu.cases import CPU_TYPE, Rows, chain_of, device_type, problem_of, run_section
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_profile
from heterps_runtime.run.run_plan import run_plan

# Model, samples of a micro-batch, layers on the CPU.
CASES = (("ctr-tiny", 512, 1), ("llama-tiny", 8, 1), ("gpt2", 1, 1))
STEPS, THREADS, TIMEOUT_S = 8, 8, 150.0


def pipelines(options: argparse.Namespace) -> Rows:
    """Samples per second of both together, and of each alone."""
    rows: Rows = []
    for name, size, cut in CASES[: 2 if options.quick else None]:
        throughput: dict[str, float] = {}
        losses: dict[str, Any] = {}
        for what in ("cpu", "gpu", "both"):
            types = {"cpu": [CPU_TYPE], "gpu": [device_type(options).name]}
            problem = problem_of(
                load_profile(name),
                types.get(what, [CPU_TYPE, device_type(options).name]),
                micro_batch_size=size,
                dtype="float32",
            )
            devices, cuts = (["d0", "d1"], [cut]) if what == "both" else (["d0"], [])
            result = run_plan(
                problem,
                chain_of(problem, devices, cuts),
                RunSettings(steps=STEPS, num_threads=THREADS, timeout_s=TIMEOUT_S),
            )
            throughput[what] = result.throughput_samples_per_s or 0.0
            losses[what] = result.losses
            print(name, what, throughput[what], flush=True)
        rows.append(
            {
                "model": name,
                "layers_on_cpu": cut,
                **{f"{what}_samples_per_s": value for what, value in throughput.items()},
                "share_of_both": throughput["both"] / (throughput["cpu"] + throughput["gpu"]),
                "loss_difference": max(
                    abs(a - b) for a, b in zip(losses["both"], losses["gpu"], strict=True)
                ),
            }
        )
    return rows


if __name__ == "__main__":
    run_section(__doc__ or "", [pipelines])
