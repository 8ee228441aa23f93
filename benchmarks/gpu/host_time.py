"""Section `host_time`: what the executor costs the host for each micro-batch on a GPU.

    python -m benchmarks.gpu.host_time

A step of 32 micro-batches of two tiny linear layers, in one stage or in two of this process: what
it takes beyond the same number of plain forward and backward passes. Beside it a step of
torch.distributed.pipelining of one stage, and parts of a step of ours that no plain loop has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.gpu.cases import Rows, chain_of, device_type, problem_of, run_section
from benchmarks.runtime.models import source_of
from benchmarks.shared.common import interleaved_medians
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.cuda_clock import CudaClock
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.emulation import HostClock
from heterps_runtime.execution.executor import Executor
from heterps_runtime.execution.local_turns import (
    LetterBox,
    LocalGatherer,
    LocalMessenger,
    take_turns,
)
from heterps_runtime.models.random_numbers import random_numbers
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.devices import to_device
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.gradient_norm import squared_norm
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.tracing.trace import trace_source
from heterps_runtime.transport.device_messenger import host_copy_of

NUM_MICRO_BATCHES, SIZE, WIDTH = 32, 4, 64
Run = Callable[[], object]


def steps(options: argparse.Namespace) -> Rows:
    """Microseconds of a micro-batch beyond its plain passes."""
    device = torch.device(options.device)
    cases: dict[str, Run] = {"plain": _plain(device)}
    cases["heterps, one stage"] = _ours(options, ["d0"])
    cases["heterps, two stages"] = _ours(options, ["d0", "d0"])
    with TemporaryDirectory() as folder:
        try:
            cases["torch, one stage"] = _torchs(device, Path(folder))
        except Exception as error:
            print(f"torch.distributed.pipelining: {error}")
        synchronized = {name: _until_done(run, device) for name, run in cases.items()}
        seconds = interleaved_medians(synchronized, 10 if options.quick else 60)
        if dist.is_initialized():
            dist.destroy_process_group()
    return [
        {
            "what": "host time of a micro-batch",
            "by": name,
            "us": 1e6 * (step_s - seconds["plain"]) / NUM_MICRO_BATCHES,
            "step_us": 1e6 * step_s,
        }
        for name, step_s in seconds.items()
    ]


def parts(options: argparse.Namespace) -> Rows:
    """Microseconds of single parts."""
    device = torch.device(options.device)
    parameters = [nn.Parameter(torch.randn(64, 64, device=device)) for _ in range(148)]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    clock = CudaClock(device) if device.type == "cuda" else HostClock()
    message = torch.randn(2**20, device=device)

    def one_norm() -> float:
        return float(
            torch.stack(torch._foreach_norm([p.grad for p in parameters if p.grad is not None]))
            .square()
            .sum()
        )

    def draw() -> None:
        with random_numbers((0, 0, 0), device) as part:
            part(0)

    def action() -> None:
        clock.start_step(0.0)
        for _ in range(100):
            clock.begin()
            clock.finish(0.0)

    cases: dict[str, Run] = {
        "norm of 148 gradients": lambda: squared_norm(parameters),
        "the same by fused kernels, in float32": one_norm,
        "random numbers of a pass": draw,
        "100 actions on the clock": action,
        "pinned memory for 4 MiB": lambda: host_copy_of(message),
        "4 MiB to the host, pinned": lambda: host_copy_of(message).copy_(
            message, non_blocking=True
        ),
        "4 MiB to the host, plain": lambda: message.cpu(),
    }
    synchronized = {name: _until_done(run, device) for name, run in cases.items()}
    seconds = interleaved_medians(synchronized, 30)
    return [{"what": name, "us": 1e6 * value} for name, value in seconds.items()]


def _until_done(run: Run, device: torch.device) -> Run:
    def done() -> None:
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return done


def _plain(device: torch.device) -> Run:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)
    inputs = torch.randn(NUM_MICRO_BATCHES, SIZE, WIDTH, device=device).unbind()
    target = torch.randint(WIDTH, (SIZE,), device=device)

    def step() -> None:
        for tensor in inputs:
            loss = nn.functional.cross_entropy(module(tensor), target, reduction="sum")
            torch.autograd.backward(loss)
        for parameter in module.parameters():
            parameter.grad = None

    return step


def _ours(options: argparse.Namespace, devices: Sequence[str]) -> Run:
    source = source_of("linear_pair")
    problem = problem_of(
        trace_source(source, "pair"),
        [device_type(options).name],
        micro_batch_size=SIZE,
        num_micro_batches=NUM_MICRO_BATCHES,
        optimizer="sgd",
    )
    plan, device = chain_of(problem, devices), torch.device(options.device)
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=1), devices=plan.devices
    )
    box = LetterBox(1)
    modules = build_stages(specification, "d0", torch_device=device)
    gatherer = LocalGatherer(0, box)
    owned = take_turns({"d0": lambda: OwnedStages(specification, modules, gatherer)})["d0"]
    clock = CudaClock(device) if device.type == "cuda" else HostClock()
    executor = Executor(specification, "d0", owned, LocalMessenger(0, box), clock)
    batches = to_device(micro_batches(specification, 0, range(NUM_MICRO_BATCHES)), device)

    def step() -> None:
        _, records = executor.step(batches, time.perf_counter())
        if isinstance(clock, CudaClock):
            clock.settled(records)

    return step


def _torchs(device: torch.device, folder: Path) -> Run:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo", init_method=f"file://{folder / 'meet'}", rank=0, world_size=1)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)).to(device)

    def loss_of(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="sum")

    schedule = Schedule1F1B(PipelineStage(module, 0, 1, device), NUM_MICRO_BATCHES, loss_fn=loss_of)
    inputs = torch.randn(NUM_MICRO_BATCHES * SIZE, WIDTH, device=device)
    target = torch.randint(WIDTH, (NUM_MICRO_BATCHES * SIZE,), device=device)

    def step() -> None:
        losses: list[Tensor] = []
        schedule.step(inputs, target=target, losses=losses)
        statistics.fmean(float(loss.detach()) for loss in losses)
        module.zero_grad(set_to_none=True)

    step()
    return step


if __name__ == "__main__":
    run_section(__doc__ or "", [steps, parts])
