"""Elastic chains for tests: drawn ones, and brute force over all of their plans."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from heterps_agents.systems.heterps.elastic_chain import ElasticChain, ElasticPlan, plan_of
from heterps_agents.systems.heterps.provisioning import AmdahlStage
from heterps_envs.closed_form.placement import PlacedStage


def fixed_stages(stages: Sequence[AmdahlStage]) -> ElasticChain:
    """One layer for each stage, which only one class can run; free links."""
    size = len(stages)
    fixed = np.full((size, size), np.inf)
    shared = np.zeros((size, size))
    for index, stage in enumerate(stages):
        fixed[index, index] = stage.compute_s * (1 - stage.compute_share)
        shared[index, index] = stage.compute_s * stage.compute_share
    return ElasticChain(
        fixed_s=fixed,
        shared_s=shared,
        link_fixed_s=np.zeros((size, size, size)),
        link_shared_s=np.zeros((size, size, size)),
        price_usd_per_hour=np.array([stage.price_usd_per_hour for stage in stages]),
        max_units=np.array([stage.max_units for stage in stages]),
    )


def random_chain(seed: int, layers: int, classes: int, most: int) -> ElasticChain:
    """Amdahl's law, all-reduces (a negative shared part), links, and layers that a class lacks."""
    rng = np.random.default_rng(seed)
    compute = rng.uniform(0.2, 2, (layers, 1)) * rng.uniform(0.3, 3, (layers, classes))
    serial = rng.uniform(0, 0.3)
    reduce_s = rng.uniform(0, 0.3, (layers, 1)) * rng.integers(0, 2)
    fixed = compute * serial + reduce_s
    shared = compute * (1 - serial) - reduce_s
    fixed[rng.random((layers, classes)) < 0.1] = np.inf
    link = rng.uniform(0, 1, (layers, classes, classes)) * rng.choice([0.1, 1.0])
    is_shared = rng.random()
    return ElasticChain(
        fixed_s=fixed,
        shared_s=shared,
        link_fixed_s=link * (1 - is_shared),
        link_shared_s=link * is_shared,
        price_usd_per_hour=rng.uniform(0.1, 4, classes),
        max_units=rng.integers(1, most + 1, classes),
    )


def every_plan(chain: ElasticChain, merges_equal: bool) -> Iterator[ElasticPlan]:
    """All cuts, classes and units."""
    layers, classes = chain.fixed_s.shape
    options = [(kind, k + 1) for kind in range(classes) for k in range(chain.max_units[kind])]
    for cuts in itertools.product([False, True], repeat=layers - 1):
        edges = [0, *(layer + 1 for layer, cut in enumerate(cuts) if cut), layers]
        for choice in itertools.product(options, repeat=len(edges) - 1):
            if merges_equal and any(a[0] == b[0] for a, b in itertools.pairwise(choice)):
                continue
            stages = [
                PlacedStage(first, stop - 1, kind, units)
                for (first, stop), (kind, units) in zip(
                    itertools.pairwise(edges), choice, strict=True
                )
            ]
            yield plan_of(chain, stages)
