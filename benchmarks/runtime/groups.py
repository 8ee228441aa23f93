"""Tensor-parallel groups: uneven ones over even ones, and a block beside torch's own way.

    python benchmarks/runtime/groups.py
    python benchmarks/runtime/groups.py --quick --json groups.json

Two processes of one thread each on this host, gloo. `uneven`: a group of two emulated devices, one
three times as fast as the other, with even shares and with those of their speeds; step times as
predicted and as measured, under the real launcher. `block`: blocks of Llama (attention and gated
linear layers) on a rank's slices, beside the same blocks under `parallelize_module` with the plan
that transformers names for them, in turns in one run; `passes` are forward and backward, `step`
has AdamW, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from benchmarks.runtime.runtime import measure
from benchmarks.shared.common import machine, parse_options, report
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_configs.documents.yaml_files import write_text
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.profiler import measure as measured_profile
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

HOST = "host-cpu"
SLOWDOWNS = (60.0, 20.0)  # speeds 1 and 3
SHARES = {"even": (0.5, 0.5), "by speed": (0.25, 0.75)}
NUM_MICRO_BATCHES, MICRO_BATCH_SIZE, STEPS = 4, 2, 5


def main() -> None:
    """Runs the benchmark and prints its tables."""
    options = parse_options(__doc__ or "")
    rows = uneven_rows(seed=options.seed)
    even, by_speed = rows
    block = measure(10 if options.quick else 40, "benchmarks.runtime.group_worker")
    summary = {
        "uneven_over_even_measured": even["measured_s"] / by_speed["measured_s"],
        "uneven_over_even_predicted": even["predicted_s"] / by_speed["predicted_s"],
        "worst_error_of_prediction": max(abs(row["error"]) for row in rows),
        "block_median_ratio_to_torch": statistics.median(row["step_ratio"] for row in block),
        "block_worst_ratio_to_torch": max(row["step_ratio"] for row in block),
        "block_median_passes_ratio_to_torch": statistics.median(r["passes_ratio"] for r in block),
    }
    only_shown = argparse.Namespace(json=None)
    report("Uneven groups of two emulated devices", rows, {}, only_shown)
    report("Blocks of Llama on two processes", block, summary, only_shown)
    if options.json:
        content = {"uneven": rows, "block": block, "summary": {**summary, **machine()}}
        write_text(options.json, json.dumps(content, indent=1) + "\n")


def uneven_rows(seed: int) -> list[dict[str, Any]]:
    """Step times of a group of unlike devices, with even shares and with those of their speeds."""
    profile = measured_profile(trace_source(_llama(), "llama"), HOST, (MICRO_BATCH_SIZE,))
    return [_uneven_row(profile, name, seed) for name in SHARES]


def _uneven_row(profile: ModelProfile, name: str, seed: int) -> dict[str, Any]:
    job = Job(
        global_batch_size=NUM_MICRO_BATCHES * MICRO_BATCH_SIZE,
        micro_batch_size=MICRO_BATCH_SIZE,
        dtype="float32",
        optimizer="adamw",
    )
    problem = Problem(profile, _unlike_devices(), job)
    stage = Stage(
        name="all",
        first_layer=0,
        last_layer=profile.num_layers - 1,
        devices=("slow", "fast"),
        tensor_shares=SHARES[name],
    )
    plan = Plan(
        model=profile.name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster=problem.cluster.name,
        job=job,
        stages=(stage,),
        pipelines=(Pipeline(stages=("all",), micro_batches=tuple(range(NUM_MICRO_BATCHES))),),
        planner="by hand",
    )
    predicted_s = estimate(problem, plan).step_time_s
    result = run_plan(problem, plan, RunSettings(steps=WARM_UP_STEPS + STEPS, seed=seed))
    measured_s = statistics.median(result.step_times_s[WARM_UP_STEPS:])
    return {
        "what": f"speeds 1 and 3, shares {name}",
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "error": predicted_s / measured_s - 1,
    }


def _llama() -> ModelSource:
    """Four layers, of which nearly all can be split."""
    config = {
        "model_type": "llama",
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "vocab_size": 256,
    }
    return huggingface_source(config, sequence_length=32)


def _unlike_devices() -> Cluster:
    """Two emulated devices on one node, one three times as fast as the other."""
    names = ("slow", "fast")
    types = tuple(
        DeviceType(
            name=f"emulated-{name}",
            kind="cpu",
            memory_bytes=2**31,
            peak_flops_per_s={"float32": 3e9 * SLOWDOWNS[1] / slowdown},
            memory_bandwidth_bytes_per_s=3e9 * SLOWDOWNS[1] / slowdown,
            price_usd_per_hour=0.0,
            emulation=Emulation(host_device_type=HOST, slowdown=slowdown),
        )
        for name, slowdown in zip(names, SLOWDOWNS, strict=True)
    )
    node = Node(
        name="node",
        devices=tuple(DeviceGroup(name=name, type=f"emulated-{name}") for name in names),
        link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
    )
    return Cluster(name="two emulated devices", device_types=types, nodes=(node,))


if __name__ == "__main__":
    main()
