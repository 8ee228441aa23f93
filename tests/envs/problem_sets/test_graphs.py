"""Random graph problems: sizes as asked, solvable, reproducible, of every family."""

import numpy as np
import pytest

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.graphs.earliest_finish import earliest_finish_placements
from heterps_envs.graphs.problem import EDGES_PER_NODE, pack_graphs
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graph_families import GRAPH_FAMILIES, draw_shape
from heterps_envs.problem_sets.graphs import TIGHT_SHARE, generate_graphs, graphs_fingerprint


@pytest.mark.parametrize("family", GRAPH_FAMILIES)
def test_families_give_connected_graphs_of_the_size_asked_for(family: str) -> None:
    for seed in range(40):
        rng = np.random.default_rng(seed)
        size = int(rng.integers(2, 120))
        shape = draw_shape(family, size, rng)
        assert len(shape.producers) == len(shape.work) == len(shape.output) == size
        for node, producers in enumerate(shape.producers):
            assert producers == sorted(set(producers))
            assert all(0 <= producer < node for producer in producers)
        read = {producer for producers in shape.producers for producer in producers}
        assert read == set(range(size - 1))
        edges = sum(map(len, shape.producers))
        assert edges <= EDGES_PER_NODE * size


def test_problems_have_the_sizes_asked_for_and_a_placement() -> None:
    problems = generate_graphs(150, seed=3, nodes=(10, 40), devices=(2, 7))
    assert {entry.num_devices for entry in problems} == set(range(2, 8))
    step_time_s, devices = earliest_finish_placements(pack_graphs(problems))
    assert np.isfinite(step_time_s).all()
    for index, entry in enumerate(problems):
        assert 10 <= entry.num_nodes <= 40
        run = simulate_graph(entry, devices[index, : entry.num_nodes])
        assert run.step_time_s == step_time_s[index]
    full = [entry.memory_bytes.sum() / entry.device_memory_bytes.sum() for entry in problems]
    assert np.mean(np.array(full) > 0.4) == pytest.approx(TIGHT_SHARE, abs=0.15)
    assert max(full) < 0.86


def test_transfers_between_hosts_share_the_card_of_the_sender() -> None:
    for entry in generate_graphs(30, seed=4):
        size, channel = entry.num_devices, entry.channel
        for source in range(size):
            for target in range(size):
                if channel[source, target] < size:
                    assert channel[source, target] == source
                else:
                    assert (channel[source] >= size).sum() >= 1
                    others = channel[target, channel[target] >= size]
                    assert channel[source, target] not in others


def test_equal_seeds_give_equal_problems_and_longer_lists_extend_shorter_ones() -> None:
    short, long = generate_graphs(3, seed=5), generate_graphs(5, seed=5)
    assert graphs_fingerprint(short) == graphs_fingerprint(long[:3])
    assert graphs_fingerprint(short) != graphs_fingerprint(generate_graphs(3, seed=6))


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown graph family 'unett'; did you mean unet"):
        generate_graphs(1, seed=0, families=("unett",))


def test_empty_ranges_are_told() -> None:
    with pytest.raises(HeterpsError, match=r"^nodes: is \(9, 4\); allowed: two whole numbers"):
        generate_graphs(1, seed=0, nodes=(9, 4))
