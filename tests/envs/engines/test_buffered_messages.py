"""Messages that fit into buffers travel beside the passes; longer ones wait for their receiver."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.device import Emulation
from heterps_configs.documents.plan import Plan
from heterps_envs.engines.buffered_messages import passes_end_s
from heterps_envs.engines.deepspeed_order import deepspeed_order
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.simulate import simulate
from tests.envs.small_problems import FAST, chain_problem, plan_of

# A message of 10 bytes takes 10 s.
SLOW = Link(latency_s=0.0, bandwidth_bytes_per_s=1.0)


def pipeline(
    forward_s: list[float],
    backward_s: list[float],
    num_micro_batches: int,
    link: Link = SLOW,
    message_bytes: float = 10.0,
) -> tuple[Problem, Plan]:
    """One layer a stage, one stage a device."""
    size = len(forward_s)
    problem = chain_problem(
        forward_s,
        backward_s,
        num_micro_batches=num_micro_batches,
        counts=(size + 1,),  # one too many: a single device would have another name
        output_bytes=[message_bytes] * size,
        link=link,
    )
    stages = {f"s{s}": (s, s, f"d0-{s}") for s in range(size)}
    return problem, plan_of(problem, stages, {tuple(stages): range(num_micro_batches)})


def end_s(
    problem: Problem, plan: Plan, buffer_bytes: float = 0.0, receive_s: float = 0.0
) -> dict[str, float]:
    """The same buffers and the same own seconds for a message everywhere."""
    return passes_end_s(
        problem,
        plan,
        deepspeed_order(plan),
        dict.fromkeys(plan.devices, buffer_bytes),
        dict.fromkeys(plan.devices, receive_s),
    )


def test_one_micro_batch_walks_there_and_back() -> None:
    problem, plan = pipeline([1.0, 2.0], [3.0, 4.0], 1)
    # 1 + 10 + 2 + 4 + 10 + 3
    assert end_s(problem, plan) == {"d0-0": 30.0, "d0-1": 27.0}


def test_a_buffered_message_frees_its_sender_at_once() -> None:
    problem, plan = pipeline([1.0, 2.0], [3.0, 4.0], 1)
    assert end_s(problem, plan, buffer_bytes=10) == {"d0-0": 30.0, "d0-1": 17.0}


def test_a_sender_leaves_when_only_its_buffer_is_left() -> None:
    problem, plan = pipeline([1.0, 2.0], [3.0, 4.0], 1)
    # The last gradient starts at 17 and is on its way, but for 4 bytes, at 23.
    assert end_s(problem, plan, buffer_bytes=4) == {"d0-0": 30.0, "d0-1": 23.0}


def test_the_receiver_puts_every_message_together() -> None:
    problem, plan = pipeline([1.0, 2.0], [3.0, 4.0], 1)
    assert end_s(problem, plan, receive_s=0.5)["d0-0"] == 31.0


def test_gradients_and_activations_take_turns_behind_the_slowest_stage() -> None:
    """The stage behind waits for its gradients to leave and for the next activations to come."""
    problem, plan = pipeline([1.0, 20.0], [1.0, 20.0], 12)
    first, second = (end_s(*pipeline([1.0, 20.0], [1.0, 20.0], m))["d0-0"] for m in (11, 12))
    assert second - first == pytest.approx(20 + 20 + 10 + 10)
    assert end_s(problem, plan)["d0-0"] == pytest.approx(second)


def test_buffers_hide_messages_behind_a_slow_first_stage() -> None:
    ends = [
        end_s(*pipeline([30.0, 1.0], [30.0, 1.0], m), buffer_bytes=10)["d0-0"] for m in (11, 12)
    ]
    assert ends[1] - ends[0] == pytest.approx(60)
    ends = [end_s(*pipeline([30.0, 1.0], [30.0, 1.0], m))["d0-0"] for m in (11, 12)]
    assert ends[1] - ends[0] == pytest.approx(80)


@given(st.integers(1, 5), st.integers(1, 12), st.floats(0.0, 20.0))
def test_free_links_leave_the_textbook_pipeline(
    size: int, num_micro_batches: int, buffer_bytes: float
) -> None:
    problem, plan = pipeline([1.0] * size, [2.0] * size, num_micro_batches, link=FAST)
    ends = end_s(problem, plan, buffer_bytes)
    assert max(ends.values()) == pytest.approx(3 * (num_micro_batches + size - 1))


def emulated(problem: Problem) -> Problem:
    """The same problem on emulated devices, whose messages never wait for their receivers."""
    kinds = tuple(
        entry.changed(emulation=Emulation(host_device_type=entry.name, slowdown=1))
        for entry in problem.cluster.device_types
    )
    cluster = problem.cluster.changed(device_types=kinds)
    return Problem(profile=problem.profile, cluster=cluster, job=problem.job)


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=4),
    st.integers(1, 8),
    st.floats(0.0, 15.0),
)
def test_with_unbounded_buffers_it_is_the_simulator_of_messages_that_never_wait(
    passes: list[tuple[int, int]], num_micro_batches: int, message_bytes: float
) -> None:
    forward_s, backward_s = ([float(entry[i]) for entry in passes] for i in (0, 1))
    real, plan = pipeline(forward_s, backward_s, num_micro_batches, message_bytes=message_bytes)
    problem = emulated(real)
    schedule = build_schedule(problem, plan)
    actions = {
        device: [action for action in entries if action.kind not in ("reduce", "step")]
        for device, entries in schedule.actions.items()
    }
    ends = passes_end_s(problem, plan, actions, dict.fromkeys(plan.devices, 1e9), {})
    simulated_s = simulate(problem, plan, schedule).step_time_s
    assert max(ends.values()) == pytest.approx(simulated_s)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=5),
    st.integers(1, 8),
    st.floats(0.0, 15.0),
    st.floats(0.0, 15.0),
)
def test_larger_buffers_never_make_a_step_longer(
    passes: list[tuple[int, int]], num_micro_batches: int, one: float, other: float
) -> None:
    forward_s, backward_s = ([float(entry[i]) for entry in passes] for i in (0, 1))
    problem, plan = pipeline(forward_s, backward_s, num_micro_batches)
    smaller, larger = (max(end_s(problem, plan, size).values()) for size in sorted((one, other)))
    assert larger <= smaller + 1e-9
    # No stage is faster than its own passes.
    assert larger >= num_micro_batches * max(
        f + b for f, b in zip(forward_s, backward_s, strict=True)
    )
