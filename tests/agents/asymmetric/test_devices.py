"""Devices of pipelines: each once, and a pipeline within a node where one has room."""

from __future__ import annotations

from typing import Any

from heterps_agents.asymmetric.devices import Parts, on_devices
from heterps_agents.asymmetric.pipes import Stages, View
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from tests.uneven_problems import uneven_problem


def racks(counts: tuple[int, ...], strategy: Strategy | None = None) -> Problem:
    """Equal devices on nodes, whose links are ten times as slow between them as inside."""
    kind = uneven_problem().cluster.device_types[0]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
    nodes: list[dict[str, Any]] = [
        {
            "name": f"node{number}",
            "devices": [{"name": f"d{number}", "type": kind.name, "count": count}],
            "link": link,
        }
        for number, count in enumerate(counts)
    ]
    cluster = Cluster.from_mapping(
        {
            "name": "racks",
            "device_types": [kind.to_mapping()],
            "nodes": nodes,
            "inter_node_link": {**link, "bandwidth_bytes_per_s": 1e9},
        }
    )
    job = Job(global_batch_size=16)
    return Problem(load_profile("gpt2"), cluster, job, strategy=strategy or Strategy())


def nodes_of(problem: Problem, parts: Parts) -> list[str]:
    names = [name for part in parts for group in part.groups for name in group]
    return [problem.device_named[name].node for name in names]


def test_pipelines_of_equal_nodes_do_not_cross_them() -> None:
    view = View.of(racks((4, 4)).views[-1])
    pipe: Stages = ((3, 0, 1), (6, 0, 1), (14, 0, 1))
    found = on_devices(view, [pipe, pipe])
    assert found is not None
    assert [len(set(nodes_of(view.problem, parts))) for parts in found] == [1, 1]
    names = [name for parts in found for part in parts for group in part.groups for name in group]
    assert len(set(names)) == 6


def test_the_largest_chooses_first_whatever_the_order() -> None:
    view = View.of(racks((4, 4)).views[-1])
    large: Stages = tuple((stop, 0, 1) for stop in (2, 5, 7, 14))
    small: Stages = ((5, 0, 1), (14, 0, 1))
    found = on_devices(view, [small, small, large])
    assert found is not None
    assert [len(parts) for parts in found] == [2, 2, 4]
    assert [len(set(nodes_of(view.problem, parts))) for parts in found] == [1, 1, 1]


def test_groups_stand_on_one_node_and_there_may_be_no_room() -> None:
    problem = racks((3, 3), Strategy(tensor_parallel=(1, 3)))
    view = View.of(problem.views[-1])
    degrees = [option.degree for option in view.options]
    triple: Stages = ((14, degrees.index(3), 1),)
    found = on_devices(view, [triple, triple])
    assert found is not None
    assert [len(set(nodes_of(problem, parts))) for parts in found] == [1, 1]
    alone: Stages = ((14, degrees.index(1), 1),)
    # Two single devices would leave one node with two.
    assert on_devices(view, [triple, triple, alone]) is None
