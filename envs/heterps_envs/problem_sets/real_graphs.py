"""Shipped models on the concrete devices of shipped clusters: one training step of a whole batch.

The batch is the largest of `BATCH_SIZES` samples that a simple packing fits into the memory. Pairs
for which none does are left out, by name, and so are clusters of more devices than graphs take.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_cluster, load_profile, shipped
from heterps_envs.graphs.problem import MAX_GRAPH_DEVICES
from heterps_envs.graphs.sources import SourceGraph, graph_of_profile
from heterps_envs.problem_sets.named import GraphCollection, graph_packs

BATCH_SIZES = (32, 8, 1)


@lru_cache(maxsize=1)
def real_graphs() -> GraphCollection:
    """All pairs, in the order of the models' and then the clusters' names; read once."""
    clusters = [load_cluster(name) for name in shipped("clusters")]
    problems, left_out = [], {}
    for model in shipped("models"):
        profile = load_profile(model)
        for cluster in clusters:
            found = _largest_batch(profile, cluster)
            if isinstance(found, str):
                left_out[f"{model} on {cluster.name}"] = found
            else:
                problems.append(found)
    return GraphCollection(tuple(problems), MappingProxyType(left_out))


def _largest_batch(profile: ModelProfile, cluster: Cluster) -> SourceGraph | str:
    """The problem, or why there is none."""
    if len(cluster.devices) > MAX_GRAPH_DEVICES:
        return f"has {len(cluster.devices)} devices, more than {MAX_GRAPH_DEVICES}"
    for size in BATCH_SIZES:
        graph = graph_of_profile(profile, cluster, Job(global_batch_size=size, dtype=profile.dtype))
        if graph_packs(graph.tables):
            return graph
    return "no packing fits, even with one sample"
