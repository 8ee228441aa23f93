"""Plans of the own runs: cuts, replicas, routes, and the devices and links under them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job, Schedule
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem

HOST = "host-cpu"
NUM_MICRO_BATCHES = 8
# Slowdown of each emulated device against the fastest.
RELATIVE_SLOWDOWNS = (1.0, 1.5, 2.0, 3.0)
# In a node, and between the two nodes: a few milliseconds for a message of these models.
NODE_LINK = Link(latency_s=1e-3, bandwidth_bytes_per_s=20e6)
SLOW_LINK = Link(latency_s=3e-3, bandwidth_bytes_per_s=5e6)
EMULATED_PLANS = ("equal cuts", "unequal cuts", "replicas", "two depths", "shared ends")
PLAIN_PLANS = ("equal cuts", "unequal cuts", "replicas", "two stages each")

# Name -> share of the layers, device.
Spans = Mapping[str, tuple[int, str]]


def emulated_cluster(slowdown: float, memory_bytes: int = 2**31) -> Cluster:
    """Two nodes with two emulated devices each, four speeds, slow links.

    Args:
        slowdown: Of the fastest device against this machine.
        memory_bytes: Of each device.
    """
    types = tuple(
        DeviceType(
            name=f"emulated-{index}",
            kind="cpu",
            memory_bytes=memory_bytes,
            peak_flops_per_s={"float32": 1e10},
            memory_bandwidth_bytes_per_s=1e10,
            price_usd_per_hour=0.0,
            emulation=Emulation(host_device_type=HOST, slowdown=slowdown * factor),
        )
        for index, factor in enumerate(RELATIVE_SLOWDOWNS)
    )
    nodes = tuple(
        Node(
            name=f"node-{number}",
            devices=tuple(
                DeviceGroup(name=f"d{index}", type=f"emulated-{index}") for index in indices
            ),
            link=NODE_LINK,
        )
        for number, indices in enumerate(((0, 1), (2, 3)))
    )
    return Cluster(
        name="four emulated devices", device_types=types, nodes=nodes, inter_node_link=SLOW_LINK
    )


def job_of(micro_batch_size: int, schedule: Schedule) -> Job:
    """Eight micro-batches, float32, AdamW."""
    return Job(
        global_batch_size=NUM_MICRO_BATCHES * micro_batch_size,
        micro_batch_size=micro_batch_size,
        dtype="float32",
        optimizer="adamw",
        schedule=schedule,
    )


def plan_named(problem: Problem, name: str) -> Plan:
    """One of the plans above, for the devices of a problem in their order.

    On four devices: `equal cuts` and `unequal cuts` are chains; `replicas` has one front stage and
    two private replicas behind it with five and three micro-batches; `two depths` has a pipeline of
    three stages and one of a single stage; `shared ends` has two routes with equal front and back.
    On two devices: `replicas` trains five of the micro-batches on both and three on one alone.
    """
    devices = [device.name for device in problem.cluster.devices]
    most, few = range(5), range(5, NUM_MICRO_BATCHES)
    if len(devices) == 2:
        return _plan_on_two(problem, name, *devices)
    a, b, c, d = devices
    if name == "equal cuts":
        return chain(problem, {"s0": (1, a), "s1": (1, b), "s2": (1, c), "s3": (1, d)})
    if name == "unequal cuts":
        return chain(problem, {"s0": (1, d), "s1": (3, a), "s2": (2, c)})
    if name == "two stages each":
        return chain(problem, {"s0": (1, a), "s1": (1, b), "s2": (1, a), "s3": (1, b)})
    if name == "replicas":
        chains: Sequence[Spans] = (
            {"front": (1, b), "back": (1, a)},
            {"front": (1, b), "other": (1, c)},
        )
    elif name == "two depths":
        chains = ({"s0": (2, b), "s1": (3, a), "s2": (1, c)}, {"all": (6, d)})
    else:
        assert name == "shared ends"
        chains = (
            {"front": (1, b), "middle": (2, a), "back": (1, c)},
            {"front": (1, b), "other": (2, d), "back": (1, c)},
        )
    return routes(problem, chains, (most, few))


def _plan_on_two(problem: Problem, name: str, a: str, b: str) -> Plan:
    if name == "equal cuts":
        return chain(problem, {"s0": (1, a), "s1": (1, b)})
    if name == "unequal cuts":
        return chain(problem, {"s0": (2, a), "s1": (1, b)})
    if name == "two stages each":
        return chain(problem, {"s0": (1, a), "s1": (1, b), "s2": (1, a), "s3": (1, b)})
    assert name == "replicas"
    pipelines: Sequence[Spans] = ({"s0": (1, a), "s1": (1, b)}, {"all": (2, b)})
    return routes(problem, pipelines, (range(6), range(6, NUM_MICRO_BATCHES)))


def chain(problem: Problem, spans: Spans) -> Plan:
    """One pipeline; its stages share the layers as `spans` says."""
    return routes(problem, [spans], [range(problem.job.num_micro_batches)])


def routes(
    problem: Problem, pipelines: Sequence[Spans], micro_batches: Sequence[Sequence[int]]
) -> Plan:
    """A plan of several pipelines; a stage that is named in two of them is shared."""
    profile, stages = problem.profile, {}
    for spans in pipelines:
        stops = cuts([share for share, _ in spans.values()], profile.num_layers)
        for (name, (_, device)), first, stop in zip(
            spans.items(), (0, *stops), stops, strict=False
        ):
            stages[name] = Stage(
                name=name, first_layer=first, last_layer=stop - 1, devices=(device,)
            )
    return Plan(
        model=profile.name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages.values()),
        pipelines=tuple(
            Pipeline(stages=tuple(spans), micro_batches=tuple(share))
            for spans, share in zip(pipelines, micro_batches, strict=True)
        ),
        planner="by hand",
    )


def cuts(shares: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """The layer behind each stage: layers in proportion to the shares, at least one for each.

    The last number is the number of layers.
    """
    assert num_layers >= len(shares)
    total, count = sum(shares), len(shares)
    stops: list[int] = []
    for index, sofar in enumerate(accumulate(shares)):
        wanted = round(num_layers * sofar / total)
        least = (stops[-1] if stops else 0) + 1
        stops.append(min(max(wanted, least), num_layers - (count - 1 - index)))
    return tuple(stops)
