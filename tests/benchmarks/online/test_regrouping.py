"""The fixture of a run in groups with a straggler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.online.regrouping import _text
from benchmarks.online.regrouping_cases import DEVICES, SLOW, problem, two_groups
from heterps.online.controller import IN_GROUPS
from heterps_agents.interface.planner import Budget
from heterps_agents.systems.malleus.plans import proportional_bound
from heterps_agents.systems.malleus.system import Malleus
from heterps_envs.simulator.simulate import estimate, simulate
from tests.agents.slowed import slowed_problem


def test_the_regrouped_plan_is_near_the_bound_by_proportional_speed() -> None:
    of = problem()
    before_s = estimate(of, two_groups(of)).step_time_s
    slow = replace(slowed_problem(of, {SLOW: 5.0}), strategy=IN_GROUPS)
    plan = Malleus(running=two_groups(of)).plan(slow, Budget())
    bound_s = proportional_bound({SLOW: 5.0}, len(DEVICES), before_s)
    assert simulate(of, plan, slowdown={SLOW: 5.0}).step_time_s < 1.1 * bound_s
    assert _text(plan) == "d2: 4, d0+d1: 8"


def test_no_device_has_room_for_all_layers_and_two_groups_are_the_best_at_first() -> None:
    of = replace(problem(), strategy=IN_GROUPS)
    found = Malleus().plan(of, Budget())
    assert sorted(stage.degree for stage in found.stages) == [2, 2]
    assert estimate(of, found).step_time_s == pytest.approx(
        estimate(of, two_groups(of)).step_time_s
    )
