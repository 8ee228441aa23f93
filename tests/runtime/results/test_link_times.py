"""Times of messages: what is known of them, and what is not, from the times of both ends."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.link_times import (
    LinkTimes,
    LinkWindow,
    Route,
    RouteSeconds,
    Taken,
    measured_seconds,
    predicted_seconds,
    routes_of,
)
from tests.runtime.random_plans import SIZES, plans
from tests.runtime.small_runs import DEVICES, chain_of, problem_of

RANKS = {device: rank for rank, device in enumerate(DEVICES)}
MACHINES = ["here"] * len(RANKS)


def rows_of(
    links: LinkTimes, schedule: Schedule, records: Mapping[str, list[ActionRecord]]
) -> list[list[float]]:
    return [links.row(device, 50.0, records.get(device, [])) for device in RANKS]


def simulated(problem: Problem, plan: Plan, schedule: Schedule) -> dict[str, list[ActionRecord]]:
    """The records of emulated devices: departures, and receives that end with the arrival."""
    times = action_times(PreparedPlan(problem, plan, schedule))
    found: dict[str, list[ActionRecord]] = {}
    for at, device in enumerate(schedule.devices):
        for number in range(schedule.offsets[at], schedule.offsets[at + 1]):
            action = schedule.action(number)
            start_s, end_s = float(times.start_s[number]), float(times.end_s[number])
            if action.kind == "send":
                end_s = start_s
            record = ActionRecord(action.kind, action.stage, action.micro_batch, start_s, end_s)
            found.setdefault(device, []).append(record)
    return found


@pytest.mark.parametrize("schedule_name", ["gpipe", "1f1b", "zero-bubble"])
def test_messages_of_a_step_as_simulated_take_what_their_links_say(schedule_name: str) -> None:
    problem = problem_of("sequential", slowdowns=(1, 2, 2, 4), schedule=schedule_name)
    plan = chain_of(problem, 2, 4, 6)
    schedule = build_schedule(problem, plan)
    links = LinkTimes(plan, schedule.actions, RANKS, MACHINES)
    rows = rows_of(links, schedule, simulated(problem, plan, schedule))
    predicted = predicted_seconds(problem, plan, links.routes)
    measured = measured_seconds(problem, predicted, links.taken(rows))
    expected = dict(predicted)
    assert [str(route) for route in links.routes][:2] == [
        "s0 forward d0->d1", "s1 forward d1->d2",
    ]  # fmt: skip
    assert len(measured) >= 5  # of six: some device may never wait
    for route, seconds in measured:
        assert seconds == pytest.approx(expected[route], rel=1e-6)


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_no_drift_is_told_of_links_that_have_none(data: st.DataObject) -> None:
    sizes = data.draw(st.sampled_from(SIZES))
    problem = problem_of(
        "sequential",
        slowdowns=(1, 2, 2, 4),
        step_s=data.draw(st.sampled_from([1e-3, 1e-2, 1e-1])),
        global_batch_size=sum(sizes),
        micro_batch_size=4,
        unequal_micro_batch_sizes=list(sizes),
    )
    plan = data.draw(plans(problem))
    schedule = build_schedule(problem, plan)
    links = LinkTimes(plan, schedule.actions, RANKS, MACHINES)
    predicted = predicted_seconds(problem, plan, links.routes)
    rows = rows_of(links, schedule, simulated(problem, plan, schedule))
    for route, seconds in measured_seconds(problem, predicted, links.taken(rows)):
        assert seconds == pytest.approx(dict(predicted)[route], rel=1e-6)


def two_devices() -> tuple[Problem, Plan, LinkTimes]:
    """Three micro-batches from d0 to d1 and back."""
    problem = problem_of("sequential", schedule="gpipe", global_batch_size=12)
    plan = chain_of(problem, 3)
    links = LinkTimes(plan, build_schedule(problem, plan).actions, RANKS, MACHINES)
    return problem, plan, links


def forward_rows(departures: list[float], ends: list[float]) -> list[list[float]]:
    """Of the messages from d0 to d1; nothing is known of those that went back."""
    back = [0.0] * 3
    numbers = [departures + back, ends + back, back + back, back + back]
    return [[100.0, *row] for row in numbers]


def test_a_rank_tells_departures_and_arrivals_and_where_it_did_not_wait() -> None:
    _, _, links = two_devices()
    kinds = ["receive", "forward", "receive", "forward", "receive", "forward"]
    records = [ActionRecord(kind, "s1", i // 2, i, i + i / 2) for i, kind in enumerate(kinds)]
    records += [
        ActionRecord("backward", "s1", 0, 7.0, 8.0),
        ActionRecord("send", "s1", 0, 8.5, 8.5),
    ]
    records += [records[-1]] * 6
    assert links.row("d1", 50.0, records) == [50.0, 0.0, 3.0, 6.0, 8.5, 8.5, 8.5]
    assert links.row("d1", 50.0, [r._replace(end_s=r.start_s) for r in records])[1:4] == [
        0.0,
        -2.0,
        -4.0,
    ]
    assert links.row("d3", 50.0, []) == [50.0] + [0.0] * 6


def test_a_message_that_lay_at_its_receiver_says_nothing() -> None:
    _, _, links = two_devices()
    rows = forward_rows([1.0, 2.0, 3.0], [-5.0, -6.0, -7.0])
    assert links.taken(rows)[0] == Taken(None, None)


def test_a_message_behind_another_counts_from_the_arrival_of_that() -> None:
    _, _, links = two_devices()
    rows = forward_rows([1.0, 1.1, 4.0], [2.0, 2.8, 5.5])
    alone_s, queued_s = links.taken(rows)[0]
    assert alone_s == pytest.approx((1.0 + 1.5) / 2)
    assert queued_s == pytest.approx(0.8)
    behind_a_late_one = forward_rows([1.0, 1.1, 4.0], [-2.0, 2.8, 5.5])
    assert links.taken(behind_a_late_one)[0] == Taken(1.5, None)


def test_ranks_of_one_machine_share_a_clock_and_those_of_two_share_the_start_of_the_step() -> None:
    problem, plan, links = two_devices()
    rows = forward_rows([1.0, 2.0, 3.0], [1.5, 2.5, -9.0])
    rows[1][0] += 0.25  # d1 began later: its times are that much later
    assert links.taken(rows)[0].alone_s == pytest.approx(0.75)
    actions = build_schedule(problem, plan).actions
    apart = LinkTimes(plan, actions, RANKS, ["here", "there", "here", "here"])
    rows[1][0] += 1e6
    assert apart.taken(rows)[0].alone_s == pytest.approx(0.5)


def test_what_is_known_of_queued_messages_only_tells_no_drift_within_the_latency() -> None:
    problem, _, _ = two_devices()
    route = Route("d0", "d1", "s0", "forward")
    latency_s = problem.link("d0", "d1").latency_s
    predicted = [RouteSeconds(route, 5 * latency_s)]

    def found(queued: float) -> float:
        ((_, seconds),) = measured_seconds(problem, predicted, [Taken(None, queued * latency_s)])
        return seconds / latency_s

    assert [found(4), found(4.5), found(5)] == [pytest.approx(5)] * 3
    assert found(3) == pytest.approx(4)
    assert found(20) == pytest.approx(20)
    assert measured_seconds(problem, predicted, [Taken(None, None)]) == []
    ((_, alone_s),) = measured_seconds(problem, predicted, [Taken(7.0, 1.0)])
    assert alone_s == 7.0


def test_a_window_has_the_medians_of_its_steps() -> None:
    problem, plan, links = two_devices()
    window = LinkWindow(problem.profile, plan, links.routes)
    for seconds in (1.0, 9.0, 2.0):
        window.add([Taken(seconds, None), Taken(None, 0.5)])
    forward, backward = window.measurements()
    assert (forward.source, forward.destination, forward.seconds) == ("d0", "d1", 2.0)
    assert (forward.is_queued, forward.num_samples) == (False, 3)
    assert (backward.source, backward.seconds, backward.is_queued) == ("d1", 0.5, True)
    assert forward.num_bytes == backward.num_bytes > 0
    window.clear()
    assert window.measurements() == ()


def test_a_plan_on_one_device_has_no_messages() -> None:
    problem = problem_of("sequential")
    plan = chain_of(problem)
    schedule = build_schedule(problem, plan)
    links = LinkTimes(plan, schedule.actions, RANKS, MACHINES)
    assert (links.width, links.row("d0", 50.0, []), links.taken([[], [], [], []])) == (0, [], [])
    assert routes_of(plan, schedule.actions) == []
