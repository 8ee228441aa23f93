"""The memory timeline: closed forms, a small example by hand, and its bounds on random plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Schedule as ScheduleName
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, Placement, encode
from heterps_envs.problem import Problem
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.group_memory import peak_memory_bytes
from heterps_envs.simulator.memory_curves import memory_curves
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.reduce_copies import reduce_copies
from tests.envs.planned_memory import plan_memory_bytes
from tests.envs.small_problems import chain_problem, placements, plan_of

SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "interleaved", "zero-bubble")


def peaks(problem: Problem, plan: Plan) -> dict[str, int]:
    return peak_memory_bytes([memory_timeline(PreparedPlan(problem, plan))], plan.device_groups)


def equal_stages(num_stages: int, num_micro_batches: int, schedule: str) -> tuple[Problem, Plan]:
    """One layer of 5 kept bytes and nothing else on each device."""
    problem = chain_problem(
        [1.0] * num_stages,
        [2.0] * num_stages,
        num_micro_batches=num_micro_batches,
        counts=(num_stages + 1,),
        activation_bytes=[5.0] * num_stages,
        schedule=schedule,
    )
    names = [f"s{index}" for index in range(num_stages)]
    stages = {name: (i, i, f"d0-{i}") for i, name in enumerate(names)}
    return problem, plan_of(problem, stages, {tuple(names): range(num_micro_batches)})


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [(1, 3), (4, 9), (4, 3), (6, 20)])
def test_equal_stages_hold_as_many_micro_batches_as_the_textbook_says(
    num_stages: int, num_micro_batches: int
) -> None:
    held = {
        schedule: [
            value // 5
            for value in peaks(*equal_stages(num_stages, num_micro_batches, schedule)).values()
        ]
        for schedule in SCHEDULES
    }
    textbook = [min(num_micro_batches, num_stages - stage) for stage in range(num_stages)]
    assert held["1f1b"] == textbook
    assert held["interleaved"] == textbook  # with one stage on each device
    assert held["gpipe"] == [num_micro_batches] * num_stages
    # ZB-H1: no stage holds more than 1F1B holds on the first one.
    assert held["zero-bubble"][0] == textbook[0]
    assert max(held["zero-bubble"]) == textbook[0]


def by_hand(**changes: object) -> tuple[Problem, Plan]:
    """Two stages: the first keeps its output, the second what it receives."""
    problem = chain_problem(
        [1.0, 1.0],
        [2.0, 2.0],
        num_micro_batches=3,
        parameters=[10, 100],
        activation_bytes=[7.0, 16.0],
        output_bytes=[4.0, 0.0],
        **changes,  # type: ignore[arg-type]
    )
    stages = {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1")}
    return problem, plan_of(problem, stages, {("a", "b"): range(3)})


def test_a_small_example_by_hand() -> None:
    """float32 and plain SGD: 4 bytes of weight and of gradient for each parameter."""
    problem, plan = by_hand()
    timeline = memory_timeline(PreparedPlan(problem, plan))
    names = [action.kind for action in timeline.schedule.actions["d0-0"]]
    assert names == [
        "forward", "send", "forward", "send",
        "receive", "backward", "forward", "send",
        "receive", "backward", "receive", "backward", "step",
    ]  # fmt: skip
    first = slice(*timeline.schedule.offsets[:2])
    # 7 kept and 4 of output, twice; the first backward pass frees 7 while 40 of gradient come, all
    # of which may be there before (nobody has measured it). The receives of all three are posted.
    held = [11, 11, 22, 22, 22, 11, 22, 22, 22, 11, 11, 0, 0]
    assert timeline.after[first, 1].tolist() == held
    assert timeline.after[first, 0].tolist() == [0] * 5 + [40] * 7 + [0]
    assert timeline.before[0].tolist() == [0, 0, 12]
    assert timeline.after[first, 2].tolist() == [12] * 5 + [8] * 4 + [4, 4, 0, 0]
    assert timeline.parameter_bytes.tolist() == [40, 400]
    assert timeline.peak_bytes.tolist() == [40 + 40 + 22 + 12, 400 + 400 + 16 + 8]


def test_received_and_sent_gradients_lie_in_buffers() -> None:
    """The second stage keeps what it received with its activations, the gradient of it besides."""
    problem, plan = by_hand()
    timeline = memory_timeline(PreparedPlan(problem, plan))
    second = slice(*timeline.schedule.offsets[1:3])
    kinds = [action.kind for action in timeline.schedule.actions["d0-1"]]
    buffers = dict(zip(kinds, timeline.after[second, 2].tolist(), strict=True))
    assert timeline.before[1].tolist() == [0, 0, 12]
    assert buffers["step"] == 0
    backward = kinds.index("backward")
    # Two receives are still posted, and the gradient is on its way.
    assert timeline.after[second][backward].tolist() == [400, 0, 2 * 4 + 4]


def test_recomputed_layers_keep_only_what_enters_them() -> None:
    problem = chain_problem(
        [1.0] * 3,
        [2.0] * 3,
        num_micro_batches=4,
        activation_bytes=[10.0, 20.0, 30.0],
        output_bytes=[4.0, 4.0, 0.0],
        schedule="gpipe",
    )
    plan = plan_of(problem, {"a": (0, 2, "d0-0")}, {("a",): range(4)})
    again = plan.changed(stages=(plan.stages[0].changed(recompute_layers=(0, 1, 2)),))
    assert peaks(problem, plan) == {"d0-0": 4 * 60}
    # Only the 4 bytes that enter the second and third layer; the third one's other 26 in its turn.
    assert peaks(problem, again) == {"d0-0": 4 * 8 + 26}


@st.composite
def planned(draw: st.DrawFn) -> tuple[Problem, Plan]:
    """A random problem, and a plan from a random placement."""
    sizes = st.lists(st.integers(0, 40), min_size=5, max_size=5)
    batch = draw(st.integers(1, 14))
    problem = chain_problem(
        draw(st.lists(st.integers(1, 9), min_size=5, max_size=5)),
        draw(st.lists(st.integers(1, 9), min_size=5, max_size=5)),
        num_micro_batches=batch,
        counts=(3, 4),
        speeds=(1, 3),
        parameters=draw(sizes),
        activation_bytes=[float(value) for value in draw(sizes)],
        output_bytes=[float(value) for value in draw(sizes)],
        memory_bytes=[draw(st.integers(1, 4000)), draw(st.integers(1, 4000))],
        schedule=draw(st.sampled_from(SCHEDULES)),
    )
    placement = draw(placements(5, (3, 4)))
    if any(stage.replicas > batch for stage in placement):
        placement = tuple(replace(stage, replicas=1) for stage in placement)
    return problem, bound_plan(problem, placement, planner="test", seed=0)


@pytest.mark.slow
@given(planned())
@settings(max_examples=80, deadline=None)
def test_curves_begin_and_end_with_the_state_and_reach_the_peak(
    found: tuple[Problem, Plan],
) -> None:
    prepared = PreparedPlan(*found)
    timeline = memory_timeline(prepared)
    peak = peak_memory_bytes([timeline], prepared.plan.device_groups)
    for curve in memory_curves(timeline, action_times(prepared)):
        changing = np.array([curve.gradient_bytes, curve.activation_bytes, curve.buffer_bytes])
        assert (changing >= 0).all()
        assert (np.diff(curve.times_s) >= 0).all()
        assert curve.times_s[0] == 0
        assert changing[:2, 0].tolist() == [0, 0]
        assert changing[:, -1].tolist() == [0, 0, 0]
        state = curve.parameter_bytes + curve.optimizer_bytes
        # Each kind is rounded up.
        most = peak[curve.device]
        assert most <= state + changing.sum(axis=0).max() <= most + 3


def tight(rng: np.random.Generator) -> tuple[Problem, Placement]:
    """Replicas, many gradients beside few activations, and a placement that just fits."""
    counts = ((3, 4), (6, 1), (2,), (1, 1, 2))[int(rng.integers(4))]
    num_layers, batch = int(rng.integers(1, 6)), int(rng.integers(1, 15))
    free = list(counts)
    placement: list[PlacedStage] = []
    while not placement or placement[-1].last_layer < num_layers - 1:
        first = placement[-1].last_layer + 1 if placement else 0
        kind = int(rng.choice([index for index, count in enumerate(free) if count]))
        replicas = int(rng.integers(1, min(free[kind], batch) + 1))
        free[kind] -= replicas
        last = int(rng.integers(first, num_layers)) if sum(free) else num_layers - 1
        placement.append(PlacedStage(first, last, kind, replicas))
    largest = rng.integers(1, 60, 3)

    def sizes(most: int) -> list[int]:
        return [int(value) for value in rng.integers(0, most + 1, num_layers)]

    activations = [float(value) for value in sizes(int(largest[1]))]
    values: dict[str, Any] = {
        "num_micro_batches": batch,
        "counts": counts,
        "speeds": [1.0, 3.0, 0.5][: len(counts)],
        "parameters": sizes(int(largest[0])),
        "activation_bytes": activations,
        "output_bytes": [float(value) for value in sizes(int(largest[2]))],
        "schedule": SCHEDULES[int(rng.integers(len(SCHEDULES)))],
    }
    if num_layers > 2 and rng.integers(4) == 0:
        values["tied_to"] = {num_layers - 1: 0}
        values["parameters"][-1] = values["parameters"][0]
    seconds = rng.integers(1, 9, (2, num_layers)).astype(float).tolist()
    roomy = chain_problem(*seconds, **values)
    plan = bound_plan(roomy, tuple(placement), planner="test", seed=0)
    need = plan_memory_bytes(roomy, plan)
    limits = [1] * len(counts)
    for device, num_bytes in need.items():
        kind = roomy.class_of[device]
        limits[kind] = max(limits[kind], num_bytes + int(rng.choice([0, 0, 1, 30])))
    return chain_problem(*seconds, **values, memory_bytes=limits), tuple(placement)


def misses(seeds: range) -> tuple[int, list[str]]:
    """How many placements fit by the rule, and what their plans do where they have no room.

    The copies of an all-reduce are left out of the rule: that much is allowed, and only then.
    """
    num_fitting, missed = 0, []
    for seed in seeds:
        problem, placement = tight(np.random.default_rng(seed))
        verdict = evaluate(encode(placement)[None], kernel_tables(problem.tables))[2][0]
        if verdict != FITS:
            continue
        num_fitting += 1
        plan = bound_plan(problem, placement, planner="test", seed=0)
        timeline = memory_timeline(PreparedPlan(problem, plan))
        schedule = timeline.schedule
        copies = np.zeros(len(schedule.kind))
        for copy in reduce_copies(problem, plan, schedule):
            copies[copy.action] = max(copies[copy.action], copy.num_bytes)
        room = np.array([problem.usable_bytes(name) for name in schedule.devices])
        held = timeline.parameter_bytes + timeline.optimizer_bytes
        worst = held[schedule.device_of] + timeline.during.sum(axis=1)
        over = worst > room[schedule.device_of] + copies + 1e-6
        missed += [f"seed {seed}, action {at}" for at in np.flatnonzero(over)]
    return num_fitting, missed


@pytest.mark.slow
def test_hundreds_of_placements_that_planners_call_fitting_fit() -> None:
    num_fitting, missed = misses(range(300))
    assert num_fitting > 250
    assert not missed
