"""Which plans torch's own schedules can express."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.torch_plan import (
    check_expressible,
    check_torch_engine,
    devices_in_order,
)
from tests.runtime.small_runs import plan_of, problem_of

HALVES = {"front": (0, 3, "d0"), "back": (4, -1, "d1")}
QUARTERS = {
    "s0": (0, 1, "d0"),
    "s1": (2, 3, "d1"),
    "s2": (4, 5, "d0"),
    "s3": (6, -1, "d1"),
}


def _plan(
    stages: dict[str, tuple[int, int, str]],
    schedule: Schedule = "1f1b",
    routes: dict[tuple[str, ...], Sequence[int]] | None = None,
    global_batch_size: int = 16,
) -> Plan:
    problem = problem_of("sequential", schedule=schedule, global_batch_size=global_batch_size)
    return plan_of(problem, stages, routes)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_a_chain_of_stages_can_be_expressed(schedule: Schedule) -> None:
    check_expressible(_plan(HALVES, schedule))


def test_devices_that_take_their_stages_in_turns_can_be_expressed() -> None:
    check_expressible(_plan(QUARTERS, "interleaved"))


def test_ranks_are_in_the_order_of_the_stages() -> None:
    plan = _plan(
        {"back": (4, -1, "d0"), "front": (0, 3, "d1")}, routes={("front", "back"): range(4)}
    )
    assert devices_in_order(plan) == ("d1", "d0")


def test_routes_are_refused() -> None:
    stages = {**HALVES, "other": (4, -1, "d2")}
    routes: dict[tuple[str, ...], Sequence[int]] = {
        ("front", "back"): (0, 1),
        ("front", "other"): (2, 3),
    }
    with pytest.raises(HeterpsError, match="2 routes for its micro-batches"):
        check_expressible(_plan(stages, routes=routes))


def test_numbers_in_flight_are_ignored_with_a_warning() -> None:
    plan = _plan(HALVES)
    chosen = plan.changed(stages=tuple(stage.changed(in_flight=2) for stage in plan.stages))
    with pytest.warns(UserWarning, match="in_flight of the plan's stages is ignored"):
        check_torch_engine(chosen, is_online=False)


def test_unequal_numbers_of_stages_are_refused() -> None:
    stages = {"s0": (0, 1, "d0"), "s1": (2, 3, "d1"), "s2": (4, -1, "d0")}
    with pytest.raises(HeterpsError, match="take their stages in turns"):
        check_expressible(_plan(stages, "interleaved"))


def test_several_stages_on_a_device_need_a_schedule_that_knows_them() -> None:
    with pytest.raises(HeterpsError, match="1f1b has one stage on each device"):
        check_expressible(_plan(QUARTERS, "1f1b"))


def test_unequal_micro_batches_are_refused_with_their_sizes() -> None:
    with pytest.raises(HeterpsError, match=r"unequal sizes \(2, 4\).*engine heterps can run it"):
        check_expressible(_plan(HALVES, global_batch_size=14))


def test_fewer_micro_batches_than_stages_are_refused_under_1f1b() -> None:
    with pytest.raises(HeterpsError, match="for each of its 2 stages"):
        check_expressible(_plan(HALVES, global_batch_size=4))


def test_a_plan_that_may_change_is_refused() -> None:
    with pytest.raises(HeterpsError, match="not with --online"):
        check_torch_engine(_plan(HALVES), is_online=True)
