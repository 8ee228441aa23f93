"""Trains policies for graphs: PPO with a group baseline, and examples. Imports torch.

heterps train --config graph-generalist
tensorboard --logdir runs/train/graph-generalist

A loop of its own instead of MaskablePPO, because its baseline is the mean of a group of placements
of one problem. Every update draws fresh problems by its number alone, so that a resumed run with a
budget in steps goes on exactly as if it had never stopped.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from stable_baselines3.common.logger import Logger, configure
from torch import Tensor

from heterps_agents.graphs.evaluation import HeldOutGraphs
from heterps_agents.graphs.network import GraphScorer
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.graphs.rollouts import Collected, collect
from heterps_agents.learned.policy_file import finite_or_none
from heterps_agents.training.clock import Clock, Interrupt
from heterps_configs.documents.graph_training import GraphTrainingConfig
from heterps_configs.documents.yaml_files import write_bytes, write_text
from heterps_configs.errors import HeterpsError
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.graphs import draw_graph

logger = logging.getLogger(__name__)

CONFIG_FILE, CHECKPOINT_FILE, POLICY_FILE, RESULT_FILE = (
    "config.yaml",
    "checkpoint.pt",
    "policy.npz",
    "result.json",
)
# At the end of a run, of the weights at its start. Examples teach most while the policy is poor.
_FINAL_ENTROPY_SHARE, _FINAL_EXAMPLE_SHARE = 0.1, 0.1
_LARGEST_GRADIENT = 1.0
# Seeds of one number belong to sets that anybody may draw; training draws with three.
_TRAINING_STREAM, _DRAWS_STREAM = 1, 2


class GraphTrainingProgress(NamedTuple):
    """Where a run stands.

    Attributes:
        share: Of the budget, 0 to 1.
        seconds: Of training.
        steps: Placed nodes.
        reward: Mean log(earliest-finish step time / step time) of the last update's placements.
        step_time_share: Mean of the best of 16 samples' step time over earliest finish, on the
            held-out set, at the last evaluation; nan before.
    """

    share: float
    seconds: float
    steps: int
    reward: float
    step_time_share: float


class GraphTrainingResult(NamedTuple):
    """What a training run leaves behind.

    Attributes:
        policy: The trained policy.
        policy_file: Where it was written.
        steps: Placed nodes, all runs of the directory together.
        seconds: The same of training time.
        scores: See `heterps_agents.graphs.evaluation`.
        interrupted: Whether the user stopped it; `resume=True` goes on.
    """

    policy: GraphPolicy
    policy_file: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    interrupted: bool


def train_graphs(
    config: GraphTrainingConfig,
    run_directory: Path,
    resume: bool = False,
    progress: Callable[[GraphTrainingProgress], None] | None = None,
    command: str = "",
) -> GraphTrainingResult:
    """Trains until a budget of the config is spent, or the user interrupts.

    The directory gets `config.yaml`, TensorBoard events, `checkpoint.pt`, `policy.npz` and
    `result.json`.

    Args:
        config: What to train on and for how long. With `resume` its budgets count from the start
            of the first run.
        run_directory: Made if it does not exist.
        resume: Go on from the checkpoint of the directory.
        progress: Called after every update. If it raises KeyboardInterrupt, the run ends there.
        command: How to make this policy again; stored in it.

    Raises:
        HeterpsError: The directory holds another run (without `resume`) or no checkpoint (with it).
    """
    _check_directory(run_directory, resume, config)
    torch.set_num_threads(config.num_threads)
    run = _Run(config, run_directory, command)
    if resume:
        run.load_checkpoint()
    write_text(run_directory / CONFIG_FILE, config.to_yaml())
    interrupted = _run_updates(run, progress)
    if interrupted:
        logger.warning("interrupted; resume goes on from %s", run_directory / CHECKPOINT_FILE)
    run.save_checkpoint()
    run.log.close()
    return run.finish(interrupted)


def _run_updates(run: _Run, progress: Callable[[GraphTrainingProgress], None] | None) -> bool:
    """Updates until the budget is spent; whether the user stopped it, between two updates."""
    interrupt, clock = Interrupt(), run.clock
    try:
        with interrupt.watched():
            while not clock.is_over and not interrupt.requested:
                reward = run.update()
                state = GraphTrainingProgress(
                    clock.share, clock.seconds, clock.steps, reward, run.step_time_share
                )
                if progress is not None:
                    progress(state)
    except KeyboardInterrupt:
        return True
    return interrupt.requested


class _Run:
    """Network, optimizer, clock and log of one run."""

    def __init__(self, config: GraphTrainingConfig, directory: Path, command: str) -> None:
        self.config, self.directory, self.command = config, directory, command
        torch.manual_seed(config.seed)
        self.scorer = GraphScorer(config.hidden, config.node_width, config.message_rounds)
        self.optimizer = torch.optim.Adam(self.scorer.parameters(), config.learning_rate)
        self.held_out = HeldOutGraphs(config.evaluation_problems)
        self.log: Logger = configure(str(directory), ["tensorboard"])
        self.step_time_share = float("nan")
        self.updates = 0
        # Preparation, compilation included, is not training time.
        collect(self.scorer, self._problems(2), 2, 1, np.random.default_rng(0))
        self._start_clock(0, 0.0)

    def _start_clock(self, steps: int, seconds: float) -> None:
        self.clock = Clock(self.config, spent_s=seconds)
        self.clock.steps = steps
        self._next_evaluation_s = seconds + self.config.evaluation_every_s
        self._next_checkpoint_s = seconds + self.config.checkpoint_every_s

    def update(self) -> float:
        """Collects placements and learns from them; returns their mean reward."""
        config, clock = self.config, self.clock
        collected = collect(
            self.scorer,
            self._problems(config.problems_per_update),
            config.rollouts,
            config.polish_evaluations,
            np.random.default_rng([config.seed, _DRAWS_STREAM, self.updates]),
        )
        for group in self.optimizer.param_groups:
            group["lr"] = clock.between(config.learning_rate, config.final_learning_rate)
        losses = self._learn(collected)
        self.updates += 1
        clock.steps += len(collected.own.action)
        self._record(collected, losses)
        if clock.seconds >= self._next_checkpoint_s:
            self.save_checkpoint()
            self._next_checkpoint_s = clock.seconds + config.checkpoint_every_s
        return collected.reward

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
        entropy_weight = self.clock.between(
            config.entropy_weight, config.entropy_weight * _FINAL_ENTROPY_SHARE
        )
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
                scores = self.scorer(
                    part.candidates, part.state, part.allowed, embeddings[part.node]
                )
                policy_loss = clipped_loss(
                    _chosen(scores, part.action), part.log_probability, part.advantage,
                    config.clip_range,
                )  # fmt: skip
                entropy = -(scores.exp() * scores.clamp(min=-50.0)).sum(dim=1).mean()
                loss = policy_loss - entropy_weight * entropy
                sums["policy_loss"] += policy_loss.item()
                sums["entropy"] += entropy.item()
                if len(example_rows) and example_weight > 0:
                    part = polished.part(example_rows)
                    scores = self.scorer(
                        part.candidates, part.state, part.allowed, embeddings[part.node]
                    )
                    example_loss = -_chosen(scores, part.action).mean()
                    loss = loss + example_weight * example_loss
                    sums["example_loss"] += example_loss.item()
                self.optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.scorer.parameters(), _LARGEST_GRADIENT)
                self.optimizer.step()
        return {name: value / (parts * config.epochs) for name, value in sums.items()}

    def _record(self, collected: Collected, losses: dict[str, float]) -> None:
        clock, log = self.clock, self.log
        for name, value in losses.items():
            log.record(f"train/{name}", value)
        for name in ("reward", "best_reward", "polished_reward", "stuck"):
            log.record(f"placement/{name}", getattr(collected, name))
        log.record("time/steps_per_second", clock.steps / max(clock.seconds, 1e-9))
        if clock.seconds >= self._next_evaluation_s:
            scores = self.held_out.scores(self.scorer.exported({}))
            self.step_time_share = scores["samples16_mean"]
            for name, value in scores.items():
                log.record(f"held_out/{name}", value)
            self._next_evaluation_s = clock.seconds + self.config.evaluation_every_s
        log.dump(clock.steps)

    def save_checkpoint(self) -> None:
        """Writes the checkpoint in one move."""
        buffer = io.BytesIO()
        content = {
            "scorer": self.scorer.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
            "steps": self.clock.steps,
            "seconds": self.clock.seconds,
        }
        torch.save(content, buffer)
        write_bytes(self.directory / CHECKPOINT_FILE, buffer.getvalue())

    def load_checkpoint(self) -> None:
        """Goes on where the directory's checkpoint stands."""
        path = self.directory / CHECKPOINT_FILE
        try:
            content: dict[str, Any] = torch.load(path, weights_only=True)
        except Exception as error:  # torch raises many kinds for a broken file
            raise HeterpsError(f"{path}: is not a checkpoint: {error}") from None
        self.scorer.load_state_dict(content["scorer"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.updates = content["updates"]
        self._start_clock(content["steps"], content["seconds"])

    def finish(self, interrupted: bool) -> GraphTrainingResult:
        """Scores and exports the policy."""
        policy, clock = self.scorer.exported({}), self.clock
        scores = self.held_out.scores(policy)
        policy.meta.update(
            command=self.command,
            config=self.config.to_mapping(),
            seed=self.config.seed,
            steps=clock.steps,
            updates=self.updates,
            seconds=round(clock.seconds, 1),
            scores=finite_or_none(scores),
        )
        path = self.directory / POLICY_FILE
        policy.save(path)
        write_text(self.directory / RESULT_FILE, json.dumps(policy.meta, indent=1) + "\n")
        return GraphTrainingResult(policy, path, clock.steps, clock.seconds, scores, interrupted)


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


def _chosen(scores: Tensor, action: Tensor) -> Tensor:
    return scores.gather(1, action[:, None]).squeeze(1)


def _check_directory(directory: Path, resume: bool, config: GraphTrainingConfig) -> None:
    has_checkpoint = (directory / CHECKPOINT_FILE).is_file()
    if resume and not has_checkpoint:
        raise HeterpsError(f"{directory}: there is no {CHECKPOINT_FILE} to resume from")
    if not resume and has_checkpoint:
        raise HeterpsError(f"{directory}: holds a training run already; resume it or name another")
    if resume:
        before = GraphTrainingConfig.from_file(directory / CONFIG_FILE)
        for name in ("hidden", "node_width", "message_rounds"):
            if getattr(before, name) != getattr(config, name):
                raise HeterpsError(
                    f"{directory}: was trained with {name} {getattr(before, name)}, "
                    f"not {getattr(config, name)}"
                )
