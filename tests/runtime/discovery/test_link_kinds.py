"""What links carry, beside the shipped kinds and clusters."""

from __future__ import annotations

import pytest

from heterps_configs.documents.link_kinds import shipped_link_kinds
from heterps_configs.library import load_cluster
from heterps_runtime.discovery.link_kinds import network, nvlink, pcie, processes


@pytest.mark.parametrize(
    ("links", "reported", "kind"),
    [
        (18, 26.562, "nvlink4"),  # H100
        (12, 25.0, "nvlink3"),  # A100
        (4, 14.062, "nvlink3-bridge"),  # RTX A6000
        (18, 53.125, "nvlink5"),  # B200
    ],
)
def test_all_nvlinks_of_a_card_carry_what_their_shipped_kind_does(
    links: int, reported: float, kind: str
) -> None:
    link, shipped = nvlink(links, reported), shipped_link_kinds()[kind]
    assert link.bandwidth_bytes_per_s == pytest.approx(shipped.bandwidth_bytes_per_s)
    assert link.latency_s == shipped.latency_s
    assert not link.is_assumed
    assert kind in link.note


def test_fewer_nvlinks_carry_their_part() -> None:
    assert nvlink(9, 26.562).bandwidth_bytes_per_s == pytest.approx(
        nvlink(18, 26.562).bandwidth_bytes_per_s / 2, rel=0.01
    )


def test_nvlinks_of_no_known_kind_are_counted_as_reported() -> None:
    old, known = nvlink(2, 33.0), nvlink(2, 25.781)
    expected = 33.0 / 25.0 * known.bandwidth_bytes_per_s
    assert old.bandwidth_bytes_per_s == pytest.approx(expected, rel=0.01)


def test_nvlinks_of_unknown_speed_are_assumed() -> None:
    assert nvlink(4, None).is_assumed


@pytest.mark.parametrize("generation", [3, 4, 5])
def test_sixteen_lanes_of_pcie_carry_what_their_shipped_kind_does(generation: int) -> None:
    found = pcie(generation, 16, "PIX").bandwidth_bytes_per_s
    shipped = shipped_link_kinds()[f"pcie{generation}"].bandwidth_bytes_per_s
    assert found == pytest.approx(shipped, rel=0.01)
    assert pcie(generation, 8, "PIX").bandwidth_bytes_per_s == pytest.approx(found / 2, rel=0.01)


def test_pcie_of_unknown_speed_is_assumed() -> None:
    link = pcie(None, 16, "")
    assert link.is_assumed
    assert "assumed" in link.note


@pytest.mark.parametrize(
    ("family", "rate", "kind"),
    [
        ("ethernet", 25, "ethernet-25"),
        ("ethernet", 100, "ethernet-100"),
        ("infiniband", 200, "infiniband-hdr"),
        ("infiniband", 400, "infiniband-ndr"),
    ],
)
def test_networks_carry_what_their_shipped_kind_does(family: str, rate: int, kind: str) -> None:
    link = network(family, rate)  # type: ignore[arg-type]
    assert link.bandwidth_bytes_per_s == shipped_link_kinds()[kind].bandwidth_bytes_per_s
    assert kind in link.note


def test_networks_of_no_shipped_rate_have_the_share_of_their_family() -> None:
    assert 0.8 * 50e9 / 8 < network("ethernet", 50).bandwidth_bytes_per_s < 50e9 / 8
    assert 0.8 * 800e9 / 8 < network("infiniband", 800).bandwidth_bytes_per_s < 800e9 / 8


def test_a_network_of_unknown_speed_is_assumed() -> None:
    assert network("ethernet", None).is_assumed


def test_processes_are_as_in_the_shipped_cluster() -> None:
    local = load_cluster("local-emulated").nodes[0].link
    assert local is not None
    assert processes().latency_s == local.latency_s
    assert processes().bandwidth_bytes_per_s == local.bandwidth_bytes_per_s
