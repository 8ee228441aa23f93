"""Learns to place graphs: PPO with a group baseline, and examples. Imports torch.

A loop of its own instead of MaskablePPO, because its baseline is the mean of a group of placements
of one problem. Every update draws fresh problems by its number alone, so that a resumed run with a
budget in steps goes on exactly as if it had never stopped.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor

from heterps_agents.graphs.decode import GraphDecoder
from heterps_agents.graphs.evaluation import HeldOutGraphs
from heterps_agents.graphs.network import GraphScorer
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.graphs.rollouts import Collected, Decisions, collect
from heterps_agents.training.clock import Clock
from heterps_agents.training.learner import Learner, State
from heterps_configs.documents.training import GraphTrainingConfig
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.state import RUNNING
from heterps_envs.environments.graph.episodes import GraphEpisodes
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.graphs import draw_graph

# At the end of a run, of the weight at its start. Examples teach most while the policy is poor.
_FINAL_EXAMPLE_SHARE = 0.1
_LARGEST_GRADIENT = 1.0
# Seeds of one number belong to sets that anybody may draw; training draws with three.
_TRAINING_STREAM, _DRAWS_STREAM = 1, 2


class GraphLearner(Learner[GraphTrainingConfig, GraphPolicy]):
    """Network, optimizer and problems of a run on graphs."""

    main_set = "held-out"

    def __init__(self, config: GraphTrainingConfig, clock: Clock, log: Logger) -> None:
        super().__init__(config, clock, log)
        torch.manual_seed(config.seed)
        self.scorer = GraphScorer(config.hidden, config.node_width, config.message_rounds)
        self.optimizer = torch.optim.Adam(self.scorer.parameters(), config.learning_rate)
        self.held_out = HeldOutGraphs(config.evaluation_problems)
        self.updates = 0
        # Loads compiled code.
        collect(self.scorer, self._problems(2), 2, 1, np.random.default_rng(0))

    def update(self) -> None:
        """Collects placements and learns from them."""
        config = self.config
        collected = collect(
            self.scorer,
            self._problems(config.problems_per_update),
            config.rollouts,
            config.polish_evaluations,
            np.random.default_rng([config.seed, _DRAWS_STREAM, self.updates]),
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        losses = self._learn(collected)
        self.updates += 1
        self.clock.steps += len(collected.own.action)
        self.reward = collected.reward
        for name, value in losses.items():
            self.log.record(f"train/{name}", value)
        for name in ("reward", "best_reward", "polished_reward", "stuck"):
            self.log.record(f"placement/{name}", getattr(collected, name))

    def _problems(self, count: int) -> list[GraphTables]:
        """The problems of this update; the largest graphs grow at the start of the run."""
        config = self.config
        share = self.clock.share if self.updates else 0.0
        grown = 1.0 if config.growth_share == 0 else min(1.0, share / config.growth_share)
        most = round(config.first_nodes + (config.nodes[1] - config.first_nodes) * grown)
        first = self.updates * config.problems_per_update
        return [
            draw_graph([config.seed, _TRAINING_STREAM, first + index], (config.nodes[0], most),
                       config.devices)
            for index in range(count)
        ]  # fmt: skip

    def _learn(self, collected: Collected) -> dict[str, float]:
        """Some epochs of PPO and imitation; returns means for the log."""
        config, own, polished = self.config, collected.own, collected.polished
        entropy_weight = self.entropy_weight
        example_weight = self.clock.between(
            config.example_weight, config.example_weight * _FINAL_EXAMPLE_SHARE
        )
        draws = torch.Generator().manual_seed(config.seed * 1_000_003 + self.updates)
        parts = -(-len(own.action) // config.minibatch_size)
        sums = dict.fromkeys(("policy_loss", "example_loss", "entropy"), 0.0)
        for _ in range(config.epochs):
            order = torch.randperm(len(own.action), generator=draws).tensor_split(parts)
            examples = torch.randperm(len(polished.action), generator=draws).tensor_split(parts)
            for rows, example_rows in zip(order, examples, strict=True):
                embeddings = self.scorer.embeddings(collected.graphs)
                part = own.part(rows)
                scores = self._scores(part, embeddings)
                policy_loss = clipped_loss(
                    _chosen(scores, part), part.log_probability, part.advantage, config.clip_range
                )
                entropy = -(scores.exp() * scores.clamp(min=-50.0)).sum(dim=1).mean()
                loss = policy_loss - entropy_weight * entropy
                sums["policy_loss"] += policy_loss.item()
                sums["entropy"] += entropy.item()
                if len(example_rows) and example_weight > 0:
                    part = polished.part(example_rows)
                    example_loss = -_chosen(self._scores(part, embeddings), part).mean()
                    loss = loss + example_weight * example_loss
                    sums["example_loss"] += example_loss.item()
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self.scorer.parameters(), _LARGEST_GRADIENT)
                self.optimizer.step()
        return {name: value / (parts * config.epochs) for name, value in sums.items()}

    def _scores(self, part: Decisions, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.scorer(
            part.candidates, part.state, part.allowed, embeddings[part.node]
        )
        return scores

    def policy(self) -> GraphPolicy:
        """A copy of the network as it is now."""
        return self.scorer.exported({})

    def picture(self) -> Image:
        """The likeliest placement of the first held-out graph."""
        pool, row, rng = self.held_out.pool, np.zeros(1, np.int64), np.random.default_rng(0)
        devices = GraphDecoder(self.policy(), pool, 0).samples(1, rng).devices[0]
        episodes = GraphEpisodes(pool, 1)
        episodes.begin(row, row, pool.draw_limits(rng, row))
        for device in devices:
            if (episodes.rows.status == RUNNING).all() and episodes.view.allowed[0, device]:
                episodes.step(np.array([device]))
        return episodes.image(0)

    def evaluate(self, cpu_s: float) -> dict[str, float]:
        """Curves of the held-out set, see `HeldOutGraphs.scores`."""
        scores = self.scores(self.policy())
        self.score = scores["samples16_mean"]
        return scores

    def scores(self, policy: GraphPolicy) -> dict[str, float]:
        """See `HeldOutGraphs.scores`."""
        return self.held_out.scores(policy)

    def remarks(self) -> dict[str, Any]:
        """How many updates there were."""
        return {"updates": self.updates}

    def state(self) -> State:
        """Network, optimizer, and the number that problems are drawn by."""
        return {
            "scorer": self.scorer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def restore(self, state: State) -> None:
        """Takes over the state of another learner of the same config."""
        self.scorer.load_state_dict(state["scorer"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def clipped_loss(new: Tensor, old: Tensor, advantage: Tensor, clip_range: float) -> Tensor:
    """PPO's clipped objective (Schulman et al., 2017), to be minimised.

    Args:
        new: (M,) log-probabilities of the actions now.
        old: (M,) the same when they were taken.
        advantage: (M,).
        clip_range: Limit on the change of probabilities.
    """
    ratio = (new - old).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -torch.min(ratio * advantage, clipped * advantage).mean()


def _chosen(scores: Tensor, part: Decisions) -> Tensor:
    return scores.gather(1, part.action[:, None]).squeeze(1)
