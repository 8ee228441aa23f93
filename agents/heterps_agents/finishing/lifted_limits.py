"""Problems with one limit lifted: the batch, the links, or the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from heterps_configs.documents.cluster import Cluster, Link
from heterps_configs.documents.numbers import MOST_BYTES_PER_S, MOST_COUNT, MOST_MEMORY_BYTES
from heterps_envs.problem import Problem

Limit = Literal["samples", "links", "memory"]
LIMITS: tuple[Limit, ...] = ("samples", "links", "memory")
# How many times as many samples, bytes a second, bytes.
FACTORS: dict[Limit, int] = {"samples": 4, "links": 1000, "memory": 8}


def lifted(problem: Problem, limit: Limit) -> Problem:
    """The same problem with much more of one thing."""
    factor = FACTORS[limit]
    if limit == "samples":
        job = problem.job
        factor = min(factor, MOST_COUNT // job.global_batch_size)
        return replace(problem, job=job.changed(global_batch_size=factor * job.global_batch_size))
    change = _with_links if limit == "links" else _with_memory
    return replace(problem, cluster=change(problem.cluster, factor))


def _with_links(cluster: Cluster, factor: float) -> Cluster:
    def faster(link: Link | None) -> Link | None:
        if link is None or not link.is_there:
            return link
        bandwidth = min(factor * link.bandwidth_bytes_per_s, MOST_BYTES_PER_S)
        return link.changed(latency_s=link.latency_s / factor, bandwidth_bytes_per_s=bandwidth)

    nodes = tuple(
        node.changed(
            link=faster(node.link),
            reverse_link=faster(node.reverse_link),
            collectives=tuple(
                entry.changed(
                    latency_s=entry.latency_s / factor,
                    bandwidth_bytes_per_s=min(
                        factor * entry.bandwidth_bytes_per_s, MOST_BYTES_PER_S
                    ),
                )
                for entry in node.collectives
            ),
        )
        for node in cluster.nodes
    )
    return cluster.changed(
        nodes=nodes,
        inter_node_link=faster(cluster.inter_node_link),
        inter_region_link=faster(cluster.inter_region_link),
        link_overrides=tuple(
            entry.changed(link=faster(entry.link), reverse_link=faster(entry.reverse_link))
            for entry in cluster.link_overrides
        ),
    )


def _with_memory(cluster: Cluster, factor: int) -> Cluster:
    usual = {group.type for node in cluster.nodes for group in node.devices}
    known = {name: cluster.device_type(name).memory_bytes for name in usual}
    return cluster.changed(
        nodes=tuple(
            node.changed(
                devices=tuple(
                    group.changed(
                        memory_bytes=min(
                            factor * (group.memory_bytes or known[group.type]), MOST_MEMORY_BYTES
                        )
                    )
                    for group in node.devices
                )
            )
            for node in cluster.nodes
        )
    )
