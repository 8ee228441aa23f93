"""Replicas that fit by the rule of planners, and not as simulated: their sums need room too."""

from __future__ import annotations

from heterps_configs.documents.cluster import Link
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem

# So much holds all layers on one device; the optimum's two replicas need more than that.
LEAST_BYTES, ENOUGH_BYTES = 24_000, 36_000


def replicas_without_room(memory_bytes: int) -> Problem:
    """Three layers on two devices, whose quickest placement is all of them on each."""
    return chain_problem(
        [8e-4, 1.1e-3, 1.7e-3],
        [8e-4, 2.3e-3, 1.7e-3],
        num_micro_batches=4,
        counts=(2,),
        memory_bytes=(memory_bytes,),
        parameters=[1000] * 3,
        output_bytes=[10.0] * 3,
        optimizer_s=[1e-4, 1.8e-3, 1e-5],
        schedule="gpipe",
        link=Link(latency_s=1e-3, bandwidth_bytes_per_s=1e9),
    )
