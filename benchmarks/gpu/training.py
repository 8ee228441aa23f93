"""Section `training`: a small Llama for 200 steps under a plan, beside a plain PyTorch loop.

    python -m benchmarks.gpu.training

Both train the same model from the same parameters on the same batches, in float32, on the GPU: the
loss curves must agree. The plain loop is what a user writes: the library's model, `backward`, the
optimizer, micro-batch after micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import cast

import torch
import transformers

from benchmarks.gpu.cases import Rows, chain_of, device_type, problem_of, run_section
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_runtime.models.losses import SourceLoss
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.specification.devices import to_device
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.stages.start_values import Initialised
from heterps_runtime.training.batches import Needs, SyntheticBatches

MODEL, WARM_UP = "llama-tiny", 3


def fine_tuning(options: argparse.Namespace) -> Rows:
    """The pipeline of one process and of two, and the plain loop."""
    steps = 6 if options.quick else 200
    gpu = device_type(options).name
    rows: Rows = []
    settings = RunSettings(steps=steps, timeout_s=150.0, num_threads=2)
    curves: dict[str, Sequence[float]] = {}
    for what, devices in (("one process", ["d0", "d0"]), ("two processes", ["d0", "d1"])):
        problem = problem_of(
            load_profile(MODEL),
            [gpu] * len(set(devices)),
            micro_batch_size=8,
            num_micro_batches=4,
        )
        result = run_plan(problem, chain_of(problem, devices), settings)
        what = f"two stages, {what}"
        curves[what] = result.losses
        rows.append({"what": what, "step_s": result.measured_step_time_s})
    losses, seconds = _plain_loop(problem, options, steps)
    rows.append({"what": "plain PyTorch loop", "step_s": seconds})
    curves["plain PyTorch loop"] = losses
    for row in rows:
        own = curves[row["what"]]
        row |= {
            "samples_per_s": problem.job.global_batch_size / row["step_s"],
            "first_loss": own[0],
            "last_loss": own[-1],
            "loss_difference": max(abs(a - b) for a, b in zip(own, losses, strict=True)),
            "losses": list(own),
        }
    return rows


def _plain_loop(
    problem: Problem, options: argparse.Namespace, steps: int
) -> tuple[list[float], float]:
    """Losses, and seconds of a step."""
    source, job, device = problem.profile.source, problem.job, torch.device(options.device)
    assert source is not None
    model = _model(problem).to(device)
    model.train()
    optimizer = build_optimizer("adamw", model.parameters())
    assert optimizer is not None
    data, needs = SyntheticBatches(source, job, 0), Needs.all_of(range(job.num_micro_batches))
    curve, seconds, measure = [], [], SourceLoss(source)
    for step in range(steps):
        batches = to_device(data.read(step, needs).batches, device)
        _wait(device)
        began_s, total = time.perf_counter(), torch.zeros((), device=device)
        for inputs, target in batches.values():
            output = model(**inputs, use_cache=False).logits
            loss = measure.total(output, target)
            loss = loss / (measure.elements(target) * job.global_batch_size)
            torch.autograd.backward(loss)
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        curve.append(float(total))
        seconds.append(time.perf_counter() - began_s)
    return curve, statistics.median(seconds[WARM_UP:])


def _model(problem: Problem) -> torch.nn.Module:
    """The library's model with the values that a run starts from."""
    profile = problem.profile
    assert profile.source is not None
    whole = StagePart(0, profile.num_layers - 1, problem.job.micro_batch_size)
    values = build_stage(profile.source, profile, whole, Initialised(0)).parameters_by_name()
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**dict(profile.source.config or {}))
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    return cast(torch.nn.Module, model)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    run_section(__doc__ or "", [fine_tuning])
