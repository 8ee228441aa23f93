"""Problems: device classes, tables, links."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, LinkOverride, Node
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile, shipped
from heterps_envs.device_classes import MAX_CLASSES
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem, device_type

INSIDE = Link(latency_s=1.0, bandwidth_bytes_per_s=8.0)
BETWEEN = Link(latency_s=3.0, bandwidth_bytes_per_s=2.0)


def cluster(nodes: dict[str, list[DeviceGroup]], regions: dict[str, str] | None = None) -> Cluster:
    names = {group.type for groups in nodes.values() for group in groups}
    return Cluster(
        name="test",
        device_types=tuple(device_type(name) for name in sorted(names)),
        nodes=tuple(
            Node(
                name=name,
                region=(regions or {}).get(name, "local"),
                devices=tuple(groups),
                link=INSIDE,
            )
            for name, groups in nodes.items()
        ),
        inter_node_link=BETWEEN,
    )


def problem_on(found: Cluster) -> Problem:
    problem = chain_problem([1, 1], [1, 1])
    return Problem(problem.profile, found, problem.job)


def three_nodes() -> Problem:
    return problem_on(
        cluster(
            {
                "a": [DeviceGroup(name="x", type="t", count=2)],
                "b": [
                    DeviceGroup(name="y", type="t"),
                    DeviceGroup(name="z", type="t", memory_bytes=5),
                    DeviceGroup(name="w", type="t", price_usd_per_hour=0.1),
                ],
                "c": [DeviceGroup(name="v", type="t")],
            },
            regions={"c": "far"},
        )
    )


def test_devices_of_equal_type_memory_price_and_node_are_one_class() -> None:
    problem = three_nodes()
    members = [[device.name for device in entry.devices] for entry in problem.classes]
    assert members == [["x-0", "x-1"], ["y"], ["z"], ["w"], ["v"]]
    assert len({entry.name for entry in problem.classes}) == 5


def equal_nodes(count: int = 3) -> Problem:
    """So many nodes of two fast devices, and as many of two slow ones."""
    names = {"t": "fast", "u": "slow"}
    return problem_on(
        cluster(
            {
                f"{name}-{index}": [DeviceGroup(name=f"{kind}{index}", type=kind, count=2)]
                for kind, name in names.items()
                for index in range(count)
            }
        )
    )


def test_six_nodes_of_two_types_are_two_classes() -> None:
    problem = equal_nodes()
    assert [(entry.name, entry.count) for entry in problem.classes] == [("t", 6), ("u", 6)]
    assert len(problem.by_node.classes) == 6
    assert [len(view.classes) for view in problem.views] == [6, 2, 2]


def test_links_of_equal_nodes_are_kept_apart() -> None:
    problem = equal_nodes()
    tables, bounding = problem.tables, problem.bounding_tables
    assert tables.latency_s.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert bounding.latency_s.tolist() == [[1.0, 3.0], [3.0, 1.0]]
    for rings in (tables.rings, bounding.rings):
        assert rings is not None
        assert rings.node_size.tolist() == [2, 2]
        assert rings.latency_s.tolist() == [[1.0, 3.0], [1.0, 3.0]]
        assert rings.inverse_bandwidth_s_per_byte.tolist() == [[1 / 8, 0.5], [1 / 8, 0.5]]


def test_what_is_known_of_a_cluster_is_shared_by_its_problems_and_by_no_others() -> None:
    problem = equal_nodes()
    problem.tables.latency_s[:] = 9.0
    copy = replace(problem, job=problem.job.changed(global_batch_size=1))
    assert copy.links is problem.links
    assert copy.tables.latency_s.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    other = replace(problem, cluster=three_nodes().cluster)
    assert other.links is not problem.links
    assert [entry.count for entry in other.classes] == [
        entry.count for entry in three_nodes().classes
    ]


def test_what_is_known_of_a_problem_is_not_sent_to_other_processes() -> None:
    """One thread may pickle a problem of which another one finds out more."""
    problem = equal_nodes()
    problem.derived["a bound"] = lambda: 1.0  # which cannot be pickled
    assert problem.tables is problem.tables
    sent = pickle.loads(pickle.dumps(problem))
    assert sent == problem
    assert sent.__dict__.keys() == {each.name for each in fields(Problem)}
    assert sent.links is not problem.links
    np.testing.assert_array_equal(sent.tables.latency_s, problem.tables.latency_s)


def test_a_node_with_a_link_of_its_own_equals_no_other() -> None:
    problem = equal_nodes()
    override = LinkOverride(between=("fast-0", "slow-0"), link=INSIDE)
    own = problem.cluster.changed(link_overrides=(override,))
    counts = [entry.count for entry in problem_on(own).classes]
    assert counts == [2, 4, 2, 4]


@pytest.mark.parametrize("name", shipped("clusters"))
def test_where_all_nodes_differ_nothing_is_merged(name: str) -> None:
    base = chain_problem([1, 1], [1, 1])
    # Without measurements of these types: layer times are no matter here.
    problem = Problem(load_profile("gpt2"), load_cluster(name), base.job)
    apart = replace(problem, nodes_apart="all")
    if len(problem.classes) < len(apart.classes):
        assert name in ("h100-pod", "a100-v100-t4")
        return
    assert problem.views == (problem,)
    assert problem.by_node is problem
    assert problem.bounding_tables is problem.tables
    assert problem.tables.rings is None
    for field in fields(problem.tables):
        ours, theirs = (getattr(entry.tables, field.name) for entry in (problem, apart))
        assert np.array_equal(ours, theirs), field.name


def test_single_devices_of_many_nodes_are_one_class() -> None:
    nodes = {name: [DeviceGroup(name=f"{name}-x", type="t")] for name in "abc"}
    problem = problem_on(cluster(nodes))
    assert [entry.count for entry in problem.classes] == [3]


def test_where_nodes_would_make_too_many_classes_devices_of_a_region_are_one_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heterps_envs.problem_documents.MAX_NODE_CLASSES", 4)
    problem = three_nodes()
    members = [[device.name for device in entry.devices] for entry in problem.classes]
    assert members == [["x-0", "x-1", "y"], ["z"], ["w"], ["v"]]
    assert len({entry.name for entry in problem.classes}) == 4
    assert problem.class_of == {"x-0": 0, "x-1": 0, "y": 0, "z": 1, "w": 2, "v": 3}
    assert problem.tables.device_count.tolist() == [3, 1, 1, 1]
    assert problem.tables.memory_bytes.tolist() == [1e12, 5, 1e12, 1e12]


def test_the_link_of_two_classes_is_the_slowest_between_different_devices() -> None:
    problem = problem_on(
        cluster(
            {
                "a": [DeviceGroup(name="x", type="t", count=2), DeviceGroup(name="y", type="u")],
                "b": [DeviceGroup(name="z", type="u", count=1)],
            }
        )
    )
    assert problem.tables.latency_s.tolist() == [[1.0, 3.0], [3.0, 3.0]]
    assert problem.tables.inverse_bandwidth_s_per_byte.tolist() == [[1 / 8, 0.5], [0.5, 0.5]]
    assert problem.link("x-0", "y") == INSIDE
    assert problem.link("x-0", "z") == BETWEEN


def test_a_class_of_one_device_has_no_link_to_itself() -> None:
    problem = problem_on(cluster({"a": [DeviceGroup(name="x", type="t")]}))
    assert problem.tables.latency_s.tolist() == [[0.0]]


def test_tables_are_for_one_micro_batch_in_the_jobs_dtype() -> None:
    base = chain_problem(
        [1, 1],
        [1, 1],
        parameters=[10, 20],
        activation_bytes=[100.0, 200.0],
        output_bytes=[8.0, 8.0],
    )
    job = Job(global_batch_size=12, micro_batch_size=3, dtype="bfloat16", optimizer="adamw")
    tables = Problem(base.profile, base.cluster, job).tables
    assert tables.num_micro_batches == 4
    assert tables.state_bytes.tolist() == [160, 320]  # 2 + 2 + 8 moments + 4 master weight
    assert tables.gradient_bytes.tolist() == [20, 40]
    # What leaves the first layer counts beside what it keeps.
    assert tables.activation_bytes.tolist() == [150 + 12, 300]
    assert tables.output_bytes.tolist() == [12, 0]  # nothing crosses behind the last layer


def test_the_fastest_links_change_nothing_that_layers_take_and_hold() -> None:
    problem = Problem(load_profile("llama-7b"), load_cluster("h100-pod"), Job())
    slowest, fastest = problem.views[-2:]
    anew = replace(problem, has_fastest_links=True)
    assert fastest.slower is slowest
    assert anew.slower is None
    for degree in (1, 2, 4):
        seen, own = fastest.at_degree(degree), anew.at_degree(degree)
        assert seen.layer_times is slowest.at_degree(degree).layer_times
        for name in ("forward_s", "state_bytes", "activation_bytes", "memory_bytes", "latency_s"):
            np.testing.assert_array_equal(getattr(seen.tables, name), getattr(own.tables, name))
        np.testing.assert_array_equal(
            seen.layer_memory.chain_bytes(), own.layer_memory.chain_bytes()
        )


def test_another_job_takes_nothing_from_the_view_with_the_slowest_links() -> None:
    problem = Problem(load_profile("llama-7b"), load_cluster("h100-pod"), Job())
    fastest = problem.views[-1]
    larger = replace(fastest, job=Job(micro_batch_size=2))
    assert larger.slower is None
    assert (larger.layer_times.forward_s > fastest.layer_times.forward_s).any()


def test_too_many_classes_are_refused_with_their_number() -> None:
    groups = [
        DeviceGroup(name=f"d{i}", type="t", price_usd_per_hour=i) for i in range(MAX_CLASSES + 1)
    ]
    with pytest.raises(HeterpsError, match=f"{MAX_CLASSES + 1} classes of devices"):
        _ = problem_on(cluster({"a": groups})).classes


@pytest.mark.parametrize(
    ("fields", "usable"),
    [
        ({"kind": "gpu"}, 980),
        ({"kind": "gpu", "fragmentation_share": 0.1}, 900),
        ({"kind": "cpu", "fragmentation_share": 0.1}, 1000),
    ],
)
def test_a_gpu_loses_a_share_of_its_memory_to_fragmentation(
    fields: dict[str, object], usable: int
) -> None:
    kind = device_type("t").changed(memory_bytes=1000, **fields)
    node = Node(name="n", devices=(DeviceGroup(name="a", type="t"),), link=INSIDE)
    assert problem_on(Cluster(name="c", device_types=(kind,), nodes=(node,))).usable_bytes("a") == (
        usable
    )
