"""The policies on four nodes of four devices, each of a type, and on uneven counts."""

from __future__ import annotations

from heterps_agents.systems.hetpipe.allocation import Allocation, allocations
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem

# Four devices of each on a node, fastest first.
TYPES = ("v", "r", "g", "q")


def four_nodes() -> Problem:
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
    types = [
        {
            "name": name,
            "memory_bytes": 10**10,
            "peak_flops_per_s": {"float32": (4 - index) * 1e12},
            "memory_bandwidth_bytes_per_s": (4 - index) * 1e11,
            "price_usd_per_hour": 1.0,
        }
        for index, name in enumerate(TYPES)
    ]
    nodes = [
        {"name": name, "link": link, "devices": [{"name": name, "type": name, "count": 4}]}
        for name in TYPES
    ]
    cluster = {"name": "four", "device_types": types, "nodes": nodes, "inter_node_link": link}
    layer = LayerProfile(
        name="layer", kind="block", num_parameters=1000, forward_flops=1e9, backward_flops=2e9,
        activation_bytes=1e6, output_bytes=1e6,
    )  # fmt: skip
    layers = tuple(layer.changed(name=f"layer{index}") for index in range(16))
    return Problem(ModelProfile(name="m", layers=layers), Cluster.from_mapping(cluster), Job())


def as_types(allocation: Allocation) -> list[str]:
    """The types of each worker's devices, such as `vvqq`."""
    return ["".join(name[0] for name in worker) for worker in allocation.workers]


def test_the_three_policies_on_four_types_of_four() -> None:
    found = allocations(four_nodes())
    by_policy = {
        policy: [as_types(a) for a in found if a.policy == policy] for policy in ("NP", "ED", "HD")
    }
    assert by_policy["NP"] == [["vvvv", "rrrr", "gggg", "qqqq"]]
    assert by_policy["ED"] == [["vvvvrrrrggggqqqq"], ["vvrrggqq"] * 2, ["vrgq"] * 4]
    assert ["vvqq", "vvqq", "rrgg", "rrgg"] in by_policy["HD"]
    assert ["vq"] * 4 + ["rg"] * 4 in by_policy["HD"]


def test_every_device_is_in_one_worker(make_problem: MakeProblem) -> None:
    for problem in (four_nodes(), make_problem(), make_problem(counts=(2, 4, 6))):
        for allocation in allocations(problem):
            names = [name for worker in allocation.workers for name in worker]
            assert sorted(names) == sorted(problem.device_named)


def test_what_two_policies_say_alike_stands_there_once(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(4, 0, 0))
    found = [frozenset(map(frozenset, each.workers)) for each in allocations(problem)]
    assert len(found) == len(set(found)) == 3


def test_where_no_number_divides_all_types_some_have_one_more(make_problem: MakeProblem) -> None:
    found = allocations(make_problem(counts=(2, 3, 2)))
    (three,) = (a for a in found if a.policy == "ED" and len(a.workers) == 3)
    # Two fast, three middle and two small: who has no fast one has two others.
    assert sorted(as_types(three)) == ["fm", "fms", "ms"]
    sizes = {len(a.workers) for a in found if a.policy == "ED"}
    assert sizes == set(range(1, 8))
    even = allocations(make_problem(counts=(4, 8, 4)))
    assert {len(a.workers) for a in even if a.policy == "ED"} <= {1, 2, 4}
