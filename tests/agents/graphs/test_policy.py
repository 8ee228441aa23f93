"""The policy for graphs: the same in torch, in NumPy and compiled; files; what it may choose."""

from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_agents.graphs.decode import GraphDecoder, scaled_node_features
from heterps_agents.graphs.network import GraphBatch, GraphScorer
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.graphs.rollout_kernels import empty_record
from heterps_agents.graphs.rollouts import graph_batch
from heterps_configs.errors import HeterpsError
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graphs import generate_graphs


@pytest.fixture(scope="module")
def pool() -> GraphPool:
    return GraphPool.from_tables(generate_graphs(3, seed=5, nodes=(12, 30), devices=(2, 4)))


@pytest.fixture(scope="module")
def scorer() -> GraphScorer:
    torch.manual_seed(0)
    return GraphScorer(hidden=24, node_width=16, message_rounds=2)


def test_torch_numpy_and_compiled_rollouts_agree(pool: GraphPool, scorer: GraphScorer) -> None:
    policy = scorer.exported({})
    for problem in range(3):
        decoder = GraphDecoder(policy, pool, problem)
        record = empty_record(decoder.num_nodes, 5, pool.problems.max_devices)
        decoder.roll_out(np.ones(5), np.random.default_rng(0), record)
        ends = pool.producer_edges(problem)
        features = scaled_node_features(pool, problem)
        graph = GraphBatch(*map(torch.from_numpy, (features, *ends)))
        embeddings = scorer.embeddings(graph)
        np.testing.assert_allclose(
            policy.embeddings(features, *ends), embeddings.detach().numpy(), atol=1e-5
        )
        for node in range(decoder.num_nodes):
            taken = record.action[node] >= 0
            candidates, state = record.candidates[node][taken], record.state[node][taken]
            allowed, action = record.allowed[node][taken], record.action[node][taken]
            at_node = embeddings[node][None].expand(len(action), -1)
            in_torch = scorer(*map(torch.from_numpy, (candidates, state, allowed)), at_node)
            in_numpy = policy.log_probabilities(
                candidates, state, allowed, at_node.detach().numpy()
            )
            np.testing.assert_allclose(
                in_numpy[allowed], in_torch.detach().numpy()[allowed], atol=1e-5
            )
            chosen = np.take_along_axis(in_numpy, action[:, None], 1)[:, 0]
            np.testing.assert_allclose(record.log_probability[node][taken], chosen, atol=1e-5)
            assert (in_numpy[~allowed] == -np.inf).all()


def test_rollouts_report_what_the_simulator_says(pool: GraphPool, scorer: GraphScorer) -> None:
    tables = generate_graphs(3, seed=5, nodes=(12, 30), devices=(2, 4))
    for problem, entry in enumerate(tables):
        decoder = GraphDecoder(scorer.exported({}), pool, problem)
        found = decoder.samples(6, np.random.default_rng(1))
        for devices, step_time_s in zip(found.devices, found.step_time_s, strict=True):
            if np.isfinite(step_time_s):
                run = simulate_graph(entry, devices)
                assert run.fits
                assert run.step_time_s == pytest.approx(step_time_s)


def test_greedy_placements_take_the_most_probable_device(
    pool: GraphPool, scorer: GraphScorer
) -> None:
    policy = scorer.exported({})
    decoder = GraphDecoder(policy, pool)
    record = empty_record(decoder.num_nodes, 1, pool.problems.max_devices)
    decoder.roll_out(np.zeros(1), np.random.default_rng(0), record)
    embeddings = policy.embeddings(decoder.node_features, *pool.producer_edges(0))
    for node in range(decoder.num_nodes):
        scores = policy.log_probabilities(
            record.candidates[node], record.state[node], record.allowed[node], embeddings[[node]]
        )
        assert scores[0].argmax() == record.action[node, 0]


def test_given_placements_are_followed(pool: GraphPool, scorer: GraphScorer) -> None:
    decoder = GraphDecoder(scorer.exported({}), pool)
    given = pool.reference[:1, : decoder.num_nodes]
    found = decoder.roll_out(np.ones(2), np.random.default_rng(0), given=given)
    np.testing.assert_array_equal(found.devices[0], given[0])
    assert found.step_time_s[0] == pytest.approx(float(pool.reference_s[0]))


def test_samples_of_equal_seeds_are_equal(pool: GraphPool, scorer: GraphScorer) -> None:
    decoder = GraphDecoder(scorer.exported({}), pool, 1)
    one, other = (decoder.samples(4, np.random.default_rng(7)).devices for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_a_batch_of_graphs_is_embedded_as_each_alone(pool: GraphPool, scorer: GraphScorer) -> None:
    policy = scorer.exported({})
    together = scorer.embeddings(graph_batch(pool)).detach().numpy()
    alone = [
        policy.embeddings(scaled_node_features(pool, problem), *pool.producer_edges(problem))
        for problem in range(3)
    ]
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


def test_a_policy_survives_its_file(tmp_path: Path, scorer: GraphScorer) -> None:
    policy = scorer.exported({"seed": 3})
    policy.save(tmp_path / "mine.npz")
    again = GraphPolicy.load(tmp_path / "mine.npz")
    assert again.meta["seed"] == 3
    assert (again.hidden, again.node_width, again.message_rounds) == (24, 16, 2)
    other = GraphScorer(hidden=24, node_width=16, message_rounds=2)
    other.imported(again)
    for name, value in scorer.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value)


def test_other_files_are_refused_with_one_message(tmp_path: Path, scorer: GraphScorer) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(HeterpsError, match="is not a policy"):
        GraphPolicy.load(tmp_path / "text.npz")
    with pytest.raises(HeterpsError, match="chains of layers"):
        GraphPolicy.load("generalist")
    policy = scorer.exported({})
    policy.save(tmp_path / "old.npz")
    content = dict(np.load(tmp_path / "old.npz"))
    meta = str(content.pop("meta")).replace('"feature_version": ', '"feature_version": 99')
    np.savez(tmp_path / "old.npz", meta=np.array(meta), **content)
    with pytest.raises(HeterpsError, match="train it again"):
        GraphPolicy.load(tmp_path / "old.npz")
