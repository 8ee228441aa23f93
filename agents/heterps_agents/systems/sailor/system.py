"""The system `sailor`: GPU types, layers and replicas under Sailor's own cost, as a plan of ours.

A type of GPUs is a device type with one size of memory; between two types, the slowest link counts.
Tensor parallelism is left out: a stage of our plans runs on one device. The micro-batch size is the
job's. Sizes are in Sailor's unit, float32 elements, and so keep the profile's bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product

from heterps_agents.finishing.chains import Column, routed
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.system import STEP, OwnCost, System, SystemAnswer
from heterps_agents.systems.devices import slowest_link
from heterps_agents.systems.sailor.cost import FLOAT_BYTES
from heterps_agents.systems.sailor.planner import SailorLimits, plan_for
from heterps_configs.documents.cluster import Link
from heterps_configs.importers.sailor import (
    SailorCluster,
    SailorEnd,
    SailorLayerSizes,
    SailorLayerTimes,
    SailorLink,
    SailorLinks,
    SailorModel,
    SailorNodeType,
    SailorShape,
)
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of


@register("sailor")
class Sailor(System):
    """The plan with the least seconds of a step that passes Sailor's memory check."""

    name = "sailor"

    def why_not(self, problem: Problem) -> str | None:
        """Its zones are not told apart here."""
        regions = dict.fromkeys(device.region for device in problem.cluster.devices)
        if len(regions) > 1:
            return f"is solved here for one region; the cluster has {', '.join(regions)}"
        return None

    def solve(self, problem: Problem, budget: Budget) -> SystemAnswer:
        """Its stages, whose replicas are of one type, over the devices in the cluster's order."""
        types = _types_of(problem)
        found = plan_for(
            _model_of(problem, types),
            _cluster_of(problem, types),
            _links_of(problem, types),
            {gpu: len(names) for gpu, names in types.items()},
            problem.job.global_batch_size,
            SailorLimits(tensor_parallel=(1,)),
        )
        budget.spend(max(1, found.sweeps))
        free = {gpu: iter(names) for gpu, names in types.items()}
        chain = tuple(
            Column(
                stage.first_layer,
                stage.end_layer - 1,
                tuple(next(free[group.gpu]) for group in stage.groups),
            )
            for stage in found.plan.stages
        )
        stages, pipelines = routed([chain], [range(problem.job.num_micro_batches)])
        plan = plan_of(problem, stages, pipelines, planner=self.name, seed=self.seed)
        return SystemAnswer(plan, OwnCost(found.cost.iteration_s, STEP))


# Names of the devices of each type.
_Types = dict[str, list[str]]


def _types_of(problem: Problem) -> _Types:
    sizes = {(device.type.name, device.memory_bytes) for device in problem.cluster.devices}
    times_named = Counter(name for name, _ in sizes)
    types: _Types = defaultdict(list)
    for device in problem.cluster.devices:
        name = device.type.name
        is_one = times_named[name] == 1
        types[name if is_one else f"{name} of {device.memory_bytes} bytes"].append(device.name)
    return types


def _model_of(problem: Problem, types: _Types) -> SailorModel:
    tables, size = problem.tables, problem.job.micro_batch_size
    times = {}
    for gpu, names in types.items():
        kind = problem.class_of[names[0]]
        columns = tables.forward_s[:, kind], tables.backward_s[:, kind], tables.optimizer_s[:, kind]
        times[SailorShape(gpu, size, 1)] = tuple(
            SailorLayerTimes(*map(float, row)) for row in zip(*columns, strict=True)
        )
    unit = FLOAT_BYTES * size
    sizes = tuple(
        SailorLayerSizes(layer.num_parameters, round(output / unit), round(kept / unit))
        for layer, output, kept in zip(
            problem.profile.layers, tables.output_bytes, tables.activation_bytes, strict=True
        )
    )
    return SailorModel(problem.profile.name, times, {1: sizes})


def _cluster_of(problem: Problem, types: _Types) -> SailorCluster:
    region = problem.cluster.devices[0].region
    return SailorCluster(
        region,
        {
            gpu: SailorNodeType(len(names), problem.usable_bytes(names[0]))
            for gpu, names in types.items()
        },
    )


def _links_of(problem: Problem, types: _Types) -> SailorLinks:
    region = problem.cluster.devices[0].region
    links = {}
    for one, two in product(types, types):
        pairs = [pair for pair in product(types[one], types[two]) if pair[0] != pair[1]]
        link = slowest_link(problem, pairs)
        if link is not None:
            links[SailorEnd(one, 1, region), SailorEnd(two, 1, region)] = _steady(link)
    return SailorLinks(problem.cluster.name, links)


def _steady(link: Link) -> SailorLink:
    """A link whose bandwidth does not depend on the message."""
    bandwidth = link.bandwidth_bytes_per_s
    return SailorLink((0.0, 0.0, bandwidth / 1e9), bandwidth, link.latency_s)
