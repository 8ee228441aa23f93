"""Problems with exact seconds and bytes, and random plans, for the tests of the simulated world."""

from __future__ import annotations

from collections.abc import Sequence

from heterps_configs.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.device import DeviceType
from heterps_configs.job import Job
from heterps_configs.model_profile import LayerProfile, Measurement, ModelProfile
from heterps_configs.plan import Pipeline, Plan, Stage
from heterps_envs.problem import Problem

FAST = Link(latency_s=0.0, bandwidth_bytes_per_s=1e30)


def device_type(name: str, memory_bytes: int = 10**12, price: float = 1.0) -> DeviceType:
    return DeviceType(
        name=name,
        memory_bytes=memory_bytes,
        peak_flops_per_s={"float32": 1e12},
        memory_bandwidth_bytes_per_s=1e11,
        price_usd_per_hour=price,
    )


def chain_problem(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    num_micro_batches: int = 8,
    speeds: Sequence[float] = (1.0,),
    counts: Sequence[int] = (8,),
    memory_bytes: Sequence[int] | None = None,
    prices: Sequence[float] | None = None,
    parameters: Sequence[int] | None = None,
    activation_bytes: Sequence[float] | None = None,
    output_bytes: Sequence[float] | None = None,
    optimizer_s: Sequence[float] | None = None,
    tied_to: dict[int, int] | None = None,
    link: Link = FAST,
    inter_node_link: Link | None = None,
    one_node: bool = True,
    schedule: str = "1f1b",
    samples: int | None = None,
    micro_batch_size: int = 1,
    min_throughput: float | None = None,
    objective: str = "throughput",
) -> Problem:
    """Layer l takes `forward_s[l] * speeds[t]` seconds on a device of class t, and so on.

    All in float32 with SGD without momentum: 4 bytes of weight and 4 of gradient a parameter.
    Classes are on one node, or each on its own.
    """
    num_layers = len(forward_s)
    zeros = [0.0] * num_layers
    names = [f"class{t}" for t in range(len(speeds))]
    tied = tied_to or {}
    layers = tuple(
        LayerProfile(
            name=f"layer{i}",
            kind="Layer",
            num_parameters=(parameters or [0] * num_layers)[i],
            forward_flops=1,
            backward_flops=1,
            activation_bytes=(activation_bytes or zeros)[i],
            output_bytes=(output_bytes or zeros)[i],
            tied_to=f"layer{tied[i]}" if i in tied else None,
        )
        for i in range(num_layers)
    )
    measurements = tuple(
        Measurement(
            device_type=name,
            micro_batch_size=micro_batch_size,
            forward_s=tuple(value * speed for value in forward_s),
            backward_s=tuple(value * speed for value in backward_s),
            optimizer_s=tuple(value * speed for value in optimizer_s or zeros),
        )
        for name, speed in zip(names, speeds, strict=True)
    )
    groups = [DeviceGroup(name=f"d{t}", type=name, count=counts[t]) for t, name in enumerate(names)]
    nodes = (
        (Node(name="node", devices=tuple(groups), link=link),)
        if one_node
        else tuple(
            Node(name=f"node{t}", devices=(group,), link=link) for t, group in enumerate(groups)
        )
    )
    cluster = Cluster(
        name="test",
        device_types=tuple(
            device_type(
                name,
                (memory_bytes or [10**12] * len(names))[t],
                (prices or [1.0] * len(names))[t],
            )
            for t, name in enumerate(names)
        ),
        nodes=nodes,
        inter_node_link=inter_node_link or link,
    )
    return Problem(
        profile=ModelProfile(name="chain", layers=layers, measurements=measurements),
        cluster=cluster,
        job=Job.from_mapping(
            {
                "global_batch_size": samples or num_micro_batches * micro_batch_size,
                "micro_batch_size": micro_batch_size,
                "dtype": "float32",
                "optimizer": "sgd",
                "schedule": schedule,
                "objective": objective,
                "min_throughput_samples_per_s": min_throughput,
            }
        ),
    )


def plan_of(
    problem: Problem,
    stages: dict[str, tuple[int, int, str]],
    pipelines: dict[tuple[str, ...], Sequence[int]],
) -> Plan:
    """A plan from `name -> (first layer, last layer, device)` and `route -> micro-batches`."""
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(
            Stage(name=name, first_layer=first, last_layer=last, devices=(device,))
            for name, (first, last, device) in stages.items()
        ),
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(share)) for route, share in pipelines.items()
        ),
    )
