"""Action lists: textbook orders, and what must hold for the lists of any plan."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Action, Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.binding import bind
from tests.envs.reference_schedule import held_micro_batches
from tests.envs.small_problems import FAST, any_plans, chain_problem, plan_of

SLOW = Link(latency_s=0.3, bandwidth_bytes_per_s=2.0)


def chain_plan(problem: Problem) -> Plan:
    """One stage for each layer, one device for each stage."""
    layers = range(problem.profile.num_layers)
    return bind(problem, [PlacedStage(i, i, 0) for i in layers], planner="test", seed=0)


def passes(schedule: Schedule, device: str) -> str:
    """Such as `F0 F1 B0 B1`."""
    return " ".join(
        f"{action.kind[0].upper()}{action.micro_batch}"
        for action in schedule.actions[device]
        if action.kind in ("forward", "backward")
    )


def textbook_1f1b(stage: int, num_stages: int, num_micro_batches: int) -> str:
    """Warm-up forwards, then one backward and one forward in turn, then the backwards left."""
    warm_up = min(num_stages - stage, num_micro_batches)
    order = [f"F{m}" for m in range(warm_up)]
    for m in range(num_micro_batches):
        order.append(f"B{m}")
        if m + warm_up < num_micro_batches:
            order.append(f"F{m + warm_up}")
    return " ".join(order)


@pytest.mark.slow
@given(
    num_stages=st.integers(1, 8),
    num_micro_batches=st.integers(1, 20),
    forward_s=st.floats(0.01, 3),
    backward_s=st.floats(0.01, 3),
    link=st.sampled_from([FAST, SLOW]),
)
def test_equal_stages_run_textbook_1f1b(
    num_stages: int, num_micro_batches: int, forward_s: float, backward_s: float, link: Link
) -> None:
    problem = chain_problem(
        [forward_s] * num_stages,
        [backward_s] * num_stages,
        num_micro_batches=num_micro_batches,
        output_bytes=[0.1] * num_stages,
        link=link,
    )
    schedule = build_schedule(problem, chain_plan(problem))
    for stage in range(num_stages):
        expected = textbook_1f1b(stage, num_stages, num_micro_batches)
        assert passes(schedule, f"d0-{stage}") == expected


@pytest.mark.slow
@given(num_stages=st.integers(1, 6), num_micro_batches=st.integers(1, 12), data=st.data())
def test_gpipe_runs_all_forwards_before_all_backwards(
    num_stages: int, num_micro_batches: int, data: st.DataObject
) -> None:
    times = st.lists(st.floats(0.1, 3), min_size=num_stages, max_size=num_stages)
    problem = chain_problem(
        data.draw(times),
        data.draw(times),
        num_micro_batches=num_micro_batches,
        output_bytes=[1.0] * num_stages,
        link=SLOW,
        schedule="gpipe",
    )
    schedule = build_schedule(problem, chain_plan(problem))
    micro_batches = range(num_micro_batches)
    expected = " ".join([f"F{m}" for m in micro_batches] + [f"B{m}" for m in micro_batches])
    for stage in range(num_stages):
        assert passes(schedule, f"d0-{stage}") == expected


def test_zero_bubble_puts_weights_into_gaps_and_sends_gradients_first() -> None:
    problem = chain_problem(
        [1.0] * 4, [2.0] * 4, parameters=[1] * 4, num_micro_batches=6, schedule="zero-bubble"
    )
    schedule = build_schedule(problem, chain_plan(problem))
    letters = {"forward": "F", "backward-input": "B", "backward-weight": "W"}
    last = [
        f"{letters[action.kind]}{action.micro_batch}"
        for action in schedule.actions["d0-3"]
        if action.kind in letters
    ]
    # The last stage keeps four micro-batches like the first, then frees one for each that comes.
    assert " ".join(last) == "F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5"
    for before, after in pairwise(schedule.actions["d0-3"]):
        if before.kind == "backward-input":
            assert (after.kind, after.direction) == ("send", "backward")


def test_zero_bubble_keeps_no_more_than_1f1b_where_memory_has_no_room() -> None:
    def most_held(memory_bytes: int) -> int:
        problem = chain_problem(
            [1.0] * 4,
            [2.0] * 4,
            parameters=[1] * 4,
            activation_bytes=[100.0] * 4,
            memory_bytes=[memory_bytes],
            schedule="zero-bubble",
        )
        return held_micro_batches(problem, chain_plan(problem))["s2"]

    assert (most_held(250), most_held(10**6)) == (2, 4)


@st.composite
def problems_with_any_plan(draw: st.DrawFn) -> tuple[Problem, Plan]:
    num_layers = draw(st.integers(1, 6))
    times = st.lists(st.floats(0, 3), min_size=num_layers, max_size=num_layers)
    problem = chain_problem(
        draw(times),
        draw(times),
        num_micro_batches=draw(st.integers(1, 9)),
        counts=(3, 2),
        speeds=(1.0, 2.5),
        parameters=[1] * num_layers,
        output_bytes=[1.0] * num_layers,
        link=draw(st.sampled_from([FAST, SLOW])),
        schedule=draw(st.sampled_from(["1f1b", "gpipe", "interleaved", "zero-bubble"])),
    )
    return problem, draw(any_plans(problem))


PASSES = ("forward", "backward", "backward-input", "backward-weight")


def expected_passes(plan: Plan) -> set[tuple[str, str, int]]:
    is_split = plan.job.schedule == "zero-bubble"
    kinds = ("forward", "backward-input", "backward-weight") if is_split else PASSES[:2]
    return {
        (kind, stage, m)
        for pipeline in plan.pipelines
        for stage in pipeline.stages
        for m in pipeline.micro_batches
        for kind in kinds
    }


@given(problems_with_any_plan())
def test_every_pass_stands_once_on_the_device_of_its_stage(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    seen = []
    for device, actions in build_schedule(problem, plan).actions.items():
        for action in actions:
            if action.kind in PASSES:
                assert plan.stage(action.stage).devices == (device,)
                seen.append((action.kind, action.stage, action.micro_batch))
        assert [a for a in actions if a.kind == "step"] == [actions[-1]]
    assert len(seen) == len(set(seen))
    assert set(seen) == expected_passes(plan)


@pytest.mark.slow
@given(problems_with_any_plan())
def test_no_stage_holds_more_micro_batches_than_its_memory_is_counted_for(
    case: tuple[Problem, Plan],
) -> None:
    problem, plan = case
    most = held_micro_batches(problem, plan)
    for actions in build_schedule(problem, plan).actions.values():
        held: dict[str, set[int]] = defaultdict(set)
        for action in actions:
            if action.kind == "forward":
                held[action.stage].add(action.micro_batch)
                assert len(held[action.stage]) <= most[action.stage]
            elif action.kind in ("backward", "backward-weight"):
                held[action.stage].remove(action.micro_batch)  # its forward pass came before


@given(problems_with_any_plan())
def test_messages_are_received_in_the_order_in_which_they_are_sent(
    case: tuple[Problem, Plan],
) -> None:
    problem, plan = case
    routes = [[s.name for s in plan.route(m)] for m in range(problem.job.num_micro_batches)]
    sent, received = defaultdict(list), defaultdict(list)
    for device, actions in build_schedule(problem, plan).actions.items():
        for action in actions:
            if action.kind == "send":
                route = routes[action.micro_batch]
                step = 1 if action.direction == "forward" else -1
                target = route[route.index(action.stage) + step]
                assert plan.stage(target).devices == (action.peer,)
                assert action.peer != device
                sent[device, action.peer, action.direction].append((target, action.micro_batch))
            elif action.kind == "receive":
                received[action.peer, device, action.direction].append(
                    (action.stage, action.micro_batch)
                )
    assert sent == received


def execute(schedule: Schedule) -> list[Action]:
    """Runs the lists one action at a time, with blocking receives.

    All-reduces block, too, or where they overlap the steps behind them.
    """
    done: list[Action] = []
    come: dict[int, int] = defaultdict(int)
    under_way: dict[tuple[str, str, str], deque[int]] = defaultdict(deque)
    lists = {device: deque(actions) for device, actions in schedule.actions.items()}
    while any(lists.values()):
        before = len(done)
        for device, actions in lists.items():
            if not actions:
                continue
            action = actions[0]
            if action.kind == "reduce" and schedule.overlaps_reduce:
                come[action.bucket] += 1
            elif action.kind == "step":
                own = [a.bucket for a in schedule.actions[device] if a.kind == "reduce"]
                if any(come[b] < len(schedule.buckets[b].devices) for b in own):
                    continue
            if action.kind == "reduce" and not schedule.overlaps_reduce:
                come[action.bucket] = len(schedule.buckets[action.bucket].devices)
                members = [lists[d] for d in schedule.buckets[action.bucket].devices]
                if all(member and member[0] == action for member in members):
                    done.extend(member.popleft() for member in members)
                continue
            if action.kind == "receive":
                queue = under_way[action.peer, device, action.direction]
                if not queue:
                    continue
                assert queue.popleft() == action.micro_batch
            elif action.kind == "send":
                under_way[device, action.peer, action.direction].append(action.micro_batch)
            done.append(actions.popleft())
        assert len(done) > before, f"deadlock, left: {lists}"
    return done


@given(problems_with_any_plan())
def test_the_lists_never_deadlock(case: tuple[Problem, Plan]) -> None:
    schedule = build_schedule(*case)
    assert len(execute(schedule)) == sum(map(len, schedule.actions.values()))


@given(problems_with_any_plan())
def test_a_pass_runs_only_when_what_it_needs_is_there(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    routes = [[s.name for s in plan.route(m)] for m in range(problem.job.num_micro_batches)]
    done: set[tuple[str, str, int]] = set()
    for action in execute(build_schedule(problem, plan)):
        route, here = routes[action.micro_batch], (action.kind, action.stage, action.micro_batch)
        if action.kind == "forward":
            front = route[: route.index(action.stage)]
            assert all(("forward", stage, action.micro_batch) in done for stage in front)
        elif action.kind in ("backward", "backward-input"):
            behind = route[route.index(action.stage) + 1 :]
            assert ("forward", action.stage, action.micro_batch) in done
            assert all((action.kind, stage, action.micro_batch) in done for stage in behind)
        elif action.kind == "backward-weight":
            assert ("backward-input", action.stage, action.micro_batch) in done
        done.add(here)


def test_neighbouring_stages_on_one_device_exchange_no_message() -> None:
    problem = chain_problem([1, 1, 1], [1, 1, 1], num_micro_batches=2)
    plan = plan_of(
        problem,
        {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-0"), "c": (2, 2, "d0-1")},
        {("a", "b", "c"): range(2)},
    )
    actions = build_schedule(problem, plan).actions
    assert {a.stage for a in actions["d0-0"] if a.kind in ("send", "receive")} == {"b"}
    assert [a.kind for a in actions["d0-1"]] == [
        *["receive", "forward", "backward", "send"] * 2,
        "step",
    ]
