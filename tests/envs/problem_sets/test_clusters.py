"""Drawn clusters: the catalogue's figures with noise, links that make sense, repeatable."""

from collections.abc import Callable

import numpy as np
import pytest

from heterps_configs.documents.device import shipped_device_types
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.clusters import DrawnCluster, catalogue_cluster, free_cluster

Draw = Callable[[np.random.Generator, int], DrawnCluster]
SEEDS = range(40)


@pytest.mark.parametrize("num_classes", [1, 2, 7, 12, 16])
@pytest.mark.parametrize("draw", [free_cluster, catalogue_cluster])
def test_figures_are_positive_and_links_are_the_same_both_ways(
    draw: Draw, num_classes: int
) -> None:
    for seed in SEEDS:
        cluster = draw(np.random.default_rng(seed), num_classes)
        for values in cluster[1:5]:
            assert values.shape == (num_classes,)
            assert (values > 0).all()
        for values in cluster[5:]:
            assert values.shape == (num_classes, num_classes)
            assert (values > 0).all()
            np.testing.assert_array_equal(values, values.T)


def test_catalogue_clusters_keep_memories_near_those_of_shipped_types() -> None:
    known = np.array([entry.memory_bytes for entry in shipped_device_types().values()])
    for seed in SEEDS:
        memory = catalogue_cluster(np.random.default_rng(seed), 4).memory_bytes
        nearest = (memory[:, None] / known).clip(max=1).max(axis=1)
        assert (nearest > 0.75).all()
        assert memory.max() <= known.max()


def test_classes_of_one_type_differ_in_links_and_price_only() -> None:
    repeated = 0
    for seed in SEEDS:
        cluster = catalogue_cluster(np.random.default_rng(seed), 6)
        for kind in np.unique(cluster.type_index):
            same = np.flatnonzero(cluster.type_index == kind)
            repeated += len(same) > 1
            assert len(np.unique(cluster.flops_per_s[same])) == 1
            assert len(np.unique(cluster.memory_bytes[same])) == 1
    assert repeated > 5


def test_equal_types_take_equal_seconds() -> None:
    equal = 0
    for tables in generate(60, seed=4, classes=(5, 8)):
        columns = {tuple(column) for column in tables.forward_s.T}
        equal += len(columns) < tables.num_classes
    assert equal > 3
