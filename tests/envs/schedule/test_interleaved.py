"""Interleaved 1F1B: Megatron-LM's order, what it keeps, and plans with one chunk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.schedule.interleaved import most_in_flight
from tests.envs.schedule.test_build import SLOW, chain_plan, passes, textbook_1f1b
from tests.envs.small_problems import FAST, chain_problem, plan_of


def looped_plan(problem: Problem, num_devices: int) -> Plan:
    """One stage for each layer, and the devices in turn."""
    names = [f"s{i}" for i in range(problem.profile.num_layers)]
    return plan_of(
        problem,
        {name: (i, i, f"d0-{i % num_devices}") for i, name in enumerate(names)},
        {tuple(names): range(problem.job.num_micro_batches)},
    )


def chunk_passes(schedule: Schedule, device: str, num_devices: int) -> list[tuple[str, int, int]]:
    """Such as (F, chunk, micro-batch)."""
    return [
        (action.kind[0].upper(), int(action.stage[1:]) // num_devices, action.micro_batch)
        for action in schedule.actions[device]
        if action.kind in ("forward", "backward")
    ]


def textbook_interleaved(
    rank: int, num_devices: int, num_chunks: int, num_micro_batches: int
) -> list[tuple[str, int, int]]:
    """Megatron-LM's `forward_backward_pipelining_with_interleaving`."""
    total, group = num_micro_batches * num_chunks, num_devices * num_chunks

    def at(index: int, is_forward: bool) -> tuple[int, int]:
        chunk = index % group // num_devices
        micro_batch = index // group * num_devices + index % num_devices
        return (chunk if is_forward else num_chunks - 1 - chunk), micro_batch

    warm_up = min(2 * (num_devices - rank - 1) + (num_chunks - 1) * num_devices, total)
    order = [("F", *at(index, True)) for index in range(warm_up)]
    for index in range(total - warm_up):
        order += [("F", *at(warm_up + index, True)), ("B", *at(index, False))]
    return order + [("B", *at(index, False)) for index in range(total - warm_up, total)]


@given(
    num_devices=st.integers(2, 5),
    num_chunks=st.integers(2, 4),
    rounds=st.integers(1, 4),
    forward_s=st.floats(0.01, 3),
    backward_s=st.floats(0.01, 3),
    link=st.sampled_from([FAST, SLOW]),
)
def test_equal_chunks_run_textbook_interleaved_1f1b(
    num_devices: int,
    num_chunks: int,
    rounds: int,
    forward_s: float,
    backward_s: float,
    link: Link,
) -> None:
    layers = num_devices * num_chunks
    problem = chain_problem(
        [forward_s] * layers,
        [backward_s] * layers,
        num_micro_batches=num_devices * rounds,
        output_bytes=[0.1] * layers,
        link=link,
        schedule="interleaved",
    )
    plan = looped_plan(problem, num_devices)
    schedule, held = build_schedule(problem, plan), in_flight_micro_batches(plan)
    for rank in range(num_devices):
        expected = textbook_interleaved(rank, num_devices, num_chunks, num_devices * rounds)
        assert chunk_passes(schedule, f"d0-{rank}", num_devices) == expected
        for chunk in range(num_chunks):
            here = [1 if kind == "F" else -1 for kind, c, _ in expected if c == chunk]
            most = max(sum(here[: stop + 1]) for stop in range(len(here)))
            assert most <= held[f"s{chunk * num_devices + rank}"]


def test_in_flight_of_interleaved_chunks_is_what_megatron_keeps() -> None:
    # Four devices with two chunks each: 8 and 4 on the first, 5 and 1 on the last.
    assert [most_in_flight(2 * behind + 1, 4, 2) for behind in (7, 3, 4, 0)] == [8, 4, 5, 1]


def test_interleaved_with_one_stage_on_each_device_is_1f1b() -> None:
    problem = chain_problem([1] * 4, [2] * 4, schedule="interleaved")
    schedule = build_schedule(problem, chain_plan(problem))
    for stage in range(4):
        assert passes(schedule, f"d0-{stage}") == textbook_1f1b(stage, 4, 8)
