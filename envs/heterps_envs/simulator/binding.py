"""Binding: a placement names device classes; a plan names devices and routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from math import lcm
from typing import Any

from heterps_configs.documents.plan import Bound, LayerRange, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.problem import Problem
from heterps_envs.simulator.device_choice import chosen_devices
from heterps_envs.simulator.simulate import simulated_step_time_s


def bind(
    problem: Problem,
    placement: Sequence[PlacedStage],
    *,
    planner: str,
    seed: int,
    bound: Bound = Bound(),
) -> Plan:
    """Picks the devices of a placement and routes its micro-batches.

    Replica j of a stage with k replicas takes the micro-batches m with m mod k = j. Replicas that
    no micro-batch would reach are left out. Devices are chosen front to back, each where it talks
    fastest with the stage before it and with its own replicas; the first stage is tried on several
    nodes. A stage of some degree takes as many devices of one node for each replica.

    Raises:
        InfeasibleError: The placement asks for more devices of a class than there are, or for more
            groups than its nodes have room for.
    """
    plan = bound_plan(problem, placement, planner=planner, seed=seed, bound=bound)
    return plan.changed(predicted_step_time_s=simulated_step_time_s(problem, plan))


def bound_plan(
    problem: Problem,
    placement: Sequence[PlacedStage],
    *,
    planner: str,
    seed: int,
    bound: Bound = Bound(),
) -> Plan:
    """What `bind` returns, not simulated yet: its predicted step time is left out."""
    job = problem.job
    used = tuple(
        stage
        if stage.replicas <= job.num_micro_batches
        else replace(stage, replicas=job.num_micro_batches)
        for stage in placement
    )
    _check_counts(problem, used)
    devices = chosen_devices(problem, used)
    names = [
        [f"s{i}" if stage.replicas == 1 else f"s{i}r{j}" for j in range(stage.replicas)]
        for i, stage in enumerate(used)
    ]
    stages = tuple(
        Stage.unchecked(
            name=names[i][j],
            first_layer=stage.first_layer,
            last_layer=stage.last_layer,
            devices=devices[i][j],
            recompute_layers=_layers(stage) if stage.recompute else (),
            offloaded_layers=_layers(stage) if stage.offload else (),
        )
        for i, stage in enumerate(used)
        for j in range(stage.replicas)
    )
    # After so many micro-batches each stage is at its first replica again.
    turn = lcm(*(len(group) for group in names))
    routes = islice(zip(*map(cycle, names), strict=False), min(turn, job.num_micro_batches))
    pipelines = tuple(
        Pipeline.unchecked(
            stages=route, micro_batches=tuple(range(first, job.num_micro_batches, turn))
        )
        for first, route in enumerate(routes)
    )
    sharded = tuple(
        LayerRange.unchecked(first_layer=stage.first_layer, last_layer=stage.last_layer)
        for stage in used
        if stage.shards_state and stage.replicas > 1
    )
    return Plan.unchecked(
        **_named(problem),
        stages=stages,
        pipelines=pipelines,
        planner=planner,
        seed=seed,
        bound=bound,
        sharded_state=sharded,
    )


def _layers(stage: PlacedStage) -> tuple[int, ...]:
    return tuple(range(stage.first_layer, stage.last_layer + 1))


def plan_of(
    problem: Problem,
    stages: tuple[Stage, ...],
    pipelines: tuple[Pipeline, ...],
    *,
    planner: str,
    seed: int,
    bound: Bound = Bound(),
) -> Plan:
    """The plan for a problem of stages on named devices and their routes."""
    return Plan(
        **_named(problem),
        stages=stages,
        pipelines=pipelines,
        planner=planner,
        seed=seed,
        bound=bound,
    )


def _named(problem: Problem) -> dict[str, Any]:
    """The fields of a plan that say what it is for."""
    return {
        "model": problem.profile.name,
        "model_reference": problem.model_reference,
        "model_fingerprint": problem.layers_fingerprint,
        "num_layers": problem.profile.num_layers,
        "cluster": problem.cluster.name,
        "cluster_reference": problem.cluster_reference,
        "job": problem.job,
    }


def _check_counts(problem: Problem, placement: Placement) -> None:
    asked: Counter[int] = Counter()
    for stage in placement:
        asked[stage.device_class] += stage.replicas * stage.degree
    for kind, count in asked.items():
        entry = problem.classes[kind]
        if count > entry.count:
            raise InfeasibleError(
                f"the placement asks for {count} devices of {entry.name}; there are {entry.count}"
            )
