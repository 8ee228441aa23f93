"""Fault injections: the model, the plans, and what is done to a run and when, drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
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
        is_of_blocks: The model is one that groups can split, and plans are made by hand for the
            devices that are left: in groups where the first plan has groups.
    """

    kind: str
    seed: int
    plan: str
    steps: int
    actions: tuple[Action, ...]
    joins: tuple[tuple[str, int], ...] = ()
    has_controller: bool = False
    is_of_blocks: bool = False


def model() -> nn.Sequential:
    """Ten layers with 340,000 parameters."""
    widths = (64, 256, 384, 256, 256, 10)
    pairs = pairwise(widths)
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.Tanh())))


class Block(nn.Module):
    """Two linear layers that a tensor-parallel group splits."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        found: Tensor = self.down(functional.gelu(self.up(x)))
        return found


def blocks() -> nn.Sequential:
    """Ten layers with 331,000 parameters."""
    return nn.Sequential(*(Block() for _ in range(10)))


@cache
def profile(*, is_of_blocks: bool = False) -> ModelProfile:
    """Of the model; its times are invented, and the emulated devices keep them."""
    name = "blocks" if is_of_blocks else "model"
    source = factory_source(f"{__name__}:{name}", ["x=64:float32"])
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


def problem(*, is_emulated: bool = True, is_of_blocks: bool = False) -> Problem:
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
        profile=profile(is_of_blocks=is_of_blocks),
        cluster=Cluster(
            name="four", device_types=types, nodes=(Node(name="node", devices=groups, link=link),)
        ),
        job=Job(global_batch_size=16, micro_batch_size=4, dtype="float32", optimizer="adamw"),
    )


# Stages by name: first and last layer, and devices, parted by blanks; with the routes and their
# micro-batches.
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
# With groups, and beside each what is most like it without any.
GROUP_PLANS: dict[str, tuple[_Stages, _Routes]] = {
    "two groups": (
        {"a": (0, 4, "d0 d1"), "b": (5, 9, "d2 d3")},
        {("a", "b"): range(4)},
    ),
    "replicas in groups": (
        {"a": (0, 9, "d0 d1"), "b": (0, 9, "d2 d3")},
        {("a",): (0, 2), ("b",): (1, 3)},
    ),
    "replicas in groups, sharing state": (
        {"a": (0, 9, "d0 d1"), "b": (0, 9, "d2 d3")},
        {("a",): (0, 2), ("b",): (1, 3)},
    ),
}
WITHOUT_GROUPS = {
    "two groups": "chain of four",
    "replicas in groups": "two pipelines",
    "replicas in groups, sharing state": "equal pipelines, sharing state",
}
_SHARING_PLANS: dict[str, tuple[_Stages, _Routes]] = {
    "equal pipelines, sharing state": (
        {"a": (0, 4, "d0"), "b": (5, 9, "d1"), "c": (0, 4, "d2"), "e": (5, 9, "d3")},
        {("a", "b"): (0, 2), ("c", "e"): (1, 3)},
    ),
}
_ALL_PLANS = PLANS | GROUP_PLANS | _SHARING_PLANS


def plan_named(name: str, of: Problem) -> Plan:
    """One of `PLANS` or `GROUP_PLANS`, or what is compared with these."""
    plan = _plan(*_ALL_PLANS[name], of)
    if not name.endswith("sharing state"):
        return plan
    spans = sorted({(stage.first_layer, stage.last_layer) for stage in plan.stages})
    return plan.changed(
        sharded_state=tuple(LayerRange(first_layer=a, last_layer=b) for a, b in spans)
    )


def plan_left(devices: Sequence[str], of: Problem, *, has_groups: bool) -> Plan:
    """What goes on on some devices: a chain; the first two of them are a group, or none is."""
    parts = [" ".join(devices[:2]), *devices[2:]] if has_groups else list(devices)
    cuts = [10 * index // len(parts) for index in range(len(parts) + 1)]
    spans = zip(cuts, [cut - 1 for cut in cuts[1:]], parts, strict=False)
    stages = {f"s{index}": span for index, span in enumerate(spans)}
    return _plan(stages, {tuple(stages): range(4)}, of)


def _plan(stages: _Stages, routes: _Routes, of: Problem) -> Plan:
    return Plan(
        model=of.profile.name,
        model_fingerprint=of.profile.layers_fingerprint(),
        num_layers=of.profile.num_layers,
        cluster=of.cluster.name,
        job=of.job,
        stages=tuple(
            Stage(name=stage, first_layer=a, last_layer=b, devices=tuple(devices.split()))
            for stage, (a, b, devices) in stages.items()
        ),
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(share)) for route, share in routes.items()
        ),
        planner="by hand",
    )


IN_GROUPS, NO_GROUPS = "kill, in groups", "kill, no groups"
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


def draw_group(number: int) -> Case:
    """The case of a number: even ones lose a rank of a group, the next one a device without any."""
    rng = random.Random(f"groups {number // 2}")
    plan = list(GROUP_PLANS)[number // 2 % len(GROUP_PLANS)]
    kill = Action(
        act="kill",
        step=rng.randint(2, 12),
        delay_s=rng.uniform(0, 0.06),
        device=rng.choice(DEVICES),
    )
    return Case(
        kind=NO_GROUPS if number % 2 else IN_GROUPS,
        seed=number,
        plan=WITHOUT_GROUPS[plan] if number % 2 else plan,
        steps=STEPS,
        actions=(kill,),
        is_of_blocks=True,
    )
