"""Every shipped model on every shipped cluster, as the default job trains it.

Layers that nobody has measured on a device type have estimated seconds, as in every plan. Pairs in
which the model does not fit into the memory of the cluster are left out, by name.
"""

from __future__ import annotations

from functools import lru_cache

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_cluster, load_profile, shipped
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.named import ChainCollection, NamedChain, collected


@lru_cache(maxsize=1)
def real_chains() -> ChainCollection:
    """All pairs, in the order of the models' and then the clusters' names; read once."""
    clusters = [load_cluster(name) for name in shipped("clusters")]
    profiles = [(name, load_profile(name)) for name in shipped("models")]
    return collected(
        NamedChain(
            f"{name} on {cluster.name}",
            _tables(profile, cluster),
        )
        for name, profile in profiles
        for cluster in clusters
    )


def _tables(profile: ModelProfile, cluster: Cluster) -> CostTables:
    """With a class for each node, as they were frozen."""
    job = Job.from_mapping({"dtype": profile.dtype})
    return Problem(profile, cluster, job, nodes_apart="all").tables
