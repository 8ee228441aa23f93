"""Clusters: devices, links, and every way to get the file wrong."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from heterps_configs.documents.cluster import Cluster, Link
from heterps_configs.errors import DocumentError, UnknownNameError
from heterps_configs.library import load_cluster

LINK = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}


def cluster_data(*devices: Any, **fields: Any) -> dict[str, Any]:
    node = {"name": "node", "devices": list(devices) or [{"name": "gpu", "type": "T4"}]}
    return {"name": "mine", "nodes": [{**node, "link": LINK}], **fields}


def problems_of(data: Any) -> tuple[str, ...]:
    with pytest.raises(DocumentError) as caught:
        Cluster.from_mapping(data, "mine.yaml")
    assert str(caught.value).startswith("mine.yaml: ")
    return caught.value.problems


def test_a_group_of_one_keeps_its_name_and_a_larger_one_is_numbered() -> None:
    cluster = Cluster.from_mapping(
        cluster_data({"name": "gpu", "type": "T4"}, {"name": "old", "type": "P100", "count": 2})
    )
    assert [device.name for device in cluster.devices] == ["gpu", "old-0", "old-1"]
    assert [device.type.name for device in cluster.devices] == ["T4", "P100", "P100"]


def test_a_group_overrides_memory_and_price_of_its_type() -> None:
    (device,) = Cluster.from_mapping(
        cluster_data({"name": "g", "type": "T4", "memory_bytes": 8e9, "price_usd_per_hour": 0})
    ).devices
    assert (device.memory_bytes, device.price_usd_per_hour) == (8_000_000_000, 0)
    assert device.type.memory_bytes == 16_000_000_000


def test_a_type_of_the_file_wins_over_the_catalogue() -> None:
    own = {
        "name": "T4",
        "memory_bytes": 1,
        "peak_flops_per_s": {"float32": 1},
        "memory_bandwidth_bytes_per_s": 1,
        "price_usd_per_hour": 1,
    }
    (device,) = Cluster.from_mapping(cluster_data(device_types=[own])).devices
    assert device.memory_bytes == 1


def test_a_message_takes_latency_and_its_share_of_the_bandwidth() -> None:
    assert Link(latency_s=0.5, bandwidth_bytes_per_s=10).transfer_s(20) == 2.5


def test_links_go_from_the_node_outwards() -> None:
    cluster = load_cluster("spot-two-regions")
    device = {entry.name: entry for entry in cluster.devices}
    inside = cluster.link(device["us-t4-0"], device["us-t4-1"])
    between_nodes = cluster.link(device["us-t4-0"], device["us-a10g-0"])
    between_regions = cluster.link(device["us-t4-0"], device["eu-t4-0"])
    assert inside.bandwidth_bytes_per_s == 12e9
    assert between_nodes == cluster.inter_node_link
    assert between_regions == cluster.inter_region_link


def test_an_override_of_a_link_holds_in_both_directions() -> None:
    data = load_cluster("a100-v100").to_mapping()
    fast = {"latency_s": 0.0, "bandwidth_bytes_per_s": 7e9}
    data["link_overrides"] = [{"between": ["v100-node", "a100-node"], "link": fast}]
    cluster = Cluster.from_mapping(data)
    first, last = cluster.devices[0], cluster.devices[-1]
    assert cluster.link(first, last) == cluster.link(last, first) == Link(**fast)


def test_a_cluster_cannot_be_changed() -> None:
    cluster = load_cluster("gpu-cpu")
    with pytest.raises(ValidationError, match="frozen"):
        cluster.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("device", "problem"),
    [
        (
            {"name": "g", "type": "T4", "memory_bytes": "40GB"},
            "nodes.0.devices.0.memory_bytes: must be a plain whole number of bytes, "
            "such as 40e9, got '40GB'",
        ),
        (
            {"name": "g", "type": "T4", "price_usd_per_hour": "3 USD"},
            "nodes.0.devices.0.price_usd_per_hour: must be a plain number of US dollars per hour, "
            "such as 2.5, got '3 USD'",
        ),
        (
            {"name": "g", "type": "T4", "count": -2},
            "nodes.0.devices.0.count: must be at least 1, got -2",
        ),
        (
            {"name": "g", "type": "T4", "count": 16_000_000_000},
            "nodes.0.devices.0.count: must be at most 4096, got 16000000000",
        ),
        (
            {"name": "g", "type": "T4", "count": "two"},
            "nodes.0.devices.0.count: must be a whole number, got 'two'",
        ),
        (
            {"name": "g", "type": "T4", "memory_gb": 40},
            "nodes.0.devices.0.memory_gb: unknown field; did you mean 'memory_bytes'?",
        ),
        (
            {"name": "g", "type": "T4", "zone": 1},
            "nodes.0.devices.0.zone: unknown field; known: "
            "name, type, count, memory_bytes, price_usd_per_hour",
        ),
        ({"name": "g"}, "nodes.0.devices.0.type: is missing"),
        (
            {"name": "", "type": "T4"},
            "nodes.0.devices.0.name: needs at least 1 character",
        ),
        (
            {"name": "a->b", "type": "T4"},
            "nodes.0.devices.0.name: must have no '->', which stands between names of devices, "
            "got 'a->b'",
        ),
        (
            {"name": "a,b", "type": "T4"},
            "nodes.0.devices.0.name: must have no ',', which stands between names of devices, "
            "got 'a,b'",
        ),
        (
            "T4",
            "nodes.0.devices.0: must be a mapping with "
            "name, type, count, memory_bytes, price_usd_per_hour, got 'T4'",
        ),
        (
            {"name": "g", "type": "A100-40GB"},
            "nodes.0.devices.0.type: unknown device type 'A100-40GB'; "
            "did you mean A100-40G, A100-80G, A100-40G-PCIe?",
        ),
    ],
)
def test_a_wrong_device_gets_one_line_with_its_path(device: Any, problem: str) -> None:
    assert problems_of(cluster_data(device)) == (problem,)


def test_a_device_name_must_be_unique_over_all_nodes() -> None:
    data = cluster_data(inter_node_link=LINK)
    data["nodes"].append({**data["nodes"][0], "name": "second"})
    assert problems_of(data) == (
        "nodes.1.devices.0.name: the device name 'gpu' is taken by nodes.0.devices.0",
    )


def test_numbered_names_clash_with_written_ones() -> None:
    data = cluster_data({"name": "gpu-1", "type": "T4"}, {"name": "gpu", "type": "T4", "count": 2})
    assert problems_of(data) == (
        "nodes.0.devices.1.name: the device name 'gpu-1' is taken by nodes.0.devices.0",
    )


def test_node_and_type_names_must_be_unique() -> None:
    own = load_cluster("a100-v100").device_type("T4").to_mapping()
    data = cluster_data(device_types=[own, own], inter_node_link=LINK)
    data["nodes"].append({**data["nodes"][0], "devices": [{"name": "b", "type": "T4"}]})
    assert problems_of(data) == (
        "device_types.1.name: 'T4' is taken by device_types.0",
        "nodes.1.name: 'node' is taken by nodes.0",
    )


def test_several_nodes_need_a_link_between_them() -> None:
    data = cluster_data()
    data["nodes"].append(
        {**data["nodes"][0], "name": "b", "devices": [{"name": "b", "type": "T4"}]}
    )
    assert problems_of(data) == ("inter_node_link: is needed, because there are several nodes",)


@pytest.mark.parametrize(
    ("between", "problem"),
    [
        (["node", "nod"], "link_overrides.0.between: unknown node 'nod'; did you mean node?"),
        (["node", "node"], "link_overrides.0.between: must name two different nodes"),
        (["node"], "link_overrides.0.between.1: is missing"),
    ],
)
def test_an_override_names_two_nodes_of_the_cluster(between: list[str], problem: str) -> None:
    data = cluster_data(link_overrides=[{"between": between, "link": LINK}])
    assert problems_of(data) == (problem,)


def test_a_link_needs_positive_bandwidth_and_a_latency() -> None:
    data = cluster_data()
    data["nodes"][0]["link"] = {"bandwidth_bytes_per_s": 0}
    assert problems_of(data) == (
        "nodes.0.link.latency_s: is missing; expected a plain number of seconds, such as 1e-4",
        "nodes.0.link.bandwidth_bytes_per_s: must be at least 0.001, got 0",
    )


@pytest.mark.parametrize("value", [float("nan"), "fast", None, [1]])
def test_a_latency_is_a_number(value: object) -> None:
    data = cluster_data()
    data["nodes"][0]["link"] = {**LINK, "latency_s": value}
    (problem,) = problems_of(data)
    assert problem.startswith("nodes.0.link.latency_s: must be ")


def test_all_problems_of_a_file_come_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        """
name: mine
colour: red
device_types:
  - name: own
    memory_bytes: 8GB
    peak_flops_per_s: {float8: 1.0}
    memory_bandwidth_bytes_per_s: 1e11
    price_usd_per_hour: 0
nodes:
  - name: a
    devices:
      - {name: x, type: A100-40G, memory_bytes: 40GB}
      - {name: x, type: own, count: -1}
      - {name: x, type: A100-40}
    link: {latency_s: 1ms, bandwidth_bytes_per_s: 1e9}
  - {name: a, devices: [], link: {latency_s: 0, bandwidth_bytes_per_s: 1e9}}
"""
    )
    with pytest.raises(DocumentError) as caught:
        load_cluster(str(file))
    assert str(caught.value).startswith(f"{file}: ")
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [
        "device_types.0.memory_bytes",
        "device_types.0.peak_flops_per_s.float8",
        "nodes.0.devices.0.memory_bytes",
        "nodes.0.devices.1.count",
        "nodes.0.link.latency_s",
        "nodes.1.devices",
        "colour",
        "nodes.1.name",
        "nodes.0.devices.2.name",
        "nodes.0.devices.2.type",
        "inter_node_link",
    ]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"nodes": 3},
        {"nodes": [3]},
        {"nodes": [{"devices": 3}]},
        {"nodes": [{"name": [1], "devices": [{"name": [], "type": {}, "count": "x"}]}]},
        {"nodes": [], "link_overrides": [{"between": [[], {}]}], "device_types": [None]},
    ],
)
def test_however_broken_a_file_is_the_answer_is_a_document_error(data: Any) -> None:
    assert problems_of(data)


@pytest.mark.parametrize(("content", "found"), [(None, "an empty file"), ([1], "list")])
def test_a_file_must_hold_a_mapping(content: Any, found: str) -> None:
    assert problems_of(content) == (f"expected a mapping of fields, got {found}",)


def test_an_unknown_type_is_refused_in_python_too() -> None:
    with pytest.raises(ValidationError, match="unknown device type 'T5'"):
        Cluster.model_validate(cluster_data({"name": "g", "type": "T5"}))
    with pytest.raises(UnknownNameError, match="did you mean"):
        load_cluster("gpu-cpu").device_type("RTX-4080")


def test_collectives_of_a_node_are_found_by_kind_and_devices_and_stand_there_once() -> None:
    entry = {"kind": "all-reduce", "devices": 2, "latency_s": 0.5, "bandwidth_bytes_per_s": 4.0}
    data = cluster_data()
    plain = Cluster.from_mapping(data)
    assert "collectives" not in plain.to_mapping()["nodes"][0]
    data["nodes"][0]["collectives"] = [entry, {**entry, "kind": "grouped all-gather"}]
    (node,) = Cluster.from_mapping(data).nodes
    assert node.measured("all-reduce", 2) == Link(latency_s=0.5, bandwidth_bytes_per_s=4.0)
    assert node.measured("all-reduce", 3) is None
    data["nodes"][0]["collectives"].append(entry)
    (problem,) = problems_of(data)
    assert problem == "nodes.0.collectives: all-reduce of 2 stands there twice"
