"""Random plans with tensor-parallel groups on four equal emulated devices, for `groups`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from benchmarks.fidelity.own_models import Case
from benchmarks.fidelity.own_plans import HOST, NODE_LINK, cuts
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job, Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.specification.build import check_runnable, why_not_run

# What groups do with layers that they do not split.
Unsplit = Literal["none", "whole", "by batch"]

NUM_DEVICES, NUM_MICRO_BATCHES = 4, 4
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "zero-bubble")
# Degrees of the stages of a chain; of the one stage of each of two replicas.
CHAINS = ((1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (4,), (3,), (2,), (2, 1, 1), (1, 2, 1))
REPLICAS = (1, 2)
UNEVEN = {2: (0.25, 0.75), 3: (0.5, 0.25, 0.25), 4: (0.125, 0.375, 0.25, 0.25)}


def drawn(
    profile: ModelProfile, case: Case, draw: random.Random, unsplit: Unsplit = "none"
) -> tuple[Problem, Plan]:
    """A plan that can be run, of a model on equal devices of one node.

    Args:
        profile: Of the model.
        case: Its samples, and how slow the devices are.
        draw: Draws.
        unsplit: What groups do with some of their layers, which they do not split.
    """
    while True:
        job = Job(
            global_batch_size=NUM_MICRO_BATCHES * case.micro_batch_size,
            micro_batch_size=case.micro_batch_size,
            dtype="float32",
            optimizer="adamw",
            schedule=draw.choice(SCHEDULES),
        )
        problem = Problem(profile, cluster(case.slowdown), job)
        plan = _plan(problem, draw)
        if unsplit != "none":
            stages = tuple(_partly_split(stage, draw, unsplit) for stage in plan.stages)
            if stages == plan.stages:
                continue
            plan = plan.changed(stages=stages)
        try:
            check_runnable(problem, plan)
        except HeterpsError:
            continue  # halves of a tie in unlike groups, or one of them whole
        if unsplit == "by batch" and why_not_run(problem, plan) is not None:
            continue  # embeddings and heads, whose parts the model's own code puts together
        return problem, plan


def cluster(slowdown: float) -> Cluster:
    """Equal emulated devices on one node, which can offload to their host."""
    kind = DeviceType(
        name="emulated",
        kind="cpu",
        memory_bytes=2**31,
        peak_flops_per_s={"float32": 1e10},
        memory_bandwidth_bytes_per_s=1e10,
        price_usd_per_hour=0.0,
        host_bandwidth_bytes_per_s=5e6,
        emulation=Emulation(host_device_type=HOST, slowdown=slowdown),
    )
    devices = tuple(DeviceGroup(name=f"d{index}", type=kind.name) for index in range(NUM_DEVICES))
    node = Node(name="node", devices=devices, link=NODE_LINK)
    return Cluster(name="four equal emulated devices", device_types=(kind,), nodes=(node,))


def _plan(problem: Problem, draw: random.Random) -> Plan:
    if draw.random() < 0.4:
        degree = draw.choice(REPLICAS)
        is_uneven = draw.random() < 0.5
        routes = [
            _stages(problem, (degree,), index * degree, draw, is_uneven=is_uneven)
            for index in range(2)
        ]
    else:
        degrees = draw.choice(CHAINS)
        routes = [_stages(problem, degrees, 0, draw, is_uneven=draw.random() < 0.5)]
    last = problem.profile.num_layers - 1
    is_sharded = len(routes) > 1 and draw.random() < 0.7
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stage for route in routes for stage in route),
        pipelines=tuple(
            Pipeline(
                stages=tuple(stage.name for stage in route),
                micro_batches=tuple(range(NUM_MICRO_BATCHES))[index :: len(routes)],
            )
            for index, route in enumerate(routes)
        ),
        sharded_state=(LayerRange(first_layer=0, last_layer=last),) if is_sharded else (),
        planner="drawn",
    )


def _stages(
    problem: Problem, degrees: Sequence[int], taken: int, draw: random.Random, *, is_uneven: bool
) -> list[Stage]:
    """Stages behind one another, on the devices from `taken` on."""
    stops = cuts([draw.randint(1, 3) for _ in degrees], problem.profile.num_layers)
    found = []
    for degree, (first, stop) in zip(degrees, pairwise((0, *stops)), strict=True):
        layers = list(range(first, stop))
        some = tuple(layer for layer in layers if draw.random() < 0.5)
        way = draw.choice(("plain", "recompute", "recompute some", "offload"))
        found.append(
            Stage(
                name=f"s{taken}",
                first_layer=first,
                last_layer=stop - 1,
                devices=tuple(f"d{taken + rank}" for rank in range(degree)),
                tensor_shares=UNEVEN.get(degree, ()) if is_uneven else (),
                recompute_layers={"recompute": tuple(layers), "recompute some": some}.get(way, ()),
                offloaded_layers=some if way == "offload" else (),
            )
        )
        taken += degree
    return found


def _partly_split(stage: Stage, draw: random.Random, unsplit: Unsplit) -> Stage:
    if stage.degree == 1:
        return stage
    field = "whole_layers" if unsplit == "whole" else "batch_layers"
    return stage.changed(**{field: [each for each in stage.layers if draw.random() < 0.5]})


def described(plan: Plan) -> str:
    """What is special about a plan, in a few words."""
    words = []
    for route in plan.pipelines:
        degrees = " + ".join(str(plan.stage(name).degree) for name in route.stages)
        words.append(f"({degrees})" if len(plan.pipelines) > 1 else degrees)
    text = " and ".join(words)
    if any(stage.uneven_shares for stage in plan.stages):
        text += ", uneven"
    if any(stage.whole_layers for stage in plan.stages):
        text += ", layers whole"
    if any(stage.batch_layers for stage in plan.stages):
        text += ", layers by batch"
    if any(stage.recompute_layers for stage in plan.stages):
        text += ", recompute"
    if any(stage.offloaded_layers for stage in plan.stages):
        text += ", offload"
    return text + (", shared state" if plan.sharded_state else "")
