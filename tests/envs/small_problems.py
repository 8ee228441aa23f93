"""Problems with exact seconds and bytes, and random plans, for the tests of the simulated world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.closed_form.formula import CUT_BIT, REPLICA_SHIFT
from heterps_envs.closed_form.placement import PlacedStage, Placement, decode
from heterps_envs.cost_tables import CostTables, StageOptions
from heterps_envs.options import Memory
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import simulate

FAST = Link(latency_s=0.0, bandwidth_bytes_per_s=1e18)


def device_type(name: str, memory_bytes: int = 10**12, price: float = 1.0) -> DeviceType:
    return DeviceType(
        name=name,
        kind="cpu",  # no fragmentation: every byte counts
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
    schedule: str = "1f1b",
    samples: int | None = None,
    micro_batch_size: int = 1,
    min_throughput: float | None = None,
    objective: str = "throughput",
) -> Problem:
    """Layer l takes `forward_s[l] * speeds[t]` seconds on a device of class t, and so on.

    All in float32 with SGD without momentum: 4 bytes of weight and 4 of gradient a parameter.
    All devices are on one node; those of class t are called `d{t}-{i}`.
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
            tied_parameters=(parameters or [0] * num_layers)[i] if i in tied else 0,
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
        nodes=(Node(name="node", devices=tuple(groups), link=link),),
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
    stages: Mapping[str, tuple[int, int, str]],
    pipelines: Mapping[tuple[str, ...], Sequence[int]],
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


def one_layer_each(problem: Problem) -> Estimate:
    """Simulates the plan that gives each layer a device of class 0."""
    layers = range(problem.profile.num_layers)
    plan = bind(problem, [PlacedStage(i, i, 0) for i in layers], planner="test", seed=0)
    return simulate(problem, plan)


def random_tables(seed: int, num_layers: int, counts: Sequence[int], **changes: Any) -> CostTables:
    """Tables with unlike layers and classes, in which compute, links and memory all matter."""
    rng = np.random.default_rng(seed)
    size = len(counts)
    forward = rng.uniform(0.1, 2, (num_layers, 1)) * rng.uniform(0.3, 3, (num_layers, size))
    links = rng.uniform(0, 1, (size, size))
    values: dict[str, Any] = {
        "num_micro_batches": int(rng.integers(1, 9)),
        "is_gpipe": bool(rng.integers(2)),
        "forward_s": forward,
        "backward_s": forward * rng.uniform(1, 3),
        "optimizer_s": rng.uniform(0, 0.5, (num_layers, size)),
        "state_bytes": rng.uniform(0, 2, num_layers),
        "gradient_bytes": rng.uniform(0, 1, num_layers),
        "activation_bytes": rng.uniform(0, 0.5, num_layers),
        "output_bytes": rng.uniform(0, 2, num_layers) * (np.arange(num_layers) < num_layers - 1),
        "device_count": np.array(counts, dtype=np.int64),
        "memory_bytes": rng.uniform(1, 1 + 2 * num_layers, size),
        "price_usd_per_hour": rng.uniform(0.1, 4, size),
        "latency_s": (links + links.T) * 0.2,
        "inverse_bandwidth_s_per_byte": (links + links.T) * rng.uniform(0, 1),
    }
    return CostTables(**(values | changes))


def with_options(
    tables: CostTables,
    seed: int,
    degrees: Sequence[int] = (1, 2),
    actions: Sequence[Memory] = ("keep", "recompute"),
) -> CostTables:
    """The same with ways to carry out a stage: by groups, with less kept, with state shared.

    Groups hold less for each device and are faster, but not as many times as they have devices.
    """
    rng = np.random.default_rng(seed)
    plain = tables.stage_options
    columns = [
        (kind, degree, action, is_shared)
        for kind in range(tables.num_classes)
        for degree in degrees
        if degree <= tables.device_count[kind]
        for action in actions
        for is_shared in (False, True)
        if (degree == 1 and action == "keep" and not is_shared) or rng.random() < 0.5
    ]
    kinds = np.array([column[0] for column in columns])
    degree = np.array([column[1] for column in columns])
    again, away = (
        [column[2] == action for column in columns] for action in ("recompute", "offload")
    )
    shared = np.array([column[3] for column in columns])
    speed = degree ** rng.uniform(0.5, 1.0, len(columns))
    forward_s, backward_s = tables.forward_s[:, kinds] / speed, tables.backward_s[:, kinds] / speed
    held = np.where(again, 0.3, np.where(away, 0.1, 1.0))
    state, whole = plain.state_bytes[:, kinds] / degree, rng.uniform(0.2, 0.8)
    copy_s = rng.uniform(0.5, 2.0) * backward_s if any(away) else 0.0
    copies = (np.maximum(degree[:, None], degree) / np.minimum(degree[:, None], degree) + 1) / 2
    options = StageOptions(
        class_of_option=kinds,
        devices_of_option=degree,
        state_bytes=np.where(shared, whole * state, state),
        sharded_bytes=np.where(shared, state - whole * state, 0.0),
        shards_state=shared,
        gradient_bytes=plain.gradient_bytes[:, kinds] / degree,
        activation_bytes=plain.activation_bytes[:, kinds] / degree * held,
    )
    return replace(
        tables,
        forward_s=np.where(away, np.maximum(forward_s, copy_s), forward_s),
        backward_s=np.where(away, np.maximum(backward_s, copy_s), backward_s)
        + np.where(again, forward_s, 0.0),
        optimizer_s=tables.optimizer_s[:, kinds] / degree,
        memory_bytes=tables.memory_bytes[kinds] * np.where(again, 0.95, np.where(away, 0.9, 1.0)),
        price_usd_per_hour=tables.price_usd_per_hour[kinds] * degree,
        latency_s=tables.latency_s[np.ix_(kinds, kinds)],
        inverse_bandwidth_s_per_byte=tables.inverse_bandwidth_s_per_byte[np.ix_(kinds, kinds)]
        * copies,
        options=options,
    )


def with_splits(problem: Problem) -> Problem:
    """The same with layers that groups split."""
    layers = tuple(
        layer.changed(
            tensor_split=TensorSplit(
                unit="columns", num_units=8, parameters=layer.num_parameters,
                forward_flops=layer.forward_flops, backward_flops=layer.backward_flops,
                activation_bytes=layer.activation_bytes,
                memory_traffic_bytes=layer.memory_traffic_bytes,
            )
        )
        for layer in problem.profile.layers
    )  # fmt: skip
    return replace(problem, profile=problem.profile.changed(layers=layers))


def all_placements(num_layers: int, counts: Sequence[int]) -> Iterator[Placement]:
    """Every placement that the device counts allow."""
    options = [(kind, k) for kind, count in enumerate(counts) for k in range(1, count + 1)]
    for num_cuts in range(min(num_layers, sum(counts))):
        for cuts in combinations(range(1, num_layers), num_cuts):
            edges = (0, *cuts, num_layers)
            for choice in product(options, repeat=num_cuts + 1):
                used = [sum(k for kind, k in choice if kind == c) for c in range(len(counts))]
                if all(u <= count for u, count in zip(used, counts, strict=True)):
                    yield tuple(
                        PlacedStage(first, stop - 1, kind, k)
                        for first, stop, (kind, k) in zip(edges, edges[1:], choice, strict=False)
                    )


@cache
def all_placement_codes(num_layers: int, counts: tuple[int, ...]) -> NDArray[np.int32]:
    """(N, L) the codes of `all_placements`; one array for all who ask, not to be written to."""
    options = [(kind, k) for kind, count in enumerate(counts) for k in range(1, count + 1)]
    codes = all_codes(num_layers, options)
    is_kept = [all(_devices(code, len(counts)) <= counts) for code in codes]
    return codes[is_kept]


def _devices(code: NDArray[np.int32], num_classes: int) -> NDArray[np.int64]:
    used = np.zeros(num_classes, np.int64)
    for stage in decode(code):
        used[stage.device_class] += stage.replicas
    return used


def all_codes(num_layers: int, options: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """(N, L) codes of all stages one behind another, whatever devices there are.

    Args:
        num_layers: Of the model.
        options: Option and replicas that each stage may have.
    """
    kinds, replicas = np.array(options).T
    values = (kinds | (replicas - 1) << REPLICA_SHIFT).astype(np.int32)
    found = []
    for is_cut in product([False, True], repeat=num_layers - 1):
        last = np.flatnonzero([*is_cut, True])
        chosen = np.indices((len(options),) * len(last)).reshape(len(last), -1).T
        code = np.repeat(values[chosen], np.diff(last, prepend=-1), axis=1)
        is_alike = kinds[chosen[:, :-1]] == kinds[chosen[:, 1:]]
        code[:, last[:-1]] |= np.where(is_alike, np.int32(CUT_BIT), np.int32(0))
        found.append(code)
    return np.concatenate(found)


@st.composite
def placements(
    draw: st.DrawFn, num_layers: int, counts: Sequence[int], max_replicas: int = 4
) -> Placement:
    """Placements that the device counts allow."""
    left = list(counts)
    stages: list[PlacedStage] = []
    first = 0
    while first < num_layers:
        kind = draw(st.sampled_from([c for c, count in enumerate(left) if count]))
        replicas = draw(st.integers(1, min(left[kind], max_replicas)))
        left[kind] -= replicas
        last = draw(st.integers(first, num_layers - 1)) if sum(left) else num_layers - 1
        stages.append(PlacedStage(first, last, kind, replicas))
        first = last + 1
    return tuple(stages)


@st.composite
def any_plans(draw: st.DrawFn, problem: Problem, are_alone: bool = False) -> Plan:
    """Plans of several pipelines with cuts of their own, shared stages and shared devices.

    With `are_alone` each stage has a device of its own.
    """
    num_layers, micro_batches = problem.profile.num_layers, problem.job.num_micro_batches
    devices = [device.name for device in problem.cluster.devices]
    share = draw(st.lists(st.integers(0, 2), min_size=micro_batches, max_size=micro_batches))
    stages: dict[str, tuple[int, int, str]] = {}
    pipelines: dict[tuple[str, ...], list[int]] = {}
    for index in sorted(set(share)):
        cuts = draw(st.sets(st.integers(1, num_layers - 1), max_size=3)) if num_layers > 1 else ()
        edges = [0, *sorted(cuts), num_layers]
        route: list[str] = []
        for first, stop in pairwise(edges):
            same = [name for name, entry in stages.items() if entry[:2] == (first, stop - 1)]
            is_shared = draw(st.booleans())
            if same and is_shared:
                route.append(same[draw(st.integers(0, len(same) - 1))])
            else:
                assume(devices)
                device = draw(st.sampled_from(devices))
                if are_alone:
                    devices.remove(device)
                stages[f"s{len(stages)}"] = (first, stop - 1, device)
                route.append(f"s{len(stages) - 1}")
        mine = [m for m, pipeline in enumerate(share) if pipeline == index]
        pipelines.setdefault(tuple(route), []).extend(mine)
    return plan_of(problem, stages, {route: sorted(part) for route, part in pipelines.items()})
