"""What kinds of links carry, beside the shipped clusters and the catalogue."""

from __future__ import annotations

import pytest

from heterps_configs.documents.device import device_type_named
from heterps_configs.library import load_cluster
from heterps_runtime.discovery.link_kinds import network, nvlink, pcie, processes


@pytest.mark.parametrize(
    ("links", "reported", "gigabytes_per_s"),
    [
        (18, 26.562, 450),  # H100
        (12, 25.0, 300),  # A100
        (6, 25.781, 150),  # V100
        (4, 19.375, 80),  # P100
        (4, 14.062, 56.25),  # RTX A6000
        (18, 53.125, 900),  # B200
        (2, 33.0, 66),  # none that is known: as reported
    ],
)
def test_nvlinks_carry_what_data_sheets_say(
    links: int, reported: float, gigabytes_per_s: float
) -> None:
    link = nvlink(links, reported)
    assert link.bandwidth_bytes_per_s == pytest.approx(gigabytes_per_s * 1e9)
    assert not link.is_assumed


def test_nvlinks_of_unknown_speed_are_assumed() -> None:
    assert nvlink(4, None).is_assumed


@pytest.mark.parametrize(("card", "generation"), [("T4", 3), ("A100-40G", 4), ("H100-80G", 5)])
def test_pcie_is_as_fast_as_the_catalogue_says_of_cards(card: str, generation: int) -> None:
    found = pcie(generation, 16, "PIX").bandwidth_bytes_per_s
    assert found == pytest.approx(device_type_named(card).host_bandwidth_bytes_per_s or 0)


def test_pcie_of_unknown_speed_is_assumed() -> None:
    link = pcie(None, 16, "")
    assert link.is_assumed
    assert "assumed" in link.note


def test_networks_and_processes_are_as_in_the_shipped_clusters() -> None:
    pod, mixed = load_cluster("h100-pod"), load_cluster("a100-v100")
    local = load_cluster("local-emulated").nodes[0].link
    for link, shipped in (
        (network("infiniband", 400), pod.inter_node_link),
        (network("ethernet", 25), mixed.inter_node_link),
        (nvlink(18, 26.562), pod.nodes[0].link),
        (processes(), local),
    ):
        assert shipped is not None
        assert link.latency_s == shipped.latency_s
        assert link.bandwidth_bytes_per_s == pytest.approx(shipped.bandwidth_bytes_per_s)
