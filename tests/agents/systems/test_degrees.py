"""Degrees of groups, for systems that make groups."""

from __future__ import annotations

import numpy as np

from heterps_agents.systems.degrees import at_degree, degrees_of, groups_in_order
from tests.agents.systems.malleus.grouped_problems import FORWARD_S, grouped_problem


def test_degrees_are_those_that_a_node_holds_and_a_strategy_allows() -> None:
    problem = grouped_problem()
    assert degrees_of(problem, ()) == (1, 2, 4)
    assert degrees_of(problem, (3, 2, 8)) == (2, 3)


def test_layers_take_what_was_measured_on_groups_of_the_size() -> None:
    problem = grouped_problem()
    for degree, seconds in FORWARD_S.items():
        found = at_degree(problem, degree)
        np.testing.assert_allclose(found.compute_s, 3 * seconds)
    assert (at_degree(problem, 2).state_bytes < at_degree(problem, 1).state_bytes).all()


def test_groups_lie_on_one_node() -> None:
    problem = grouped_problem(counts=[4, 2], speeds=[1.0, 1.0])
    names = list(problem.device_named)
    assert groups_in_order(problem, names, 2) == [
        ("d0-0", "d0-1"),
        ("d0-2", "d0-3"),
        ("d1-0", "d1-1"),
    ]
    assert groups_in_order(problem, names[1:5], 2) is None
    assert groups_in_order(problem, names, 4) is None
