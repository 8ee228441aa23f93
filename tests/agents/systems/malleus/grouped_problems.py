"""A problem whose layers groups split, for tests: four equal devices on one node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem

LAYERS = 24
OPEN = Strategy(tensor_parallel=())
# Seconds of a layer's forward pass on a device of a group of so many.
FORWARD_S = {1: 1.0, 2: 0.55, 4: 0.32}
SPLIT = TensorSplit(
    unit="heads", num_units=8, parameters=80, forward_flops=8e12, backward_flops=16e12,
    activation_bytes=60.0, forward_sums=(8.0, 8.0), backward_sums=(8.0,),
)  # fmt: skip


def grouped_problem(
    *, strategy: Strategy = OPEN, degrees: Sequence[int] = (1, 2, 4), **values: Any
) -> Problem:
    """Layers that are alike, measured on groups of some sizes."""
    link = Link(latency_s=1e-3, bandwidth_bytes_per_s=1e6)
    problem = chain_problem(
        [1.0] * LAYERS, [2.0] * LAYERS, parameters=[100] * LAYERS,
        activation_bytes=[80.0] * LAYERS, output_bytes=[8.0] * (LAYERS - 1) + [0.0],
        **{"num_micro_batches": 8, "link": link, "counts": [4], **values},
    )  # fmt: skip
    layers = tuple(
        layer.changed(forward_flops=10e12, backward_flops=20e12, tensor_split=SPLIT)
        for layer in problem.profile.layers
    )
    measured = tuple(
        Measurement(
            device_type="class0", tensor_parallel=degree, micro_batch_size=1,
            forward_s=(FORWARD_S[degree],) * LAYERS,
            backward_s=(2 * FORWARD_S[degree],) * LAYERS,
            optimizer_s=(1e-3 / degree,) * LAYERS,
        )
        for degree in degrees
    )  # fmt: skip
    profile = problem.profile.changed(layers=layers, measurements=measured)
    return replace(problem, profile=profile, strategy=strategy)
