"""Links between nodes, for systems that count no latencies."""

from __future__ import annotations

import pytest

from heterps_agents.systems.node_links import NodeLinks
from tests.uneven_problems import MakeProblem


def test_links_are_told_apart_inside_and_between_nodes(make_problem: MakeProblem) -> None:
    """Two fast devices on one node, the others on another; between them a quarter as fast."""
    problem = make_problem(bandwidth_bytes_per_s=4e9)
    links = NodeLinks.of(problem)
    fast, other = ([n for n in links.node_of if links.node_of[n] == index] for index in (0, 1))
    assert links.slowest_within(fast) == pytest.approx(1 / 4e9)
    assert links.slowest_within(fast[:1]) == 0.0
    assert links.slowest_within([fast[0], other[0]]) == pytest.approx(1 / 1e9)
    assert links.slowest(fast, other[:1]) == pytest.approx(1 / 1e9)
    assert links.slowest(other[:1], other[1:]) == pytest.approx(1 / 4e9)
