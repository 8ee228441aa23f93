"""Section `large`: four blocks of llama-7b, whose layers keep a GPU busy: predicted and measured.

    python -m benchmarks.gpu.large

Layer times by the catalogue's numbers and by measurement, and a step of one stage by both.
"""

from __future__ import annotations

import argparse

from benchmarks.fidelity.own_runs import memory_rows
from benchmarks.gpu.cases import Rows, chain_of, device_type, measured, problem_of, run_section
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_profile
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

MODEL, NUM_BLOCKS, SIZE, NUM_MICRO_BATCHES = "llama-7b", 4, 4, 4
STEPS, TIMEOUT_S = 8, 100.0


def one_stage(options: argparse.Namespace) -> Rows:
    """The run, then the profile, in this order: the run matters most."""
    dtype: Dtype = "float32" if options.quick else "bfloat16"
    profile = load_profile("llama-tiny") if options.quick else _few_blocks()
    problem = problem_of(
        profile, [device_type(options).name],
        micro_batch_size=SIZE, num_micro_batches=NUM_MICRO_BATCHES, dtype=dtype,
    )  # fmt: skip
    plan = chain_of(problem, ["d0"])
    settings = RunSettings(steps=STEPS, device="auto", timeout_s=TIMEOUT_S, num_threads=8)
    result = run_plan(problem, plan, settings)
    row = {
        "model": profile.name,
        "measured_step_s": result.measured_step_time_s,
        "estimated_step_s": estimate(problem, plan).step_time_s,
        "estimated_forward_s": problem.layer_times.forward_s[:, 0].tolist(),
        "estimated_backward_s": problem.layer_times.backward_s[:, 0].tolist(),
        "allocated_bytes": [d.memory and d.memory.allocated_bytes for d in result.devices],
        "memory": memory_rows(estimate(problem, plan, with_memory=True), result.devices),
    }
    print(row, flush=True)
    found = measured(profile, options, [SIZE], dtype)
    entry = next(e for e in found.measurements if e.dtype == dtype and e.micro_batch_size == SIZE)
    sharp = problem_of(
        found, [device_type(options).name],
        micro_batch_size=SIZE, num_micro_batches=NUM_MICRO_BATCHES, dtype=dtype,
    )  # fmt: skip
    row |= {
        "profiled_step_s": estimate(sharp, plan).step_time_s,
        "profiled_forward_s": list(entry.forward_s),
        "profiled_backward_s": list(entry.backward_s),
        "profiled_optimizer_s": list(entry.optimizer_s),
        "launch_s": list(entry.launch_s),
    }
    return [row]


def _few_blocks() -> ModelProfile:
    source = load_profile(MODEL).source
    assert source is not None
    config = {**dict(source.config or {}), "num_hidden_layers": NUM_BLOCKS}
    return trace_source(source.changed(config=config), f"{MODEL}, {NUM_BLOCKS} blocks", "bfloat16")


if __name__ == "__main__":
    run_section(__doc__ or "", [one_stage])
