"""Groups of a pipeline's devices, and the orders of its stages."""

from __future__ import annotations

from heterps_agents.systems.hexiscale.graph import DeviceGraph
from heterps_agents.systems.hexiscale.stages import groups_of, orders
from tests.uneven_problems import MakeProblem, uneven_problem


def test_groups_are_as_large_as_is_allowed_and_the_rest_is_smaller() -> None:
    kinds = [list("abcdefg"), ["x"]]
    found = groups_of(kinds, 4, [1, 2, 4])
    assert [("".join(group.devices), group.kind) for group in found] == [
        ("abcd", 0), ("ef", 0), ("g", 0), ("x", 1),
    ]  # fmt: skip
    assert [group.degree for group in groups_of(kinds, 2, [1, 2, 4])] == [2, 2, 2, 1, 1]
    # Without groups of one, what is left over is idle.
    assert ["".join(group.devices) for group in groups_of(kinds, 4, [2, 4])] == ["abcd", "ef"]


def test_kinds_are_devices_of_a_class_on_a_node(make_problem: MakeProblem) -> None:
    graph = DeviceGraph(make_problem(counts=(2, 3, 2)))
    assert [len(names) for names in graph.kinds] == [2, 3, 2]
    assert graph.node_of.tolist() == [0, 1, 1]
    # 10 GB/s on a node, a quarter of it between two.
    assert graph.bandwidth[0].round(-8).tolist() == [1e10, 2.5e9, 2.5e9]
    assert graph.bandwidth[1, 2] == graph.bandwidth[1, 1]
    assert (graph.weights[:, 0] > graph.weights[:, 1]).all()


def test_most_memory_comes_first_and_nodes_follow_their_fastest_links() -> None:
    graph = DeviceGraph(uneven_problem(counts=(1, 1, 1)))
    groups = groups_of([["small"], ["middle"], ["fast"]], 1, [1])
    kinds = {"fast": 0, "middle": 1, "small": 2}
    groups = [group._replace(kind=kinds[group.devices[0]]) for group in groups]
    found = [[group.devices[0] for group in order] for order in orders(graph, groups)]
    assert found == [["fast", "middle", "small"], ["small", "middle", "fast"]]


def test_a_single_stage_has_one_order() -> None:
    graph = DeviceGraph(uneven_problem(counts=(1, 0, 0)))
    groups = groups_of([["fast"]], 1, [1])
    assert list(orders(graph, groups)) == [groups]
