"""Fault injections: the model, the plans, and what is done to a run and when, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Literal

from torch import nn

from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import Measurement, ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan, Stage
from heterps_envs.problem import Problem
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source

DEVICES = ("d0", "d1", "d2", "d3")
# Seconds of one micro-batch through the whole model, forward and backward, on the host.
PASS_S = 0.008
# Of a run, and of one that waits for a process that starts; both end with a checkpoint.
STEPS, LONG_STEPS, CHECKPOINT_EVERY = 25, 80, 5
HEARTBEAT_S = 1.5

Act = Literal["kill", "stop", "continue", "corrupt", "fill disk", "free disk", "kill supervisor"]


class Action(Document):
    """Something that is done to a run.

    Attributes:
        step: Waits until so many steps are done; None: only for the action before it.
        message: Waits for a remark of the run that has these words.
        generation: Waits until the run goes on under so many new plans.
        delay_s: Then waits for so long.
        device: Whose process it is done to.
    """

    act: Act
    step: int | None = None
    message: str | None = None
    generation: int = 0
    delay_s: float = 0.0
    device: str = ""


class Case(Document):
    """One run and what is done to it.

    Attributes:
        kind: Of `KINDS`.
        plan: Of `PLANS`: what runs at first.
        joins: Device and step of devices that are started again.
        has_controller: Plans come from the controller of the command, with its planners; otherwise
            from the rules of recovery alone.
    """

    kind: str
    seed: int
    plan: str
    steps: int
    actions: tuple[Action, ...]
    joins: tuple[tuple[str, int], ...] = ()
    has_controller: bool = False


def model() -> nn.Sequential:
    """Ten layers with 340,000 parameters."""
    widths = (64, 256, 384, 256, 256, 10)
    pairs = pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.Tanh())))


@cache
def profile() -> ModelProfile:
    """Of the model; its times are invented, and the emulated devices keep them."""
    source = factory_source(f"{__name__}:model", ["x=64:float32"])
    found = trace_source(source, "injected")
    size = found.num_layers
    times = Measurement(
        device_type="host-cpu",
        micro_batch_size=4,
        forward_s=(PASS_S / 3 / size,) * size,
        backward_s=(2 * PASS_S / 3 / size,) * size,
        optimizer_s=(2e-4,) * size,
    )
    return found.changed(measurements=(times,))


def problem(*, is_emulated: bool = True) -> Problem:
    """Four devices of unlike speeds on one node."""
    types = tuple(
        DeviceType(
            name=f"type-{name}",
            kind="cpu",
            memory_bytes=10**9,
            peak_flops_per_s={"float32": 1e10},
            memory_bandwidth_bytes_per_s=1e10,
            price_usd_per_hour=1.0,
            emulation=Emulation(host_device_type="host-cpu", slowdown=1.0 + 0.5 * index)
            if is_emulated
            else None,
        )
        for index, name in enumerate(DEVICES)
    )
    groups = tuple(DeviceGroup(name=name, type=f"type-{name}") for name in DEVICES)
    link = Link(latency_s=2e-4, bandwidth_bytes_per_s=1e9)
    return Problem(
        profile=profile(),
        cluster=Cluster(
            name="four", device_types=types, nodes=(Node(name="node", devices=groups, link=link),)
        ),
        job=Job(global_batch_size=16, micro_batch_size=4, dtype="float32", optimizer="adamw"),
    )


# Stages by name: first and last layer, and device; with the routes and their micro-batches.
_Stages = dict[str, tuple[int, int, str]]
_Routes = dict[tuple[str, ...], Sequence[int]]
PLANS: dict[str, tuple[_Stages, _Routes]] = {
    "chain of four": (
        {"a": (0, 1, "d0"), "b": (2, 3, "d1"), "c": (4, 6, "d2"), "e": (7, 9, "d3")},
        {("a", "b", "c", "e"): range(4)},
    ),
    "chain of three, one idle": (
        {"a": (0, 3, "d0"), "b": (4, 5, "d1"), "c": (6, 9, "d2")},
        {("a", "b", "c"): range(4)},
    ),
    "two pipelines": (
        {"a": (0, 4, "d0"), "b": (5, 9, "d1"), "c": (0, 3, "d2"), "e": (4, 9, "d3")},
        {("a", "b"): (0, 2), ("c", "e"): (1, 3)},
    ),
    "a shared stage and replicas": (
        {"a": (0, 4, "d0"), "b": (5, 9, "d1"), "c": (5, 9, "d2"), "e": (5, 9, "d3")},
        {("a", "b"): (0, 3), ("a", "c"): (1,), ("a", "e"): (2,)},
    ),
    "one device": ({"a": (0, 9, "d0")}, {("a",): range(4)}),
}


def plan_named(name: str, of: Problem) -> Plan:
    """One of `PLANS`."""
    stages, routes = PLANS[name]
    return Plan(
        model=of.profile.name,
        model_fingerprint=of.profile.layers_fingerprint(),
        num_layers=of.profile.num_layers,
        cluster=of.cluster.name,
        job=of.job,
        stages=tuple(
            Stage(name=stage, first_layer=a, last_layer=b, devices=(device,))
            for stage, (a, b, device) in stages.items()
        ),
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(share)) for route, share in routes.items()
        ),
        planner="by hand",
    )


KINDS = (
    "kill",
    "hang",
    "pause and go on",
    "long pause and go on",
    "two at once",
    "kill during recovery",
    "hang during recovery",
    "kill during a checkpoint",
    "kill during a join",
    "corrupted shard and kill",
    "full disk and kill",
    "supervisor killed",
)


def draw(seed: int) -> Case:
    """The case of a seed; kinds take turns, so that a few cases have them all."""
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    plan = rng.choice([name for name in PLANS if name != "one device"])
    step, delay_s = rng.randint(1, 12), rng.uniform(0, 0.06)
    victim, other = rng.sample(DEVICES, 2)
    soon_s = rng.uniform(0, 0.25)
    at = {"step": step, "delay_s": delay_s, "device": victim}
    actions: list[Action]
    joins: tuple[tuple[str, int], ...] = ()
    match kind:
        case "kill":
            actions = [Action(act="kill", **at)]
        case "hang":
            actions = [Action(act="stop", **at)]
        case "pause and go on" | "long pause and go on":
            pause_s = rng.uniform(0.1, 0.5) if kind.startswith("pause") else rng.uniform(2.0, 3.0)
            again = Action(act="continue", device=victim, delay_s=pause_s)
            actions = [Action(act="stop", **at), again]
        case "two at once":
            actions = [Action(act="kill", **at), Action(act="kill", device=other)]
        case "kill during recovery":
            actions = [
                Action(act="kill", **at),
                Action(act="kill", device=other, delay_s=soon_s),
            ]
        case "hang during recovery":
            actions = [
                Action(act="kill", **at),
                Action(act="stop", device=other, delay_s=soon_s),
            ]
        case "kill during a checkpoint":
            at["step"] = CHECKPOINT_EVERY * rng.randint(1, 3)
            at["delay_s"] = rng.uniform(0, 0.03)
            actions = [Action(act="kill", **at)]
        case "kill during a join":
            joins = ((victim, step + 6),)
            actions = [
                Action(act="kill", **at),
                Action(act="kill", message="has come", device=other, delay_s=soon_s),
            ]
        case "corrupted shard and kill":
            at["step"] = rng.randint(11, 14)
            actions = [
                Action(act="corrupt", **at),
                Action(act="kill", device=other, delay_s=rng.uniform(0, 0.05)),
            ]
        case "full disk and kill":
            at["step"] = rng.randint(1, 8)
            actions = [
                Action(act="fill disk", **at),
                Action(act="kill", device=other, delay_s=rng.uniform(0, 0.3)),
                Action(act="free disk", device=victim, step=STEPS - 6),
            ]
        case _:
            actions = [Action(act="kill supervisor", **at)]
            actions[0] = actions[0].changed(step=rng.randint(6, 16))
    return Case(
        kind=kind,
        seed=seed,
        plan=plan,
        steps=LONG_STEPS if joins else STEPS,
        actions=tuple(actions),
        joins=joins,
        has_controller=rng.random() < 0.3,
    )
