"""Plans of the parity benchmark: thirteen shapes, most also with two stages on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job, Optimizer, Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.tensor_parallel.by_batch import find_batch_calls

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
BATCH_SIZE, MICRO_BATCH_SIZE = 12, 2
UNEQUAL_SIZES = (3, 1, 4, 2, 1, 1)
UNEQUAL_MICRO_BATCHES = "unequal micro-batches"
SPEEDS = (4.0, 2.0, 1.0, 1.0)


class Route(NamedTuple):
    """A pipeline.

    Attributes:
        stages: Name, share of the layers and device of each; equal names are one stage.
        weight: Its share of the micro-batches.
    """

    stages: Sequence[tuple[str, int, str]]
    weight: int = 1


_CHAINS: dict[str, tuple[int, int, int, int]] = {
    "equal cuts": (1, 1, 1, 1),
    "unequal cuts": (1, 4, 2, 1),
    UNEQUAL_MICRO_BATCHES: (2, 1, 1, 3),
}
# With one stage on each device (but for shared ones), and with two: what interleaved is made for.
_ROUTES: dict[str, tuple[Sequence[Route], Sequence[Route]]] = {
    "unequal replicas": (
        (
            Route((("a", 1, "d0"), ("b0", 2, "d1"), ("c", 1, "d3")), 3),
            Route((("a", 1, "d0"), ("b1", 2, "d2"), ("c", 1, "d3"))),
        ),
        (
            Route((("a", 1, "d0"), ("b0", 1, "d1"), ("c", 1, "d0"), ("e0", 2, "d1")), 3),
            Route((("a", 1, "d0"), ("b1", 1, "d2"), ("c", 1, "d0"), ("e1", 2, "d2"))),
        ),
    ),
    "different depths": (
        (
            Route((("a", 2, "d0"), ("b", 1, "d1"), ("c", 1, "d2")), 2),
            Route((("e", 1, "d3"),)),
        ),
        (
            Route((("a", 1, "d0"), ("b", 2, "d1"), ("c", 1, "d0"), ("e", 1, "d1")), 2),
            Route((("f", 1, "d2"), ("g", 1, "d3"))),
        ),
    ),
    "shared stages": (
        (
            Route((("a", 1, "d0"), ("b", 1, "d1"), ("c", 2, "d2"))),
            Route((("a", 1, "d0"), ("e", 3, "d3"))),
        ),
        (
            Route((("a", 1, "d0"), ("b", 2, "d1"), ("c", 1, "d0"))),
            Route((("a", 1, "d0"), ("e", 1, "d2"), ("f", 1, "d3"), ("c", 1, "d0"))),
        ),
    ),
}
# Stages on tensor-parallel groups of equal devices; of replicas, each is a pipeline of its own.
_PAIRS = (("d0", "d1"), ("d2", "d3"))
_ALL = (("d0", "d1", "d2", "d3"),)
_UNLIKE = (("d0",), ("d1", "d2", "d3"))
REPLICAS_OF_GROUPS = "replicas of groups, shared state"
REPLICAS_OF_UNLIKE = "replicas of unlike groups"
PARTLY_WHOLE = "uneven groups, layers whole"
BY_BATCH = "uneven groups, layers by batch"
_GROUPS: dict[str, tuple[Sequence[Sequence[str]], tuple[float, ...]]] = {
    "groups": (_PAIRS, ()),
    "uneven groups": (_PAIRS, (0.25, 0.75)),
    "one uneven group, recompute": (_ALL, (0.4, 0.3, 0.2, 0.1)),
    REPLICAS_OF_GROUPS: (_PAIRS, ()),
    "unlike groups": (_UNLIKE, (0.5, 0.25, 0.25)),
    REPLICAS_OF_UNLIKE: (_UNLIKE, (0.5, 0.25, 0.25)),
    PARTLY_WHOLE: (_PAIRS, (0.25, 0.75)),
    BY_BATCH: (_PAIRS, (0.25, 0.75)),
}
GROUP_SHAPES = tuple(_GROUPS)
SHAPES = (
    "equal cuts", "unequal cuts", "unequal replicas", "different depths", "shared stages",
    UNEQUAL_MICRO_BATCHES, *_GROUPS,
)  # fmt: skip


def problem_of(
    profile: ModelProfile, shape: str, schedule: Schedule, optimizer: Optimizer
) -> Problem:
    """A model on four devices of one node; seconds are those of a roofline."""
    is_unequal = shape == UNEQUAL_MICRO_BATCHES
    speeds = (1.0,) * len(SPEEDS) if shape in _GROUPS else SPEEDS
    types = tuple(
        DeviceType(
            name="type" if shape in _GROUPS else f"type-{index}",
            kind="cpu",
            memory_bytes=10**10,
            peak_flops_per_s={"float32": speed * 1e9},
            memory_bandwidth_bytes_per_s=speed * 1e9,
            price_usd_per_hour=0.0,
        )
        for index, speed in enumerate(speeds)
    )
    groups = tuple(
        DeviceGroup(name=f"d{index}", type=entry.name) for index, entry in enumerate(types)
    )
    link = Link(latency_s=1e-4, bandwidth_bytes_per_s=1e8)
    return Problem(
        profile=profile,
        cluster=Cluster(
            name="four",
            device_types=types[:1] if shape in _GROUPS else types,
            nodes=(Node(name="node", devices=groups, link=link),),
        ),
        job=Job(
            global_batch_size=BATCH_SIZE,
            micro_batch_size=max(UNEQUAL_SIZES) if is_unequal else MICRO_BATCH_SIZE,
            unequal_micro_batch_sizes=UNEQUAL_SIZES if is_unequal else None,
            dtype="float32",
            optimizer=optimizer,
            schedule=schedule,
        ),
    )


def on_one_gpu(problem: Problem) -> Problem:
    """The same devices as GPUs that are all the first one of their host: each has its own node."""
    cluster = problem.cluster
    link = cluster.nodes[0].link
    types = tuple(entry.changed(kind="gpu") for entry in cluster.device_types)
    nodes = tuple(
        Node(name=f"node-{group.name}", devices=(group,), link=link)
        for group in cluster.nodes[0].devices
    )
    on_nodes = cluster.changed(device_types=types, nodes=nodes, inter_node_link=link)
    return Problem(profile=problem.profile, cluster=on_nodes, job=problem.job)


def plan_of(problem: Problem, shape: str) -> Plan:
    """The plan of a shape; with two stages on a device where the schedule is interleaved."""
    if shape in _GROUPS:
        return _group_plan(problem, shape)
    routes = _routes(shape, is_interleaved=problem.job.schedule == "interleaved")
    return _plan_of_routes(problem, shape, routes)


def _plan_of_routes(problem: Problem, shape: str, routes: Sequence[Route]) -> Plan:
    stages: dict[str, Stage] = {}
    for route in routes:
        for stage in _stages(route, problem.profile.num_layers):
            assert stages.setdefault(stage.name, stage) == stage, "one name, two ranges of layers"
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages.values()),
        pipelines=tuple(
            Pipeline(stages=tuple(name for name, _, _ in route.stages), micro_batches=share)
            for route, share in zip(
                routes, _shares(routes, problem.job.num_micro_batches), strict=True
            )
        ),
        planner=shape,
    )


def _group_plan(problem: Problem, shape: str) -> Plan:
    groups, shares = _GROUPS[shape]
    if shape in (REPLICAS_OF_GROUPS, REPLICAS_OF_UNLIKE):
        routes = [Route(((f"r{i}", 1, group[0]),)) for i, group in enumerate(groups)]
    else:
        turns = 2 if problem.job.schedule == "interleaved" and len(groups) > 1 else 1
        firsts = [group[0] for group in groups] * turns
        routes = [Route(tuple((f"s{i}", 1, first) for i, first in enumerate(firsts)))]
    alone, group_of = _plan_of_routes(problem, shape, routes), {g[0]: tuple(g) for g in groups}
    everything = LayerRange(first_layer=0, last_layer=problem.profile.num_layers - 1)
    return alone.changed(
        stages=tuple(
            stage.changed(
                devices=group_of[stage.devices[0]],
                tensor_shares=shares if len(group_of[stage.devices[0]]) == len(shares) else (),
                whole_layers=_untied(problem, stage, 2) if shape == PARTLY_WHOLE else (),
                batch_layers=_batch_layers(problem, stage) if shape == BY_BATCH else (),
                recompute_layers=tuple(stage.layers) if "recompute" in shape else (),
            )
            for stage in alone.stages
        ),
        sharded_state=(everything,) if shape == REPLICAS_OF_GROUPS else (),
    )


def _untied(problem: Problem, stage: Stage, every: int) -> tuple[int, ...]:
    """Some layers, and none that shares parameters with another one."""
    ties = problem.profile.tied_layers
    tied = {*ties, *(user for users in ties.values() for user in users)}
    return tuple(layer for layer in stage.layers[1::every] if layer not in tied)


def _batch_layers(problem: Problem, stage: Stage) -> tuple[int, ...]:
    """Every third layer that can be split by batch; zero-bubble runs none."""
    source = problem.profile.source
    if source is None or problem.job.schedule == "zero-bubble":
        return ()
    refused = find_batch_calls(source).reasons
    some = _untied(problem, stage, 3)
    return tuple(own for own in some if problem.profile.layers[own].name not in refused)


def _routes(shape: str, is_interleaved: bool) -> Sequence[Route]:
    if shape in _ROUTES:
        return _ROUTES[shape][is_interleaved]
    devices = ("d0", "d1", "d0", "d1") if is_interleaved else ("d0", "d1", "d2", "d3")
    names = [f"s{index}" for index in range(len(devices))]
    return (Route(tuple(zip(names, _CHAINS[shape], devices, strict=True))),)


def _stages(route: Route, num_layers: int) -> list[Stage]:
    """Cuts where the shares of the layers end, with at least one layer in each stage."""
    ends = list(accumulate(share for _, share, _ in route.stages))
    stops, count = [0], len(ends)
    for index, end in enumerate(ends):
        wanted = round(num_layers * end / ends[-1])
        stops.append(min(max(wanted, stops[-1] + 1), num_layers - (count - 1 - index)))
    return [
        Stage(name=name, first_layer=first, last_layer=stop - 1, devices=(device,))
        for (name, _, device), first, stop in zip(route.stages, stops, stops[1:], strict=False)
    ]


def _shares(routes: Sequence[Route], num_micro_batches: int) -> list[tuple[int, ...]]:
    """Micro-batches by turns, in the routes' weights."""
    turns = [index for index, route in enumerate(routes) for _ in range(route.weight)]
    taken: Mapping[int, list[int]] = {index: [] for index in range(len(routes))}
    for micro_batch in range(num_micro_batches):
        taken[turns[micro_batch % len(turns)]].append(micro_batch)
    return [tuple(taken[index]) for index in range(len(routes))]
