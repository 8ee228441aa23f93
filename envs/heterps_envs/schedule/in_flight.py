"""How many micro-batches a stage may hold between their forward and backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.round_trips import round_trip_in_flight
from heterps_envs.compiled import kernel
from heterps_envs.held_bytes import held_bytes
from heterps_envs.problem import Problem
from heterps_envs.schedule.interleaved import is_interleaved, most_in_flight, route_shape
from heterps_envs.schedule.plan_arrays import PlanArrays, state_parts
from heterps_envs.schedule.plan_shape import PlanShape
from heterps_envs.schedule.workload import stage_way


def in_flight_micro_batches(plan: Plan, shape: PlanShape | None = None) -> dict[str, int]:
    """For each stage, how many micro-batches it may hold between their forward and backward passes.

    The rule of `heterps_envs.closed_form.stage_formula.in_flight`. Pipelines that share a stage,
    directly or through others, are counted together: replicas are the stages of equal layers among
    them, and behind a stage are all that begin after its last layer. Where a device has several
    stages of a route, the rule is that of `heterps_envs.schedule.interleaved`, again counted in
    devices.
    `Stage.in_flight` stands above the rule of 1F1B.

    Args:
        plan: What runs.
        shape: Its stages and routes, where they are known.
    """
    held = in_flight_of_stages(plan, shape or PlanShape.of(plan)).tolist()
    return dict(zip([stage.name for stage in plan.stages], held, strict=True))


def in_flight_of_stages(plan: Plan, shape: PlanShape) -> Integers:
    """(S,) the same in the order of the stages."""
    if plan.job.schedule == "gpipe":
        return shape.routed
    # Stages by component, then by layers.
    first, last = shape.layers.T
    apart, component = plan.num_layers + 1, shape.component
    begins = component * apart + first
    layers = begins * apart + last
    in_order, ends = np.sort(begins), np.sort(layers)
    replicas = np.searchsorted(ends, layers, "right") - np.searchsorted(ends, layers)
    last_behind = np.searchsorted(in_order, (component + 1) * apart)
    behind = last_behind - np.searchsorted(in_order, component * apart + last, "right")
    share = -(-plan.job.num_micro_batches // replicas)
    most = np.minimum(share, -(-(replicas + behind) // replicas))
    if is_interleaved(plan):  # else the rule of 1F1B
        shapes = route_shape(plan)
        for index, stage in enumerate(plan.stages):
            trips = int(-(-2 * behind[index] // replicas[index])) + 1
            most[index] = most_in_flight(trips, *shapes[stage.name])
    chosen = np.array([stage.in_flight or 0 for stage in plan.stages], np.int64)
    return np.minimum(shape.routed, np.where(chosen > 0, chosen, most))


def routed_micro_batches(plan: Plan) -> dict[str, int]:
    """For each stage, how many micro-batches pass it in a step."""
    routed = PlanShape.of(plan).routed.tolist()
    return dict(zip([stage.name for stage in plan.stages], routed, strict=True))


def as_memory_allows(
    problem: Problem, plan: Plan, arrays: PlanArrays, held: Integers, wanted: Integers
) -> Integers:
    """(S,) what is wanted as far as memory has room, and at least what each stage holds.

    Memory as planners count it; stages of one device share its room evenly.

    Args:
        problem: Where the bytes come from.
        plan: What runs.
        arrays: `plan_arrays` of it.
        held: (S,) micro-batches of which each stage keeps activations in any case.
        wanted: (S,) of how many it would keep them; no more than pass it are.
    """
    shape = arrays.shape
    parts = state_parts(plan) if plan.sharded_state else np.ones(plan.num_layers)
    by_way = [_bytes_by_rank(problem, stage, parts) for stage in arrays.ways]
    # Where devices of a group are alike, one stands for all.
    bytes_of = np.zeros((len(by_way), max(map(len, by_way)), 3))
    for row, found in zip(bytes_of, by_way, strict=True):
        row[: len(found)] = found
    has, state, activations = np.moveaxis(bytes_of[arrays.way_of], 2, 0)
    room = np.zeros((len(shape.groups), bytes_of.shape[1]))
    room[shape.stage_device[::-1]] = has[::-1]
    taken = np.stack([state, held[:, None] * activations], axis=1)
    np.subtract.at(room, np.repeat(shape.stage_device, 2), taken.reshape(-1, room.shape[1]))
    stages_on = np.bincount(shape.stage_device)[shape.stage_device]
    spare = room[shape.stage_device] / stages_on[:, None]
    more = np.minimum(wanted, shape.routed) - held
    is_kept = activations > 0
    fitting = np.full(spare.shape, np.iinfo(np.int64).max)
    fitting[is_kept] = np.maximum((spare[is_kept] / activations[is_kept]).astype(np.int64), 0)
    return np.asarray(held + np.minimum(more, fitting.min(axis=1)))


def _bytes_by_rank(problem: Problem, stage: Stage, parts: Floats) -> Floats:
    """(ranks, 3) of the devices of a stage that may hold most: room, state, and activations."""
    own_parts = parts[stage.first_layer : stage.last_layer + 1]
    key = _bytes_by_rank, stage_way(problem, stage), own_parts.tobytes()
    known = problem.derived.get(key)
    if not isinstance(known, np.ndarray):
        rows = []
        for name, own in problem.by_rank(stage):
            held = held_bytes(own, stage, problem.class_of[name], parts)
            rows.append((held.room_bytes, held.state_bytes.sum(), held.kept_bytes))
        problem.derived[key] = known = np.array(rows, float)
    return known


def round_trips_in_flight(arrays: PlanArrays) -> Integers:
    """(S,) what round trips need (`heterps_envs.closed_form.round_trips`); a device has a stage."""
    found = np.zeros(len(arrays.stage_device), np.int64)
    _write_round_trips(
        arrays.first_stage,
        arrays.front,
        arrays.behind,
        arrays.stage_device,
        arrays.pass_s,
        arrays.output_bytes,
        arrays.latency_s,
        arrays.s_per_byte,
        np.bincount(arrays.pipeline_of, minlength=len(arrays.first_stage)),
        arrays.shape.routed,
        found,
    )
    return found


@kernel
def _write_round_trips(
    first_stage: Any, front: Any, behind: Any, stage_device: Any, pass_s: Any, output_bytes: Any,
    latency_s: Any, s_per_byte: Any, count: Any, routed: Any, found: Any,
) -> None:  # fmt: skip
    """Writes what stages should hold; `count` are the micro-batches of each route."""
    busiest_s = (routed * (pass_s[:, 0] + pass_s[:, 1])).max()
    for route in range(len(first_stage)):
        stage = first_stage[route]
        while behind[route, stage] >= 0:
            one, two = stage_device[stage], stage_device[behind[route, stage]]
            busiest_s = max(busiest_s, count[route] * output_bytes[stage] * s_per_byte[one, two])
            stage = behind[route, stage]
    for route in range(len(first_stage)):
        stage, trip_s = first_stage[route], 0.0
        while behind[route, stage] >= 0:
            stage = behind[route, stage]
        while stage >= 0:
            trip_s += pass_s[stage, 0] + pass_s[stage, 1]
            following = behind[route, stage]
            if following >= 0:
                one, two = stage_device[stage], stage_device[following]
                trip_s += latency_s[one, two] + output_bytes[stage] * s_per_byte[one, two]
                trip_s += latency_s[two, one] + output_bytes[stage] * s_per_byte[two, one]
            wanted = round_trip_in_flight(trip_s, routed[stage], busiest_s, following < 0)
            found[stage] = max(found[stage], wanted)
            stage = front[route, stage]
