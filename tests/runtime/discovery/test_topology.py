"""Ways between cards from matrices."""

from __future__ import annotations

from collections import Counter

from heterps_runtime.discovery.topology import amd_ways, nvidia_ways, nvlink_speeds
from tests.runtime.discovery.recorded import (
    DGX1_TOPOLOGY,
    ROCM_TOPOLOGY,
    all_to_all,
    in_pairs,
    nvlinks,
)


def test_a_switch_has_one_way_between_any_two_cards() -> None:
    ways = nvidia_ways(all_to_all(8, "NV18"))
    assert len(ways) == 28
    assert set(ways.values()) == {"NV18"}


def test_bridges_join_pairs() -> None:
    ways = nvidia_ways(in_pairs(4, "NV12", "SYS"))
    assert [pair for pair, way in ways.items() if way == "NV12"] == [(0, 1), (2, 3)]


def test_the_cube_of_a_dgx_1_has_one_two_or_no_links() -> None:
    assert Counter(nvidia_ways(DGX1_TOPOLOGY).values()) == {"NV1": 8, "NV2": 8, "SYS": 12}


def test_one_card_has_no_ways() -> None:
    assert nvidia_ways(all_to_all(1, "NV18")) == {}


def test_the_slowest_active_link_of_a_card_counts() -> None:
    text = nvlinks("NVIDIA H100 80GB HBM3", 2, 18, "26.562")
    assert nvlink_speeds(text) == {0: 26.562, 1: 26.562}
    assert nvlink_speeds(text + "\n\t Link 1: 20 GB/s") == {0: 26.562, 1: 20.0}
    assert nvlink_speeds("Unable to retrieve NVLink information as all links are inActive") == {}


def test_amd_names_pairs_in_sentences() -> None:
    assert amd_ways(ROCM_TOPOLOGY) == {(0, 1): "XGMI"}
