"""Problems and plans around small models, for the tests that start processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from tests.runtime import imitations, small_models

DEVICES = ("d0", "d1", "d2", "d3")
HERE = "tests.runtime.small_runs"


def sequential() -> nn.Module:
    """Eight layers, unequal."""
    widths = (8, 24, 16, 32, 4)
    pairs = pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.Tanh())))


def dropping() -> nn.Module:
    """Dropout in two places, and a frozen first layer."""
    module = nn.Sequential(
        nn.Linear(8, 24), nn.Dropout(0.3), nn.Linear(24, 16), nn.Tanh(), nn.Dropout(0.2),
        nn.Linear(16, 32), nn.Linear(32, 4),
    )  # fmt: skip
    module[0].requires_grad_(False)
    return module


def frozen_middle() -> nn.Module:
    """Frozen layers in the middle and in front of the last one, and dropout between them."""
    module = nn.Sequential(
        nn.Linear(8, 24), nn.Dropout(0.3), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 16),
        nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4),
    )  # fmt: skip
    for frozen in (2, 4, 6):
        module[frozen].requires_grad_(False)
    return module


class _Pair(nn.Module):
    """Takes and returns a dictionary that holds a tuple: two tensors cross every cut."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, state: dict[str, tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        a, b = state["pair"]
        return {"pair": (torch.tanh(self.first(a) + b), a + self.second(b))}


class _Structured(nn.Module):
    """Tuples in dictionaries between layers; tensors of the front that layers far behind need."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.blocks = nn.ModuleList(_Pair() for _ in range(5))
        self.end = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        first = self.start(x)
        second = self.second(first)
        state = {"pair": (second, first)}
        for block in self.blocks:
            state = block(state)
        a, b = state["pair"]
        result: Tensor = self.end(a + b + first * second)
        return result


def structured() -> nn.Module:
    """Dictionaries and tuples at the cuts, and two skips over several stages."""
    return _Structured()


class _Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor and not x.is_meta:
            raise RuntimeError("this layer always fails\nwith a second line")
        return x


def broken() -> nn.Module:
    """Can be traced, but its last layer raises when it gets real numbers."""
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), _Broken())


@cache
def profile_of(model: str) -> ModelProfile:
    """Of one of the modules above, or of a model of `small_models`."""
    if model in ("sequential", "broken", "dropping", "frozen_middle", "structured"):
        return trace_source(factory_source(f"{HERE}:{model}", ["x=8:float32"]), model)
    if model in imitations.PLACES:
        return imitations.profile_of(model)
    return small_models.profile_of(model)


def problem_of(model: str, **settings: Any) -> Problem:
    """`on_four_devices` of a tiny model, by name."""
    return on_four_devices(profile_of(model), **settings)


def on_four_devices(
    profile: ModelProfile,
    *,
    slowdowns: Sequence[float] | None = None,
    step_s: float = 0.01,
    **job: Any,
) -> Problem:
    """Four devices on one node.

    Args:
        profile: Of the model.
        slowdowns: Of the devices, where they are emulated.
        step_s: Forward and backward seconds of one micro-batch of the whole model on the host.
        job: Fields of the job.
    """
    settings = {"global_batch_size": 16, "micro_batch_size": 4, "dtype": "float32", **job}
    layers = profile.num_layers
    measurement = Measurement(
        device_type="host-cpu",
        micro_batch_size=settings["micro_batch_size"],
        forward_s=(step_s / 3 / layers,) * layers,
        backward_s=(step_s * 2 / 3 / layers,) * layers,
        optimizer_s=(1e-4,) * layers,
    )
    types = tuple(
        DeviceType(
            name=f"type-{name}",
            kind="cpu",
            memory_bytes=10**10,
            peak_flops_per_s={"float32": 1e10},
            memory_bandwidth_bytes_per_s=1e10,
            price_usd_per_hour=1.0,
            emulation=slowdowns and Emulation(host_device_type="host-cpu", slowdown=slowdowns[i]),
        )
        for i, name in enumerate(DEVICES)
    )
    node = Node(
        name="node",
        devices=tuple(DeviceGroup(name=name, type=f"type-{name}") for name in DEVICES),
        link=Link(latency_s=2e-3, bandwidth_bytes_per_s=1e6),
    )
    return Problem(
        profile=profile.changed(measurements=(measurement,)),
        cluster=Cluster(name="four", device_types=types, nodes=(node,)),
        job=Job(**settings),
    )


def plan_of(
    problem: Problem,
    stages: dict[str, tuple[int, int, str]],
    routes: dict[tuple[str, ...], Sequence[int]] | None = None,
) -> Plan:
    """A plan from first layer, last layer (-1: the model's last) and device of each stage.

    Without routes, all micro-batches pass all stages in order.
    """
    every = range(problem.job.num_micro_batches)
    last = problem.profile.num_layers - 1
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(
            Stage(name=name, first_layer=a, last_layer=last if b < 0 else b, devices=(device,))
            for name, (a, b, device) in stages.items()
        ),
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(share))
            for route, share in (routes or {tuple(stages): every}).items()
        ),
        planner="by hand",
    )


def chain_of(problem: Problem, *cuts: int, devices: Sequence[str] = DEVICES) -> Plan:
    """One stage for each device in order; stage i begins at layer `cuts[i - 1]`."""
    starts, ends = (0, *cuts), (*(cut - 1 for cut in cuts), -1)
    spans = zip(starts, ends, devices, strict=False)
    return plan_of(problem, {f"s{i}": span for i, span in enumerate(spans)})
