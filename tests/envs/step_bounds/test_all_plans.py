"""Every plan of tiny problems is simulated: none is below the bound, over slow links neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.executable import least_executable_s
from tests.envs.small_problems import chain_problem, plan_of

ROUNDING = 1e-9
COUNTS = ((2, 1), (1, 1), (2, 2), (1, 2), (3, 1))
Stages = dict[str, tuple[int, int, str]]
Groups = tuple[tuple[str, ...], ...]


def drawn(seed: int) -> Problem:
    """Few layers on few devices of two classes, each of them on one node or on several."""
    rng = np.random.default_rng(seed)
    counts = COUNTS[rng.integers(len(COUNTS))]
    num_layers = int(rng.integers(1, 3 if sum(counts) > 3 else 4))

    def some(low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, num_layers)]

    room = int(rng.integers(100, 500)) if rng.integers(2) else 10**9
    problem = chain_problem(
        some(0.1, 1),
        some(0.1, 1),
        num_micro_batches=int(rng.integers(1, 4)),
        counts=counts,
        speeds=(1.0, float(rng.uniform(1, 2))),
        parameters=rng.integers(1, 20, num_layers).tolist(),
        activation_bytes=some(0, 20),
        optimizer_s=some(0, 0.5),
        output_bytes=some(0, 30),
        memory_bytes=[room, room],
        schedule=("1f1b", "gpipe")[rng.integers(2)],
    )
    between = Link(latency_s=float(rng.uniform(0, 0.1)), bandwidth_bytes_per_s=100.0)
    cluster = on_nodes(problem.cluster, counts, bool(rng.integers(2)), between)
    job = problem.job.changed(optimizer=("sgd", "adamw")[rng.integers(2)])
    return replace(problem, cluster=cluster, job=job, strategy=Strategy(shard_state="auto"))


def on_nodes(cluster: Cluster, counts: tuple[int, ...], is_apart: bool, between: Link) -> Cluster:
    """A node for each class; with `is_apart` the last device of the first class has its own."""
    link = Link(latency_s=0.001, bandwidth_bytes_per_s=1e4)
    parts = [
        [(f"d{kind}-{index}" if count > 1 else f"d{kind}") for index in range(count)]
        for kind, count in enumerate(counts)
    ]
    named = [(f"class{kind}", names) for kind, names in enumerate(parts)]
    if is_apart and counts[0] > 1:
        named = [("class0", parts[0][:-1]), ("class0", parts[0][-1:]), *named[1:]]
    nodes = tuple(
        Node(
            name=f"node{index}",
            devices=tuple(DeviceGroup(name=name, type=kind, count=1) for name in names),
            link=link,
        )
        for index, (kind, names) in enumerate(named)
    )
    return cluster.changed(nodes=nodes, inter_node_link=between)


def all_plans(problem: Problem, groups: Groups = ()) -> Iterator[Plan]:
    """Each group has a range of layers or none, and each micro-batch any chain of them.

    Groups of as many devices of one class on one node are alike: of two choices that differ in
    their names alone one is left out.
    """
    num_layers, num_micro_batches = problem.profile.num_layers, problem.job.num_micro_batches
    ranges = [(a, b) for a in range(num_layers) for b in range(a, num_layers)]
    groups = groups or tuple((device.name,) for device in problem.cluster.devices)
    devices_of = {f"s{index}": devices for index, devices in enumerate(groups)}
    names = list(devices_of)
    whole = {names[0]: (0, num_layers - 1, groups[0][0])}
    first = plan_of(problem, whole, {(names[0],): range(num_micro_batches)})
    kinds = [
        (problem.device_named[own[0]].node, problem.class_of[own[0]], len(own)) for own in groups
    ]
    alike = [(a, b) for b in range(len(groups)) for a in range(b) if kinds[a] == kinds[b]]
    for numbers in product(range(len(ranges) + 1), repeat=len(groups)):
        if any(numbers[a] > numbers[b] for a, b in alike):
            continue
        choice = [([None, *ranges])[number] for number in numbers]
        stages = {
            name: (*own, devices[0])
            for own, (name, devices) in zip(choice, devices_of.items(), strict=True)
            if own is not None
        }
        routes = list(chains(stages, 0, num_layers))
        for chosen in combinations_with_replacement(routes, num_micro_batches):
            if {name for route in chosen for name in route} == set(stages):
                shares = {
                    route: [m for m, own in enumerate(chosen) if own == route] for route in chosen
                }
                # So many that only the first is checked as a document is.
                yield first.changed_unchecked(
                    stages=tuple(
                        Stage.unchecked(
                            name=name, first_layer=begin, last_layer=last, devices=devices_of[name]
                        )
                        for name, (begin, last, _) in stages.items()
                    ),
                    pipelines=tuple(
                        Pipeline.unchecked(stages=route, micro_batches=tuple(share))
                        for route, share in shares.items()
                    ),
                )


def chains(stages: Stages, first: int, num_layers: int) -> Iterator[tuple[str, ...]]:
    """Stages that follow each other from a layer to the end."""
    if first == num_layers:
        yield ()
    for name, (begin, last, _) in stages.items():
        if begin == first:
            for rest in chains(stages, last + 1, num_layers):
                yield (name, *rest)


def least_simulated_s(problem: Problem) -> float:
    """The least over all plans, with sums beside passes or after them, and state of any layers."""
    least_s = float("inf")
    layers = [LayerRange(first_layer=a, last_layer=a) for a in range(problem.profile.num_layers)]
    choices = [own for size in range(len(layers) + 1) for own in combinations(layers, size)]
    for plan in all_plans(problem):
        is_shared = len(plan.stages) > 1 and len(plan.pipelines) > 1
        for overlaps in (True, False) if is_shared else (True,):
            for sharded in choices if is_shared else choices[:1]:
                own = plan.changed_unchecked(overlaps_reduce=overlaps, sharded_state=sharded)
                least_s = min(least_s, feasible_step_time_s(problem, own))
    return least_s


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 4, 7, 8, 10, 15, 17, 18, 21, 23, 35, 42])
def test_no_plan_at_all_is_below_the_bound(seed: int) -> None:
    problem = drawn(seed)
    least_s = least_simulated_s(problem)
    bound_s = least_executable_s(problem)
    assert bound_s * (1 - ROUNDING) <= least_s
    # Said of a number of seconds that some plan takes, or nothing.
    assert least_executable_s(problem, least_s * (1 + 1e-6)) <= least_s * (1 + ROUNDING)
