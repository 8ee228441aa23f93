"""Clusters that differ in one thing are clusters, and differ in nothing else."""

from __future__ import annotations

import pytest

from heterps.html_report.changes import changes, price_usd_per_hour
from heterps_configs.library import load_cluster, shipped


@pytest.mark.parametrize("name", sorted(shipped("clusters")))
def test_every_change_of_a_shipped_cluster_is_a_cluster(name: str) -> None:
    cluster = load_cluster(name)
    found = dict(changes(cluster))
    assert found
    for words, changed in found.items():
        assert changed != cluster, words
        more = len(changed.devices) - len(cluster.devices)
        assert (more > 0) == words.startswith("another ")
        assert {device.name for device in cluster.devices} <= {d.name for d in changed.devices}
        if more:
            assert price_usd_per_hour(changed) >= price_usd_per_hour(cluster)


def test_faster_links_are_twice_as_fast_and_more_memory_is_half_as_much_again() -> None:
    cluster = load_cluster("a100-v100-t4")
    found = dict(changes(cluster))
    between = found["links between nodes twice as fast"].inter_node_link
    assert between is not None
    assert cluster.inter_node_link is not None
    assert between.bandwidth_bytes_per_s == 2 * cluster.inter_node_link.bandwidth_bytes_per_s
    larger = found["half as much memory again on each T4"]
    for before, after in zip(cluster.devices, larger.devices, strict=True):
        factor = 1.5 if before.type.name == "T4" else 1
        assert after.memory_bytes == int(factor * before.memory_bytes)
