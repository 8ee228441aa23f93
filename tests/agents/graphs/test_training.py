"""Training of policies for graphs: it learns, resumes exactly, and says what is wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.graphs.decode import Rollouts
from heterps_agents.graphs.network import GraphScorer
from heterps_agents.graphs.rollouts import STUCK_REWARD, collect, rewards
from heterps_agents.graphs.training import (
    GraphTrainingProgress,
    GraphTrainingResult,
    clipped_loss,
    train_graphs,
)
from heterps_configs.documents.graph_training import GraphTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.problem_sets.graphs import generate_graphs

Trained = tuple[GraphTrainingResult, Path, list[GraphTrainingProgress]]

TINY = GraphTrainingConfig(
    problems="graphs",
    total_steps=600,
    nodes=(8, 12),
    devices=(2, 3),
    first_nodes=10,
    hidden=16,
    node_width=8,
    message_rounds=1,
    problems_per_update=5,
    rollouts=4,
    minibatch_size=64,
    polish_evaluations=50,
    evaluation_problems=4,
    evaluation_every_s=0.001,
    checkpoint_every_s=0.001,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("run")
    seen: list[GraphTrainingProgress] = []
    return train_graphs(TINY, folder, progress=seen.append, command="heterps train x"), folder, seen


def test_a_run_leaves_policy_scores_and_curves(trained: Trained) -> None:
    result, folder, seen = trained
    assert result.steps >= 600
    assert seen[-1].share == 1.0
    assert not result.interrupted
    assert result.policy.meta["command"] == "heterps train x"
    assert 0 < result.scores["samples16_mean"] <= result.scores["greedy_mean"]
    curves = EventAccumulator(str(folder))
    curves.Reload()
    tags = set(curves.Tags()["scalars"])
    assert {"held_out/samples16_mean", "placement/reward", "train/entropy"} <= tags


def test_a_resumed_run_ends_with_the_same_weights(trained: Trained, tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"

    def stop(state: GraphTrainingProgress) -> None:
        if state.steps >= 250:
            raise KeyboardInterrupt

    assert train_graphs(TINY, stopped, progress=stop).interrupted
    resumed = train_graphs(TINY, stopped, resume=True)
    assert not resumed.interrupted
    for name, value in trained[0].policy.weights.items():
        np.testing.assert_array_equal(resumed.policy.weights[name], value)


def test_directories_of_other_runs_are_refused(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="resume it or name another"):
        train_graphs(TINY, trained[1])
    with pytest.raises(HeterpsError, match="no checkpoint"):
        train_graphs(TINY, tmp_path, resume=True)
    with pytest.raises(HeterpsError, match="hidden 16, not 32"):
        train_graphs(TINY.changed(hidden=32), trained[1], resume=True)


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


def test_the_clipped_loss_stops_pushing_beyond_its_range() -> None:
    old, advantage = torch.zeros(1), torch.ones(1)
    for log_ratio, gradient in ((0.1, True), (0.5, False)):
        new = torch.tensor([log_ratio], requires_grad=True)
        clipped_loss(new, old, advantage, 0.2).backward()  # type: ignore[no-untyped-call]
        assert new.grad is not None
        assert bool(new.grad.abs() > 0) == gradient
