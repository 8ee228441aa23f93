"""From what hosts print to a cluster that the loader takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heterps_configs.documents.cluster import Cluster, Link
from heterps_configs.documents.device import device_type_named
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster
from heterps_runtime.discovery.discover import described, discover
from tests.runtime.discovery.recorded import (
    DGX1_TOPOLOGY,
    ROCM,
    ROCM_TOPOLOGY,
    all_to_all,
    answer,
    h100_answer,
    in_pairs,
    nvlinks,
    queried,
)


def types_of(cluster: Cluster) -> list[str]:
    return [device.type.name for device in cluster.devices]


def test_eight_h100_on_a_switch_are_one_group_with_nvlink() -> None:
    found = described([h100_answer()])
    (node,) = found.cluster.nodes
    (group,) = node.devices
    assert (node.name, group.type, group.count) == ("h100-1", "H100-80G", 8)
    assert group.memory_bytes is None, "the catalogue's size leaves room for the context"
    assert node.link == Link(latency_s=1.51e-5, bandwidth_bytes_per_s=339e9)
    assert "nvlink4, NV18" in found.text
    assert "112 cores" in found.text
    assert "cpu-socket, count: 2" in found.text, "the processors stand there as a comment"


def test_bridges_in_pairs_give_the_slowest_link_and_a_remark() -> None:
    found = described(
        [
            answer(
                nvidia=queried("NVIDIA A100-SXM4-40GB", 40960, 4),
                nvidia_topology=in_pairs(4, "NV12", "SYS"),
                nvidia_nvlink=nvlinks("NVIDIA A100-SXM4-40GB", 4, 12, "25"),
            )
        ]
    )
    link = found.cluster.nodes[0].link
    assert link is not None
    assert link.bandwidth_bytes_per_s == 21.4e9
    assert any("2 of 6 pairs of GPUs (0-1, 2-3)" in text for text in found.draft.remarks)
    assert any("186 GB/s" in text for text in found.draft.remarks)


def test_a_cube_of_nvlinks_is_as_fast_as_its_way_through_the_sockets() -> None:
    found = described(
        [
            answer(
                nvidia=queried("Tesla V100-SXM2-16GB", 16160, 8, pcie="3, 16"),
                nvidia_topology=DGX1_TOPOLOGY,
                nvidia_nvlink=nvlinks("Tesla V100-SXM2-16GB", 8, 6, "25.781"),
            )
        ]
    )
    assert types_of(found.cluster) == ["V100-16G"] * 8
    link = found.cluster.nodes[0].link
    assert link is not None
    assert link.bandwidth_bytes_per_s == 10.7e9
    assert any("16 of 28 pairs" in text and "39.9 GB/s" in text for text in found.draft.remarks)


def test_two_different_cards_keep_their_order_and_ask_for_cudas() -> None:
    cards = queried("Tesla T4", 15360, 1, pcie="3, 8") + "\n"
    cards += queried("NVIDIA GeForce RTX 4090", 24564, 1, first=1)
    found = described([answer(nvidia=cards, nvidia_topology=all_to_all(2, "PHB"))])
    assert types_of(found.cluster) == ["T4", "RTX-4090"]
    link = found.cluster.nodes[0].link
    assert link is not None
    assert link.bandwidth_bytes_per_s == 5.35e9, "of the slower card: PCIe 3 x8"
    assert any("CUDA_DEVICE_ORDER=PCI_BUS_ID" in text for text in found.draft.remarks)


def test_equal_cards_that_are_no_neighbours_are_two_groups() -> None:
    cards = [queried(name, size, 1, first=index) for index, (name, size) in enumerate(
        [("Tesla T4", 15360), ("NVIDIA L4", 23034), ("Tesla T4", 15360)]
    )]  # fmt: skip
    found = described([answer(nvidia="\n".join(cards), nvidia_topology=all_to_all(3, "SYS"))])
    assert types_of(found.cluster) == ["T4", "L4", "T4"]


def test_a_card_that_nobody_knows_is_a_type_of_its_own_that_says_what_is_assumed() -> None:
    found = described([answer(nvidia=queried("NVIDIA Imaginary X9000", 49140, 2))])
    (own,) = found.cluster.device_types
    assert own.name == "Imaginary-X9000"
    assert own.memory_bytes == int(0.95 * 49140 * 2**20)
    assert own.host_bandwidth_bytes_per_s == 0.8 * 31.5e9
    assert own.specification_source.startswith("assumed as ")
    like = device_type_named(own.specification_source.split()[2].strip(","))
    assert own.peak_flops_per_s == like.peak_flops_per_s
    assert found.text.count("# ASSUMED") == 2 + len(like.peak_flops_per_s)
    assert any("fill in type Imaginary-X9000" in text for text in found.draft.remarks)


def test_memory_that_ecc_takes_is_not_promised() -> None:
    found = described([answer(nvidia=queried("Tesla T4", 15079, 1))])
    (device,) = found.cluster.devices
    assert device.type.name == "T4"
    assert device.memory_bytes == int(0.95 * 15079 * 2**20)


def test_a_host_without_gpus_has_a_process_for_each_core() -> None:
    found = described([answer()])
    (group,) = found.cluster.nodes[0].devices
    assert (group.type, group.count) == ("host-cpu", 4)
    assert group.memory_bytes == 16384000 * 1024 // 4
    assert any(text.startswith("no GPU on node-1") for text in found.draft.remarks)


def test_a_host_with_one_core_needs_no_link() -> None:
    found = described([answer(affinity="Cpus_allowed_list:\t2")])
    assert len(found.cluster.devices) == 1
    assert found.cluster.nodes[0].link is None


def test_amd_cards_are_found_with_their_memory_and_links() -> None:
    found = described([answer(amd=ROCM, amd_topology=ROCM_TOPOLOGY)])
    assert len(found.cluster.devices) == 2
    assert "AMD Instinct MI300X" in found.text
    link = found.cluster.nodes[0].link
    assert link is not None
    assert link.bandwidth_bytes_per_s == 37.7e9


def test_hosts_with_infiniband_are_linked_by_one_port() -> None:
    found = described([h100_answer("a", "h100-1"), h100_answer("b", "h100-2")], "pod")
    assert found.cluster.name == "pod"
    assert [node.name for node in found.cluster.nodes] == ["h100-1", "h100-2"]
    assert len({device.name for device in found.cluster.devices}) == 16
    assert found.cluster.inter_node_link == Link(latency_s=4.25e-5, bandwidth_bytes_per_s=47e9)
    assert "infiniband-ndr, 400 Gbit/s" in found.text


def test_pairs_of_hosts_with_a_faster_network_are_exceptions() -> None:
    found = described(
        [h100_answer("a", "h100-1"), h100_answer("b", "h100-2"), answer("c", boot="another")]
    )
    assert found.cluster.inter_node_link == Link(latency_s=9.74e-5, bandwidth_bytes_per_s=2.88e9)
    (override,) = found.cluster.link_overrides
    assert override.between == ("h100-1", "h100-2")
    assert override.link.bandwidth_bytes_per_s == 47e9


def test_an_unknown_network_is_assumed_and_said() -> None:
    silent = "eth0 type=1 state=up speed=-1"
    found = described([answer("a", interfaces=silent), answer("b", interfaces="")])
    assert found.cluster.inter_node_link == Link(latency_s=9.74e-5, bandwidth_bytes_per_s=1.15e9)
    assert any("no speed is reported" in text for text in found.draft.remarks)


def test_hosts_of_one_name_are_called_as_the_user_does_and_one_machine_is_noticed() -> None:
    found = described([answer("user@first"), answer("second")])
    assert [node.name for node in found.cluster.nodes] == ["user@first", "second"]
    assert any("user@first, second are one machine" in text for text in found.draft.remarks)


def test_processors_that_differ_are_said_to_count_as_equal() -> None:
    other = answer(
        "b", host="node-2\nLinux", lscpu="", processors="model name\t: Old Xeon", boot="x"
    )
    found = described([answer("a"), other])
    assert any("count as equally fast" in text for text in found.draft.remarks)


def test_a_host_of_another_system_is_refused() -> None:
    with pytest.raises(HeterpsError, match="localhost: runs Darwin; only Linux is described"):
        described([answer(host="mac\nDarwin")])


def test_names_of_hosts_cannot_leave_their_place_in_the_file() -> None:
    found = described([answer(host="x} - evil: [\nLinux", nvidia=queried("a: {b} #c", 16000, 1))])
    assert found.cluster.nodes[0].name == "this-machine"
    assert "a: {b} #c" in found.text


def test_this_machine_is_described_without_torch(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    script = (
        "import sys; sys.modules['torch'] = None; from pathlib import Path\n"
        "from heterps_runtime.discovery.discover import discover\n"
        "Path(sys.argv[1]).write_text(discover().text)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True)
    assert load_cluster(str(path)).to_mapping() == discover().cluster.to_mapping()
