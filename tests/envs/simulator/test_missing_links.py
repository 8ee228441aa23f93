"""Devices that cannot talk to each other: the documents say so, planners and simulator heed it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import NO_LINK, Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.errors import DocumentError, InfeasibleError
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

LINK = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
NODES = [{"name": f"n{i}", "devices": [{"name": f"d{i}", "type": "T4"}]} for i in range(4)]
# d0 and d1 are linked, and d2 and d3.
ISLANDS = {
    "name": "islands",
    "nodes": NODES,
    "inter_node_link": "none",
    "link_overrides": [
        {"between": ["n0", "n1"], "link": LINK},
        {"between": ["n2", "n3"], "link": LINK},
    ],
}


def problem_on(cluster: Mapping[str, object]) -> Problem:
    job = Job(global_batch_size=64, micro_batch_size=4, dtype="float32")
    return Problem(load_profile("resnet-50"), Cluster.from_mapping(dict(cluster)), job)


def test_none_is_read_and_written() -> None:
    cluster = Cluster.from_mapping(ISLANDS)
    assert cluster.inter_node_link == NO_LINK
    assert cluster.to_mapping()["inter_node_link"] == "none"
    assert Cluster.from_mapping(cluster.to_mapping()) == cluster
    assert cluster.lacks_links
    first, second, third, _ = cluster.devices
    assert cluster.link(first, second).is_there
    assert not cluster.link(second, third).is_there


def test_only_a_node_of_several_devices_needs_a_link() -> None:
    alone = {"name": "alone", "nodes": NODES[:1]}
    plan = planner_named("greedy").plan(problem_on(alone), Budget(100))
    assert plan.devices == ("d0",)
    several = {"name": "n", "devices": [{"name": "d", "type": "T4", "count": 2}]}
    with pytest.raises(DocumentError, match=r"nodes.0.link: is needed, because the node has sev"):
        Cluster.from_mapping({"name": "several", "nodes": [several]})


@pytest.mark.parametrize("planner", ["auto", "exact", "annealing", "greedy", "random"])
def test_planners_send_nothing_where_there_is_no_link(planner: str) -> None:
    problem = problem_on(ISLANDS)
    plan = planner_named(planner).plan(problem, Budget(300))
    assert set(plan.devices) <= {"d0", "d1"} or set(plan.devices) <= {"d2", "d3"}
    assert estimate(problem, plan).feasible


def test_a_plan_that_needs_a_missing_link_is_infeasible_and_says_where() -> None:
    linked = problem_on({**ISLANDS, "inter_node_link": LINK})
    plan = planner_named("even").plan(linked, Budget(1))
    shown = estimate(problem_on(ISLANDS), plan)
    assert not shown.feasible
    assert re.fullmatch(r"link: there is none from d\d to d\d \(.*\)", shown.reasons[0])
    with pytest.raises(InfeasibleError, match="even: the placement needs a link"):
        planner_named("even").plan(problem_on(ISLANDS), Budget(1))


@pytest.mark.parametrize("there", ["link", "reverse_link"])
def test_a_group_needs_the_links_of_its_node(there: str) -> None:
    node = {"name": "n", "devices": [{"name": "d", "type": "T4", "count": 2}]}
    apart = {"link": "none", "reverse_link": "none", there: LINK}
    linked = problem_on({"name": "one", "nodes": [{**node, "link": LINK}]})
    groups = replace(linked, strategy=Strategy(tensor_parallel=(2,)))
    plan = planner_named("greedy").plan(groups, Budget(100))
    assert estimate(linked, plan).feasible
    problem = problem_on({"name": "one", "nodes": [{**node, **apart}]})
    shown = estimate(problem, plan)
    assert not shown.feasible
    assert shown.reasons[0].endswith("(the group of stage s0)")
    with pytest.raises(InfeasibleError, match=r"there is none from d-\d to d-\d \(the group"):
        planner_named("uniform-3d").plan(
            replace(problem, strategy=Strategy(tensor_parallel=(2,))), Budget(100)
        )


def test_what_only_groups_without_links_could_hold_has_no_plan() -> None:
    node = {"name": "n", "devices": [{"name": "d", "type": "RTX-3090", "count": 3}]}
    cluster = Cluster.from_mapping({"name": "one", "nodes": [{**node, "link": "none"}]})
    job = Job(global_batch_size=100, micro_batch_size=20, dtype="float32")
    problem = Problem(load_profile("ctr"), cluster, job, strategy=Strategy(tensor_parallel=()))
    with pytest.raises(InfeasibleError, match="no devices that are linked with each other hold"):
        planner_named("auto").plan(problem, Budget(cpu_seconds=0.5))


@pytest.mark.parametrize("planner", ["exact", "annealing", "greedy"])
def test_stages_need_a_link_both_ways(planner: str) -> None:
    groups = [{"name": "a", "type": "T4"}, {"name": "b", "type": "V100-16G", "count": 2}]
    node = {"name": "n", "devices": groups, "link": LINK, "reverse_link": "none"}
    problem = problem_on({"name": "one way", "nodes": [node]})
    plan = planner_named(planner).plan(problem, Budget(300))
    assert len(plan.devices) == 1
    assert estimate(problem, plan).feasible
