"""What groups of a problem cost, for Malleus."""

from __future__ import annotations

import pytest

from heterps_agents.systems.malleus.degrees import DegreeTimes
from heterps_agents.systems.malleus.groups import group_of
from heterps_envs.options import StageOption, option_tables
from tests.agents.slowed import slowed_problem
from tests.agents.systems.malleus.grouped_problems import FORWARD_S, grouped_problem


def test_a_smaller_group_is_slower_by_what_was_measured_on_groups_of_its_size() -> None:
    pace = DegreeTimes(grouped_problem(), (1, 2, 4)).pace(4)
    for degree, seconds in FORWARD_S.items():
        assert pace.seconds("d0-0", degree) == pytest.approx(seconds / FORWARD_S[4])


def test_without_such_measurements_the_sums_over_a_group_cost_what_the_problem_says() -> None:
    problem = grouped_problem(degrees=(1,))
    pace = DegreeTimes(problem, (1, 2)).pace(2)
    tables = option_tables(problem, (StageOption(0), StageOption(0, 2)))
    alone_s, group_s = tables.compute_s.sum(axis=0)
    assert pace.seconds("d0-0", 1) == pytest.approx(alone_s / group_s)
    assert pace.seconds("d0-0", 1) < 2


def test_a_group_takes_as_long_as_its_slowest_device() -> None:
    problem = slowed_problem(grouped_problem(), {"d0-3": 3.0})
    pace = DegreeTimes(problem, (1, 2, 4)).pace(2)
    assert group_of(("d0-0", "d0-1"), pace).slowdown == 1.0
    assert group_of(("d0-2", "d0-3"), pace).slowdown == pytest.approx(3.0, rel=0.02)
    assert group_of(("d0-3",), pace).slowdown == pytest.approx(3 / FORWARD_S[2], rel=0.02)


def test_a_device_of_a_larger_group_holds_less_of_each_layer() -> None:
    problem = grouped_problem(memory_bytes=[20_000])
    times = DegreeTimes(problem, (1, 2, 4))
    memory, pace = times.memory(2), times.pace(4)
    rooms = [
        memory.room(group_of([f"d0-{i}" for i in range(degree)], pace), 0, 2)
        for degree in (1, 2, 4)
    ]
    assert 0 < rooms[0] < rooms[1] < rooms[2]
