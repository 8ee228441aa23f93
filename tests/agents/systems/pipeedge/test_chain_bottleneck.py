"""The exact split of overlapped chains: brute force, names of devices, memory, PipeEdge's files."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.pipeedge.chain_bottleneck import (
    Chain,
    ChainStage,
    bottleneck_s,
    split_chain,
)
from heterps_agents.systems.pipeedge.problem import chain_of
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.importers.pipeedge import load_problem


def random_chain(seed: int, num_layers: int, counts: tuple[int, ...]) -> Chain:
    """A chain whose memory may be tight and whose links may be slow."""
    rng = np.random.default_rng(seed)
    num_classes = len(counts)
    bandwidth = rng.uniform(0.5, 5, num_classes)
    return Chain(
        seconds=rng.uniform(0.1, 1, (num_layers, num_classes)),
        memory_bytes=rng.uniform(0, 1, num_layers),
        cut_bytes=rng.uniform(0, 1, num_layers + 1),
        buffers=float(rng.integers(0, 2)) / 2,
        counts=np.array(counts, np.int64),
        capacity_bytes=rng.uniform(1, num_layers, num_classes),
        bandwidth_bytes_per_s=np.minimum(bandwidth[:, None], bandwidth[None, :]),
    )


def brute_force(chain: Chain) -> float:
    """The smallest bottleneck over all cuts and all orders of classes."""
    num_layers, num_classes = chain.seconds.shape
    best = float("inf")
    for size in range(1, min(num_layers, int(chain.counts.sum())) + 1):
        for cuts in itertools.combinations(range(1, num_layers), size - 1):
            ends = (*cuts, num_layers)
            for classes in itertools.product(range(num_classes), repeat=size):
                stages = tuple(map(ChainStage, classes, (0, *cuts), ends))
                best = min(best, bottleneck_s(chain, stages))
    return best


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.sampled_from([(1,), (2, 1), (1, 1, 1), (2, 2)]))
def test_no_split_beats_the_answer(seed: int, num_layers: int, counts: tuple[int, ...]) -> None:
    chain = random_chain(seed, num_layers, counts)
    best = brute_force(chain)
    if best == float("inf"):
        with pytest.raises(InfeasibleError, match="no split of the layers fits"):
            split_chain(chain)
    else:
        split = split_chain(chain)
        assert split.bottleneck_s == pytest.approx(best, rel=1e-12)
        assert bottleneck_s(chain, split.stages) == pytest.approx(best, rel=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(3)))
def test_renaming_identical_devices_changes_nothing(seed: int, order: list[int]) -> None:
    """Neither another order of the classes nor a class that is split in two changes the value."""
    chain = random_chain(seed, 6, (2, 1, 2))._replace(capacity_bytes=np.full(3, 100.0))
    expected = split_chain(chain).bottleneck_s
    columns = np.array(order)
    shuffled = chain._replace(
        seconds=chain.seconds[:, columns].copy(),
        counts=chain.counts[columns],
        bandwidth_bytes_per_s=chain.bandwidth_bytes_per_s[np.ix_(columns, columns)].copy(),
    )
    assert split_chain(shuffled).bottleneck_s == expected
    split_in_two = np.array([0, 0, 1, 2])
    renamed = chain._replace(
        seconds=chain.seconds[:, split_in_two].copy(),
        counts=np.array([1, 1, 1, 2]),
        capacity_bytes=np.full(4, 100.0),
        bandwidth_bytes_per_s=chain.bandwidth_bytes_per_s[
            np.ix_(split_in_two, split_in_two)
        ].copy(),
    )
    assert split_chain(renamed).bottleneck_s == expected


def test_of_equal_splits_one_with_the_fewest_devices_is_taken() -> None:
    chain = Chain(
        seconds=np.array([[4.0], [1.0], [1.0], [1.0]]),
        memory_bytes=np.zeros(4),
        cut_bytes=np.zeros(5),
        buffers=0.0,
        counts=np.array([4]),
        capacity_bytes=np.array([1.0]),
        bandwidth_bytes_per_s=np.ones((1, 1)),
    )
    split = split_chain(chain)
    assert (split.bottleneck_s, len(split.stages)) == (4.0, 2)


def test_a_slow_link_is_not_crossed() -> None:
    chain = random_chain(0, 4, (1, 1))._replace(
        cut_bytes=np.full(5, 1000.0), buffers=0.0, capacity_bytes=np.full(2, 100.0)
    )
    split = split_chain(chain)
    assert len(split.stages) == 1
    assert split.bottleneck_s == chain.seconds.sum(axis=0).min()


def test_more_devices_than_layers_take_no_more_memory() -> None:
    """A table over all of them would take 18 GB; a chain of one layer uses one device."""
    chain = random_chain(0, 1, (70, 10, 2, 140, 3, 71))
    split = split_chain(chain._replace(capacity_bytes=np.full(6, 100.0)))
    assert len(split.stages) == 1


def test_a_table_that_is_too_large_is_refused_before_it_is_made() -> None:
    with pytest.raises(HeterpsError, match=r"takes [\d.]+ GiB; at most 1.86 GiB"):
        split_chain(random_chain(0, 2, (2,) * 14))


def test_too_many_combinations_are_refused_with_their_number() -> None:
    chain = random_chain(0, 200, (9,) * 6)
    with pytest.raises(HeterpsError, match=r"takes \d+ steps; at most"):
        split_chain(chain)


@pytest.mark.parametrize(
    ("model", "optimum_s"),
    [("google/vit-base-patch16-224", 1.5488), ("google/vit-large-patch16-224", 5.0428)],
)
def test_published_devices_are_at_the_optimum(model: str, optimum_s: float) -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "pipeedge"
    if not folder.is_dir():
        return
    problem = load_problem(
        folder / "models.yml", folder / "device_types.yml", folder / "devices.yml", model
    )
    assert split_chain(chain_of(problem)).bottleneck_s == pytest.approx(optimum_s, abs=5e-5)
