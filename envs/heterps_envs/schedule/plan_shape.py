"""The stages, devices and routes of a plan by their indices: its names are looked up once."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Integers
from heterps_envs.compiled import kernel


class PlanShape(NamedTuple):
    """D devices, S stages, M micro-batches, P pipelines.

    Attributes:
        groups: The devices, as in `Plan.device_groups`.
        layers: (S, 2) first and last layer.
        stage_device: (S,) index of the stage's device.
        routes: (P, most) stages of each pipeline; -1 after its last.
        pipeline_of: (M,) route of each micro-batch.
        routed: (S,) micro-batches that pass each stage.
        front: (P, S) the stage in front of a stage on a route; -1 where there is none.
        behind: (P, S) the stage behind it.
    """

    groups: tuple[tuple[str, ...], ...]
    layers: Integers
    stage_device: Integers
    routes: Integers
    pipeline_of: Integers
    routed: Integers
    front: Integers
    behind: Integers

    @classmethod
    def of(cls, plan: Plan) -> PlanShape:
        """The shape of a plan."""
        groups, stages, pipelines = plan.device_groups, plan.stages, plan.pipelines
        device = {group: number for number, group in enumerate(groups)}
        index = {stage.name: number for number, stage in enumerate(stages)}
        depth = np.array([len(each.stages) for each in pipelines], np.int64)
        named = chain.from_iterable([each.stages for each in pipelines])
        flat = np.array([index[name] for name in named], np.int64)
        count = np.array([len(each.micro_batches) for each in pipelines], np.int64)
        pipeline_of = np.zeros(plan.job.num_micro_batches, np.int64)
        routed_by = np.repeat(np.arange(len(pipelines)), count)
        micro_batches = chain.from_iterable([each.micro_batches for each in pipelines])
        pipeline_of[np.fromiter(micro_batches, np.int64, len(routed_by))] = routed_by
        routes, routed, front, behind = _routes(flat, depth, count, len(stages))
        return cls(
            groups,
            np.array([(each.first_layer, each.last_layer) for each in stages], np.int64),
            np.array([device[each.devices] for each in stages], np.int64),
            routes,
            pipeline_of,
            routed,
            front,
            behind,
        )

    @property
    def component(self) -> Integers:
        """(S,) the group of each stage: those that routes connect, directly or through others."""
        found = np.arange(len(self.layers))
        _connect(self.routes, found)
        return found


@kernel
def _routes(flat: Any, depth: Any, count: Any, num_stages: int) -> Any:
    """`PlanShape.routes`, `routed`, `front` and `behind` from the stages of all routes in a row."""
    routes = np.full((len(depth), depth.max()), -1, np.int64)
    routed = np.zeros(num_stages, np.int64)
    front = np.full((len(depth), num_stages), -1, np.int64)
    behind = front.copy()
    at = 0
    for route in range(len(depth)):
        for place in range(depth[route]):
            stage = flat[at]
            routes[route, place] = stage
            routed[stage] += count[route]
            if place > 0:
                front[route, stage], behind[route, flat[at - 1]] = flat[at - 1], stage
            at += 1
    return routes, routed, front, behind


@kernel
def _connect(routes: Any, found: Any) -> None:
    """Writes for each stage the first one that routes connect it with."""
    for row in range(len(routes)):
        for place in range(1, routes.shape[1]):
            if routes[row, place] < 0:
                break
            a, b = routes[row, 0], routes[row, place]
            while found[a] != a:
                a = found[a]
            while found[b] != b:
                b = found[b]
            found[max(a, b)] = min(a, b)
    for stage in range(len(found)):
        found[stage] = found[found[stage]]
