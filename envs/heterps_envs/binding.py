"""Binding: a placement names device classes; a plan names devices and routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import gcd

from heterps_configs.cluster import Device
from heterps_configs.errors import InfeasibleError
from heterps_configs.plan import Bound, Pipeline, Plan, Stage
from heterps_envs.placement import PlacedStage, Placement
from heterps_envs.placement import placement_of as placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator import estimate

# How many nodes the first stage is tried on.
MAX_STARTS = 8


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
    nodes.

    Raises:
        InfeasibleError: The placement asks for more devices of a class than there are.
    """
    job = problem.job
    used = tuple(
        PlacedStage(
            s.first_layer, s.last_layer, s.device_class, min(s.replicas, job.num_micro_batches)
        )
        for s in placement
    )
    _check_counts(problem, used)
    devices = _choose_devices(problem, used)
    names = [
        [f"s{i}" if stage.replicas == 1 else f"s{i}r{j}" for j in range(stage.replicas)]
        for i, stage in enumerate(used)
    ]
    stages = tuple(
        Stage(
            name=names[i][j],
            first_layer=stage.first_layer,
            last_layer=stage.last_layer,
            devices=(devices[i][j].name,),
        )
        for i, stage in enumerate(used)
        for j in range(stage.replicas)
    )
    routes: dict[tuple[str, ...], list[int]] = {}
    for m in range(job.num_micro_batches):
        routes.setdefault(tuple(group[m % len(group)] for group in names), []).append(m)
    plan = Plan(
        model=problem.profile.name,
        model_reference=problem.model_reference,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        cluster_reference=problem.cluster_reference,
        job=job,
        stages=stages,
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(share)) for route, share in routes.items()
        ),
        planner=planner,
        seed=seed,
        bound=bound,
    )
    return plan.model_copy(update={"predicted_step_time_s": estimate(problem, plan).step_time_s})


def _check_counts(problem: Problem, placement: Placement) -> None:
    asked: Counter[int] = Counter()
    for stage in placement:
        asked[stage.device_class] += stage.replicas
    for kind, count in asked.items():
        entry = problem.classes[kind]
        if count > entry.count:
            raise InfeasibleError(
                f"the placement asks for {count} devices of {entry.name}; there are {entry.count}"
            )


def _choose_devices(problem: Problem, placement: Placement) -> list[list[Device]]:
    first = problem.classes[placement[0].device_class].devices
    starts = list({device.node: device for device in reversed(first)}.values())[::-1][:MAX_STARTS]
    return min(
        (_greedy(problem, placement, start) for start in starts), key=lambda found: found[0]
    )[1]


def _greedy(
    problem: Problem, placement: Placement, start: Device
) -> tuple[float, list[list[Device]]]:
    """Seconds of communication of the choice, and the devices of each stage."""
    tables = problem.tables
    free = {device.name: device for device in problem.cluster.devices}
    total, before = 0.0, list[Device]()
    chosen: list[list[Device]] = []
    for index, stage in enumerate(placement):
        kind = problem.classes[stage.device_class]
        message = float(tables.output_bytes[stage.first_layer - 1]) if index else 0.0
        gradient = float(
            tables.gradient_bytes[stage.first_layer : stage.last_layer + 1].sum() / stage.replicas
        )
        share = 2.0 * -(-tables.num_micro_batches // stage.replicas)
        mine: list[Device] = []
        for replica in range(stage.replicas):
            peers = (
                before[
                    replica % gcd(len(before), stage.replicas) :: gcd(len(before), stage.replicas)
                ]
                if before
                else []
            )
            open_nodes: dict[str, list[Device]] = {}
            for device in kind.devices:
                if device.name in free:
                    open_nodes.setdefault(device.node, []).append(device)
            if index == replica == 0:
                open_nodes = {start.node: open_nodes[start.node]}

            def cost(node: str) -> float:
                candidate = open_nodes[node][0]
                seconds = (
                    sum(
                        problem.link(candidate.name, peer.name).transfer_s(message)
                        for peer in peers
                    )
                    * share
                    / max(len(peers), 1)
                )
                slowest = max(
                    (problem.link(candidate.name, peer.name).transfer_s(gradient) for peer in mine),
                    default=0.0,
                )
                return seconds + 2 * (stage.replicas - 1) * slowest

            best = min(open_nodes, key=lambda node: (cost(node), -len(open_nodes[node])))
            total += cost(best)
            mine.append(free.pop(open_nodes[best][0].name))
        chosen.append(mine)
        before = mine
    return total, chosen
