"""Drawn plans whose stages compute layers again, offload them and divide state; what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.placement import Placement
from heterps_envs.problem import Problem
from heterps_envs.schedule.zero_bubble import held_of_stages
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.reduce_copies import reduce_copies
from tests.envs.small_problems import chain_problem, placements

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "zero-bubble")
COUNTS, NUM_LAYERS = (3, 4), 5
# Of sums with the memory of a device.
ROUNDING_BYTES = 0.01


@st.composite
def problems(
    draw: st.DrawFn, schedules: Sequence[Schedule] = SCHEDULES, counts: Sequence[int] = COUNTS
) -> Problem:
    """Layers of all kinds of bytes, on GPUs with links to their hosts."""
    sizes = st.lists(st.integers(0, 40), min_size=NUM_LAYERS, max_size=NUM_LAYERS)
    micro_batches = draw(st.integers(max(2, *counts), 14))
    size = draw(st.sampled_from([1, 4]))
    # What is reserved for large messages would hide the rest.
    largest = draw(st.sampled_from([0, 1, 40]))
    problem = chain_problem(
        [1.0] * NUM_LAYERS,
        [2.0] * NUM_LAYERS,
        num_micro_batches=micro_batches,
        samples=micro_batches * size - draw(st.integers(0, size - 1)),
        micro_batch_size=size,
        counts=counts,
        speeds=(1, 3)[: len(counts)],
        parameters=draw(sizes),
        activation_bytes=[float(value) for value in draw(sizes)],
        output_bytes=[float(min(value, largest)) for value in draw(sizes)],
        schedule=draw(st.sampled_from(schedules)),
    )
    rows = [draw(sizes) for _ in range(6)]
    is_known = draw(st.booleans())
    layers = tuple(
        layer.changed(
            saved_input_bytes=float(min(saved, layer.activation_bytes)),
            saved_output_bytes=float(min(out, layer.activation_bytes)),
            shared_bytes=float(shared),
            deferred_bytes=float(deferred) if is_known else None,
            buffer_bytes=buffers,
            frozen_parameters=min(frozen, layer.num_parameters),
        )
        for layer, saved, out, shared, deferred, buffers, frozen in zip(
            problem.profile.layers, *rows, strict=True
        )
    )
    types = tuple(
        entry.changed(kind="gpu", fragmentation_share=0.0, host_bandwidth_bytes_per_s=1e12)
        for entry in problem.cluster.device_types
    )
    return replace(
        problem,
        profile=problem.profile.changed(layers=layers),
        cluster=problem.cluster.changed(device_types=types),
        job=problem.job.changed(optimizer="adamw"),
    )


@st.composite
def plans(draw: st.DrawFn, problem: Problem, counts: Sequence[int] = COUNTS) -> Plan:
    """Each layer is kept, computed again or offloaded; of some the state is divided."""
    plan = bound_plan(problem, draw(placements(NUM_LAYERS, counts)), planner="test", seed=0)
    ways = draw(st.lists(st.integers(0, 2), min_size=NUM_LAYERS, max_size=NUM_LAYERS))
    divided = sorted(draw(st.sets(st.integers(0, NUM_LAYERS - 1))))
    stages = tuple(
        stage.changed(
            recompute_layers=tuple(layer for layer in stage.layers if ways[layer] == 1),
            offloaded_layers=tuple(layer for layer in stage.layers if ways[layer] == 2),
        )
        for stage in plan.stages
    )
    ranges = tuple(LayerRange(first_layer=layer, last_layer=layer) for layer in divided)
    return plan.changed(stages=stages, sharded_state=ranges)


@st.composite
def uniform_placements(draw: st.DrawFn) -> Placement:
    """Each stage does one thing with all of its layers."""
    return tuple(
        replace(
            stage,
            recompute=way == 1,
            offload=way == 2,
            shards_state=stage.replicas > 1 and draw(st.booleans()),
        )
        for stage in draw(placements(NUM_LAYERS, COUNTS))
        for way in (draw(st.integers(0, 2)),)
    )


def held_in_flight(problem: Problem, plan: Plan) -> list[int]:
    """For each stage, the micro-batches that it may hold."""
    held = held_of_stages(problem, plan, PreparedPlan(problem, plan).arrays)
    return [int(number) for number in held]


def simulated_bytes(problem: Problem, plan: Plan) -> Floats:
    """(S,) the most that the device of each stage holds, but for copies of an all-reduce.

    These are left out of what planners count (`heterps_envs.layer_costs.memory_rule`).
    """
    prepared = PreparedPlan(problem, plan)
    timeline = memory_timeline(prepared)
    schedule = timeline.schedule
    copies = np.zeros(len(schedule.kind))
    for copy in reduce_copies(problem, plan, schedule):
        copies[copy.action] = max(copies[copy.action], copy.num_bytes)
    during = np.maximum(timeline.during.sum(axis=1) - copies, timeline.after.sum(axis=1))
    most = timeline.before.sum(axis=1)
    np.maximum.at(most, schedule.device_of, during)
    total: Floats = timeline.parameter_bytes + timeline.optimizer_bytes + most
    return total[prepared.arrays.stage_device]
