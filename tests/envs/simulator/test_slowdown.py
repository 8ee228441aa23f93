"""Factors by which `simulate` slows devices down."""

from __future__ import annotations

import math
from typing import Any

import pytest

from heterps_configs.errors import HeterpsError
from heterps_envs.simulator.simulate import simulate
from tests.envs.small_problems import chain_problem, plan_of


@pytest.mark.parametrize(
    ("slowdown", "expected"),
    [
        ({"d0-0": -1.0}, "slowdown of d0-0 -1: expected a finite number above 0"),
        ({"d0-0": 0}, "slowdown of d0-0 0: expected"),
        ({"d0-0": math.nan}, "slowdown of d0-0 nan: expected"),
        ({"d0-0": "x"}, "slowdown of d0-0: is of type str"),
        ({"nobody": 2.0}, "unknown device 'nobody'"),
        ([2.0], "slowdown: is of type list"),
    ],
)
def test_factors_that_slow_nothing_down_are_refused(slowdown: Any, expected: str) -> None:
    problem = chain_problem([1.0], [2.0])
    plan = plan_of(problem, {"s0": (0, 0, "d0-0")}, {("s0",): range(8)})
    with pytest.raises(HeterpsError, match=expected):
        simulate(problem, plan, slowdown=slowdown)
