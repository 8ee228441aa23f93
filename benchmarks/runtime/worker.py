"""One of the two processes of `benchmarks/runtime/runtime.py`, which starts it."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from benchmarks.runtime.models import NAMES, half, source_of
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job, Schedule
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.emulation import HostClock
from heterps_runtime.execution.executor import Executor
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.specification.build import build_specification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.tracing.trace import trace_source
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.messenger import ProcessMessenger

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
OVERHEAD_MODELS = {"linear_pair": "two linear layers", "own_forward": "the same, own forward"}
NUM_WARM_UPS = 5
NUM_MICRO_BATCHES, MICRO_BATCH_SIZE, WIDTH = 32, 4, 64  # of the steps whose overhead counts
Run = Callable[[], float]


def main(path: Path, repeats: int) -> None:
    """Measures everything together with the other process; rank 0 writes the rows."""
    torch.set_num_threads(1)
    communicator = Communicator()
    rows = message_floor(communicator, repeats)
    for name in OVERHEAD_MODELS:
        rows += overhead(name, communicator, repeats)
    for name in NAMES:
        rows += against_torch(name, communicator, repeats)
    if communicator.rank == 0:
        path.write_text(json.dumps(rows))
    communicator.close()


def message_floor(communicator: Communicator, repeats: int) -> list[dict[str, Any]]:
    """Seconds of the two messages of a micro-batch alone, there and back, by the process groups.

    What arrives is asked for just before, or all of it before the first message leaves.
    """
    rank = communicator.rank
    there, back = communicator.directions["forward"], communicator.directions["backward"]
    sends, receives = (back, there) if rank else (there, back)
    buffers = torch.zeros(NUM_MICRO_BATCHES, MICRO_BATCH_SIZE, WIDTH).unbind()
    own = torch.zeros(MICRO_BATCH_SIZE, WIDTH)

    def send(tag: int) -> None:
        sends.send([own], 1 - rank, tag).wait()

    def one_by_one() -> float:
        for tag, buffer in enumerate(buffers):
            if rank == 0:
                send(tag)
            receives.recv([buffer], 1 - rank, tag).wait()
            if rank == 1:
                send(tag)
        return 0.0

    def all_before() -> float:
        works = [receives.recv([buffer], 1 - rank, tag) for tag, buffer in enumerate(buffers)]
        for tag, work in enumerate(works):
            if rank == 0:
                send(tag)
            work.wait()
            if rank == 1:
                send(tag)
        return 0.0

    cases: dict[str, Run] = {"asked for one by one": one_by_one, "asked for before": all_before}
    seconds = _interleaved(cases, repeats, communicator)
    return [
        {
            "what": "messages alone per micro-batch",
            "model": name,
            "gloo_us": 1e6 * seconds[name] / NUM_MICRO_BATCHES,
        }
        for name in cases
    ]


def overhead(name: str, communicator: Communicator, repeats: int) -> list[dict[str, Any]]:
    """Seconds of a micro-batch beyond its computation, for stages of one tiny linear layer."""
    num_micro_batches = NUM_MICRO_BATCHES
    layer = nn.Linear(WIDTH, WIDTH)
    inputs = [
        torch.randn(MICRO_BATCH_SIZE, WIDTH, requires_grad=True) for _ in range(num_micro_batches)
    ]

    def compute() -> float:
        for tensor in inputs:
            layer(tensor).sum().backward()
        return 0.0

    setup = _Setup(name, num_micro_batches, MICRO_BATCH_SIZE, communicator)
    cases: dict[str, Run] = {"compute": compute}
    for schedule in SCHEDULES:
        cases[f"heterps {schedule}"] = setup.ours(schedule)
        cases[f"torch {schedule}"] = setup.torchs(schedule)
    clocks = {
        "host time per micro-batch and rank": _interleaved(cases, repeats, communicator),
        "of which CPU time of the main thread": _thread_seconds(cases, repeats, communicator),
    }
    return [
        {
            "what": what,
            "model": OVERHEAD_MODELS[name],
            "schedule": schedule,
            **{
                f"{who}_us": 1e6 * (seconds[f"{who} {schedule}"] - seconds["compute"])
                / num_micro_batches
                for who in ("heterps", "torch")
            },
        }
        for what, seconds in clocks.items()
        for schedule in SCHEDULES
    ]  # fmt: skip


def against_torch(name: str, communicator: Communicator, repeats: int) -> list[dict[str, Any]]:
    """Step times of one model under both executors."""
    setup = _Setup(name, 8, 4, communicator)
    rows = []
    cases: dict[str, Run] = {}
    for schedule in SCHEDULES:
        cases[f"heterps {schedule}"] = setup.ours(schedule)
        cases[f"torch {schedule}"] = setup.torchs(schedule)
    seconds = _interleaved(cases, repeats, communicator)
    for schedule in SCHEDULES:
        own_s, torch_s = seconds[f"heterps {schedule}"], seconds[f"torch {schedule}"]
        rows.append(
            {
                "what": "step time",
                "model": name,
                "schedule": schedule,
                "heterps_us": 1e6 * own_s,
                "torch_us": 1e6 * torch_s,
                "ratio": own_s / torch_s,
            }
        )
    return rows


class _Setup:
    """One model on two ranks, cut in the middle; every run begins with the same parameters."""

    def __init__(
        self, name: str, num_micro_batches: int, micro_batch_size: int, communicator: Communicator
    ) -> None:
        self.name, self.communicator = name, communicator
        self.profile = trace_source(source_of(name), name)
        self.cut = self.profile.num_layers // 2
        self.num_micro_batches, self.micro_batch_size = num_micro_batches, micro_batch_size

    def ours(self, schedule: Schedule) -> Run:
        """A step of this package's executor."""
        specification, batches, owned = self._built(schedule)
        device = f"d{self.communicator.rank}"
        messenger = ProcessMessenger(self.communicator)
        executor = Executor(specification, device, owned, messenger, HostClock())
        return lambda: executor.step(batches, time.perf_counter())[0]

    def torchs(self, schedule: Schedule) -> Run:
        """A step of torch's own schedule, with the half model that a user would write."""
        _, batches, owned = self._built(schedule)
        rank = self.communicator.rank
        module = half(self.name, rank, self.cut)
        _copy_parameters(owned, module)
        stage = PipelineStage(module, rank, 2, torch.device("cpu"))
        source = self.profile.source
        assert source is not None
        total = self.num_micro_batches * self.micro_batch_size

        def loss_of(output: Tensor, target: Tensor) -> Tensor:
            return loss_sum(source, output, target) / total

        kind = ScheduleGPipe if schedule == "gpipe" else Schedule1F1B
        pipeline = kind(stage, self.num_micro_batches, loss_fn=loss_of, scale_grads=False)
        optimizer = build_optimizer("sgd", module.parameters())
        assert optimizer is not None
        inputs, target = _whole(batches)

        def step() -> float:
            losses: list[Tensor] = []
            if rank == 0:
                pipeline.step(inputs, return_outputs=False)
            else:
                pipeline.step(target=target, losses=losses, return_outputs=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            return sum(float(loss.detach()) for loss in losses)

        return step

    def _built(self, schedule: Schedule) -> tuple[Any, Any, OwnedStages]:
        job = Job(
            global_batch_size=self.num_micro_batches * self.micro_batch_size,
            micro_batch_size=self.micro_batch_size,
            dtype="float32",
            optimizer="sgd",
            schedule=schedule,
        )
        problem = Problem(_measured(self.profile, self.micro_batch_size), _cluster(), job)
        plan = _plan(problem, self.cut)
        specification = build_specification(
            problem, plan, build_schedule(problem, plan), RunSettings(steps=1), devices=plan.devices
        )
        modules = build_stages(specification, f"d{self.communicator.rank}")
        owned = OwnedStages(specification, modules, self.communicator)
        return specification, micro_batches(specification, 0, range(self.num_micro_batches)), owned


def _copy_parameters(owned: OwnedStages, module: nn.Module) -> None:
    """Both list their parameters in the model's order; numbers of blocks differ."""
    own = [p for p in next(iter(owned.modules.values())).module.parameters() if not p.is_meta]
    others = list(module.parameters())
    assert [p.shape for p in own] == [p.shape for p in others]
    with torch.no_grad():
        for source, target in zip(own, others, strict=True):
            target.copy_(source)


def _whole(batches: Any) -> tuple[Tensor, Tensor]:
    """The one input and the target of all micro-batches."""
    pairs = [batches[index] for index in sorted(batches)]
    inputs = torch.cat([next(iter(entry[0].values())) for entry in pairs])
    return inputs, torch.cat([entry[1] for entry in pairs])


def _interleaved(
    cases: dict[str, Run], repeats: int, communicator: Communicator
) -> dict[str, float]:
    """Median seconds of each case, from barrier to barrier; the cases take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    losses: dict[str, float] = {}
    for repeat in range(NUM_WARM_UPS + repeats):
        for name, run in cases.items():
            communicator.barrier()
            started = time.perf_counter()
            loss = run()
            communicator.barrier()
            losses[name] = loss
            if repeat >= NUM_WARM_UPS:
                seconds[name].append(time.perf_counter() - started)
    found = [loss for name, loss in losses.items() if name.startswith(("heterps", "torch"))]
    assert not found or max(found) - min(found) < 1e-4 * max(1.0, abs(max(found))), losses
    return {name: statistics.median(values) for name, values in seconds.items()}


def _thread_seconds(
    cases: dict[str, Run], repeats: int, communicator: Communicator
) -> dict[str, float]:
    """Median CPU seconds of a rank's main thread, mean of the ranks: without waiting."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(repeats):
        for name, run in cases.items():
            communicator.barrier()
            started = time.thread_time()
            run()
            seconds[name].append(time.thread_time() - started)
    own = [statistics.median(values) for values in seconds.values()]
    rows = communicator.gather_numbers(*own)
    return {name: statistics.mean(row[i] for row in rows) for i, name in enumerate(cases)}


def _cluster() -> Cluster:
    kind = DeviceType(
        name="host",
        kind="cpu",
        memory_bytes=10**10,
        peak_flops_per_s={"float32": 1e10},
        memory_bandwidth_bytes_per_s=1e10,
        price_usd_per_hour=1.0,
    )
    devices = (DeviceGroup(name="d0", type="host"), DeviceGroup(name="d1", type="host"))
    link = Link(latency_s=5e-5, bandwidth_bytes_per_s=4e9)
    node = Node(name="node", devices=devices, link=link)
    return Cluster(name="two", device_types=(kind,), nodes=(node,))


def _measured(profile: ModelProfile, size: int) -> ModelProfile:
    """Equal times for both halves, so that both executors have the same order of passes."""
    layers, cut = profile.num_layers, profile.num_layers // 2
    shares = [1 / cut] * cut + [1 / (layers - cut)] * (layers - cut)
    measurement = Measurement(
        device_type="host",
        micro_batch_size=size,
        forward_s=tuple(1e-3 * share for share in shares),
        backward_s=tuple(2e-3 * share for share in shares),
    )
    return profile.changed(measurements=(measurement,))


def _plan(problem: Problem, cut: int) -> Plan:
    last = problem.profile.num_layers - 1
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=(
            Stage(name="front", first_layer=0, last_layer=cut - 1, devices=("d0",)),
            Stage(name="back", first_layer=cut, last_layer=last, devices=("d1",)),
        ),
        pipelines=(
            Pipeline(
                stages=("front", "back"),
                micro_batches=tuple(range(problem.job.num_micro_batches)),
            ),
        ),
    )


if __name__ == "__main__":
    arguments: Sequence[str] = sys.argv[1:]
    main(Path(arguments[0]), int(arguments[1]))
