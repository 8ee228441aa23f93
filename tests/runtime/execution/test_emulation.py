"""Virtual deadlines: targets are kept, overruns are counted and paid back, links carry in order."""

from __future__ import annotations

import time

import pytest

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.reduce_buckets import reduce_s
from heterps_runtime.execution.emulation import EmulatedClock, EmulatedLinks, HostClock
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import EmulatedLink
from tests.runtime.small_runs import DEVICES, plan_of, problem_of


def test_action_ends_its_target_after_the_device_was_free() -> None:
    clock, start_s = EmulatedClock(), time.perf_counter()
    clock.start_step(start_s)
    for _ in range(3):
        clock.begin()
        span = clock.finish(0.01)
        assert span.end_s - span.start_s == pytest.approx(0.01)
    assert clock.now_s == pytest.approx(start_s + 0.03)
    assert time.perf_counter() >= start_s + 0.03


def test_action_begins_when_its_data_arrive() -> None:
    clock, start_s = EmulatedClock(), time.perf_counter()
    clock.start_step(start_s)
    clock.wait_until(start_s + 0.02)
    clock.wait_until(start_s + 0.01)
    clock.begin()
    assert clock.finish(0.01).start_s == pytest.approx(start_s + 0.02)


def test_overrun_is_counted_and_paid_back() -> None:
    clock, start_s = EmulatedClock(), time.perf_counter()
    clock.start_step(start_s)
    clock.begin()
    time.sleep(0.03)
    slow = clock.finish(0.01)
    assert clock.num_overruns == 1
    assert clock.worst_overrun_s >= 0.015
    assert slow.end_s - slow.start_s >= 0.03
    clock.begin()
    clock.finish(0.1)
    assert clock.now_s == pytest.approx(start_s + 0.11)
    clock.forget_overruns()
    assert (clock.num_actions, clock.num_overruns) == (0, 0)


def test_host_clock_waits_for_an_emulated_link_only() -> None:
    clock, start_s = HostClock(), time.perf_counter()
    clock.begin()
    clock.finish(10.0)
    clock.wait_until(start_s + 0.02)
    assert 0.02 <= time.perf_counter() - start_s < 5


def test_link_carries_one_message_at_a_time_to_each_destination() -> None:
    link = {"source": "a", "latency_s": 0.5, "s_per_byte": 0.01}
    links = EmulatedLinks("a", [EmulatedLink(destination=name, **link) for name in ("b", "c")])
    assert links.arrival_s("b", 100, 10.0) == pytest.approx(11.5)
    assert links.arrival_s("b", 100, 10.0) == pytest.approx(12.5)
    assert links.arrival_s("c", 100, 10.0) == pytest.approx(11.5)
    assert links.arrival_s("b", 100, 20.0) == pytest.approx(21.5)


def test_a_slowed_link_carries_messages_and_sums_more_slowly_from_its_step_on() -> None:
    problem = problem_of("sequential", slowdowns=(1, 1, 2, 4))
    stages = {"a": (0, 3, "d0"), "b": (4, -1, "d1"), "c": (4, -1, "d2")}
    plan = plan_of(problem, stages, {("a", "b"): [0, 1], ("a", "c"): [2, 3]})
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem,
        plan,
        schedule,
        RunSettings(steps=9),
        devices=DEVICES,
        events=[
            RunEvent(step=2, slow="d0->d1", factor=3),
            RunEvent(step=4, slow="d1->d2", factor=2),
        ],
    )
    links = EmulatedLinks.of(specification, "d0")
    link = problem.link("d0", "d1")
    bucket = next(index for index, b in enumerate(schedule.buckets) if b.devices == ("d1", "d2"))
    for step, factor, slowed_sums in ((0, 1, 1), (2, 3, 1), (4, 3, 2)):
        links.start_step(step)
        departure_s = 100.0 * step
        taken_s = links.arrival_s("d1", 5000, departure_s) - departure_s
        assert taken_s == pytest.approx(factor * link.transfer_s(5000))
        assert links.arrival_s("d2", 5000, departure_s) == pytest.approx(
            departure_s + link.transfer_s(5000)
        )
        expected_s = slowed_sums * reduce_s(problem, schedule.buckets[bucket])
        assert links.reduce_s[bucket] == pytest.approx(expected_s)
