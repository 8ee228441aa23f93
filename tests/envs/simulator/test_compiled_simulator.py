"""The compiled scheduler and simulator against their definitions in plain Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import HostTimes, Link
from heterps_configs.documents.device import Emulation
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule import reduce_buckets
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.prepared import PreparedPlan
from tests.envs.reference_schedule import reference_lists
from tests.envs.reference_simulator import ReferenceSimulator
from tests.envs.small_problems import any_plans, chain_problem

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")


@st.composite
def runs(draw: st.DrawFn, are_alone: bool = False) -> tuple[Problem, Plan]:
    """Any plan on devices with unlike seconds, so that no two things happen at one time.

    With `are_alone` each stage has a device of its own.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_layers = draw(st.integers(1, 6))

    def some(low: float, high: float) -> list[float]:
        return [float(value) for value in rng.uniform(low, high, num_layers)]

    # Of small messages a device asks for many ahead, of large ones for a few.
    unit_bytes = draw(st.sampled_from([1.0, 1e4, 1e6]))
    problem = chain_problem(
        some(0.1, 3),
        some(0.1, 3),
        num_micro_batches=draw(st.integers(1, 9)),
        counts=(3, 2),
        speeds=(1.0, 2.5),
        parameters=rng.integers(1, 5, num_layers).tolist(),
        optimizer_s=some(0, 1),
        output_bytes=some(0, 3 * unit_bytes),
        link=Link(latency_s=float(rng.uniform(0, 1)), bandwidth_bytes_per_s=1.3 * unit_bytes),
        schedule=draw(st.sampled_from(SCHEDULES)),
    )
    host = HostTimes(
        action_s=float(rng.uniform(0, 0.3)),
        send_s=float(rng.uniform(0, 0.3)),
        receive_s=float(rng.uniform(0, 0.3)),
        step_s=float(rng.uniform(0, 1)),
        slowdown_together=draw(st.sampled_from([(), (1.0, 1.4), (1.0, 1.0, 1.5, 2.1)])),
        optimizer_slowdown_together=draw(
            st.sampled_from([{}, {"sgd": (1.0, 1.9)}, {"sgd": (1.0, 1.2, 2.0, 3.1)}])
        ),
    )
    cluster = problem.cluster
    nodes = tuple(node.changed(host=host) for node in cluster.nodes)
    types = list(cluster.device_types)
    if draw(st.booleans()):  # every device of the second type is emulated
        emulation = Emulation(host_device_type="class0", slowdown=2.0)
        types[1] = types[1].changed(emulation=emulation)
    fields = {name: getattr(cluster, name) for name in type(cluster).model_fields}
    changed = type(cluster)(**{**fields, "nodes": nodes, "device_types": tuple(types)})
    overlaps_reduce = draw(st.booleans())
    job = problem.job.changed(overlaps_reduce=overlaps_reduce)
    problem = replace(problem, cluster=changed, job=job)
    plan = draw(any_plans(problem, are_alone))
    if draw(st.booleans()):
        sharded = LayerRange(first_layer=0, last_layer=draw(st.integers(0, num_layers - 1)))
        plan = plan.changed(sharded_state=(sharded,))
    return problem, plan


@pytest.mark.slow
@given(runs())
def test_the_lists_are_those_of_the_definition(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    if any(node.host.action_s for node in problem.cluster.nodes):
        fields = {
            name: getattr(problem.cluster, name) for name in type(problem.cluster).model_fields
        }
        nodes = tuple(n.changed(host=HostTimes()) for n in problem.cluster.nodes)
        problem = replace(problem, cluster=type(problem.cluster)(**{**fields, "nodes": nodes}))
    schedule = build_schedule(problem, plan)
    for device, expected in reference_lists(problem, plan).items():
        found = [a for a in schedule.actions[device] if a.kind not in ("reduce", "step", "gather")]
        assert found == expected


@pytest.mark.slow
@given(runs())
def test_the_times_are_those_of_the_definition(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    with pytest.MonkeyPatch.context() as patch:  # several buckets for each group
        patch.setattr(reduce_buckets, "LEAST_BUCKET_BYTES", 8.0)
        patch.setattr(reduce_buckets, "BYTES_OVER_LATENCY", 0.0)
        schedule = build_schedule(problem, plan)
    times = action_times(PreparedPlan(problem, plan, schedule))
    reference = ReferenceSimulator(problem, plan, schedule)
    assert times.step_time_s == pytest.approx(reference.step_time_s)
    for device, first, stop in zip(
        schedule.devices, schedule.offsets[:-1], schedule.offsets[1:], strict=True
    ):
        for index, action in enumerate(schedule.actions[device]):
            if action.kind == "reduce" and schedule.overlaps_reduce:
                end_s = reference.reduced_s[action.bucket]
                assert times.end_s[first + index] == pytest.approx(end_s)
            elif action.kind != "send":
                assert times.end_s[first + index] == pytest.approx(reference.end_s[device][index])
        assert stop - first == len(schedule.actions[device])
