"""What an update of graph training learns from."""

import numpy as np
import torch

from heterps_agents.graphs.decode import Rollouts
from heterps_agents.graphs.network import GraphScorer
from heterps_agents.graphs.rollouts import STUCK_REWARD, collect, rewards
from heterps_envs.problem_sets.graphs import generate_graphs


def test_advantages_compare_placements_of_one_problem() -> None:
    torch.manual_seed(0)
    tables = generate_graphs(4, seed=1, nodes=(8, 10), devices=(2, 3))
    scorer = GraphScorer(16, 8, 1)
    found = collect(scorer, tables, 4, 100, np.random.default_rng(0))
    own, graphs = found.own, found.graphs
    assert abs(float(own.advantage.mean())) < 1.0
    assert int(own.node.max()) < len(graphs.node_features)
    assert found.polished_reward >= found.best_reward - 1e-9
    assert len(found.polished.action) == sum(entry.num_nodes for entry in tables)
    assert own.allowed.gather(1, own.action[:, None]).all()
    assert found.polished.allowed.gather(1, found.polished.action[:, None]).all()
    scores = scorer(own.candidates, own.state, own.allowed, scorer.embeddings(graphs)[own.node])
    now = scores.gather(1, own.action[:, None]).squeeze(1)
    torch.testing.assert_close(now, own.log_probability, atol=1e-4, rtol=0)


def test_running_out_of_memory_is_worse_than_any_usual_placement() -> None:
    found = Rollouts(
        np.zeros((3, 4), np.int16), np.array([2.0, np.inf, np.inf]), np.array([1.0, 0.75, 0.25])
    )
    complete, later, earlier = rewards(found, earliest_s=2.0)
    assert complete == 0.0
    assert earlier < later < STUCK_REWARD < complete
