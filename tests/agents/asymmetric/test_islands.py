"""Parts of clusters that are sought alone: single nodes, and nodes near each other."""

from __future__ import annotations

from dataclasses import replace

from heterps_agents.asymmetric.islands import islands
from heterps_configs.documents.cluster import Cluster
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem


def _devices(found: list[Problem]) -> list[list[str]]:
    return [list(each.device_named) for each in found]


def _apart(problem: Problem, bandwidths: dict[tuple[int, int], float]) -> Problem:
    """The same devices on nodes of two, with a link of its own between some of them."""
    content = problem.cluster.to_mapping()
    node = content["nodes"][0]
    content["nodes"] = [
        {
            **node,
            "name": f"n{i}",
            "devices": [{"name": f"d{i}", "type": "fast", "count": 1 + i % 2}],
        }
        for i in range(4)
    ]
    content["link_overrides"] = [
        {
            "between": [f"n{one}", f"n{two}"],
            "link": {"latency_s": 1e-5, "bandwidth_bytes_per_s": bandwidth},
        }
        for (one, two), bandwidth in bandwidths.items()
    ]
    return replace(problem, cluster=Cluster.from_mapping(content))


def test_the_fastest_node_comes_first(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 3, 2))
    first, second = _devices(islands(problem, 5))
    assert first == ["fast-0", "fast-1"]
    assert sorted(first + second) == sorted(problem.device_named)
    assert _devices(islands(problem, 1)) == [first]
    assert islands(problem, 0) == []


def test_a_part_is_the_same_problem_each_time(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 3, 2))
    assert islands(problem, 5)[0] is islands(problem, 1)[0]


def test_nodes_that_a_fast_link_joins_are_one_part(make_problem: MakeProblem) -> None:
    problem = _apart(make_problem(), {(0, 1): 1e11, (2, 3): 5e9})
    parts = _devices(islands(problem, 9))
    assert parts[:2] == [["d0", "d1-0", "d1-1"], ["d2", "d3-0", "d3-1"]]
    assert ["d1-0", "d1-1"] in parts
    assert all(len(part) > 1 for part in parts), "a device alone has no lanes"


def test_one_node_has_no_parts(make_problem: MakeProblem) -> None:
    assert islands(make_problem(counts=(2, 0, 0)), 5) == []
