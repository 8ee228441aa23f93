"""One training run: its updates, and what happens between them. Imports torch and SB3."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sb3_contrib import MaskablePPO

from heterps_agents.learned.policy import Policy
from heterps_agents.learned.policy_file import finite_or_none
from heterps_agents.training import state as run_state
from heterps_agents.training.clock import Clock
from heterps_agents.training.evaluation import SCORE_WIDTHS, Gap, TestSets
from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.imitation import imitate
from heterps_agents.training.network import StagePolicy
from heterps_agents.training.problems import ProblemSource, refresh
from heterps_agents.training.progress import Milestone, TrainingProgress, reached
from heterps_agents.training.timed_env import TimedVecEnv
from heterps_configs.documents.chain_training import ChainTrainingConfig
from heterps_configs.documents.yaml_files import write_bytes, write_text
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv

CHECKPOINT_FILE, POLICY_FILE, RESULT_FILE = "checkpoint.pt", "policy.npz", "result.json"
IN_RANGE = "in-range"
_FINAL_ENTROPY_SHARE = 0.1
_EXAMPLES_STREAM, _FINAL_IMITATION_SHARE = 1, 0.05


class TrainingResult(NamedTuple):
    """What a training run leaves behind.

    Attributes:
        policy: The trained policy.
        policy_file: Where it was written.
        steps: Environment steps, all runs of the directory together.
        seconds: The same of training time.
        scores: `greedy_gap_median`, `greedy_gap_p95`, `beam16_gap_median`, ... on the held-out
            problems in range; other sets with their names in front: `longer/beam16_gap_median`.
        interrupted: Whether the user stopped it; `resume=True` goes on.
    """

    policy: Policy
    policy_file: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    interrupted: bool


class TrainingRun:
    """A run that updates one step at a time, so that between two updates its state is whole.

    Args:
        config: The run's.
        directory: For checkpoint, curves, policy and result.
        model: Learns.
        env: Its environment.
        source: Of fresh problems.
        optima: Of the environment's problems, to imitate.
        sets: Problems for the gap curves.
        clock: The run's.
        command: How to make this policy again.
        solving_s: CPU seconds that the first problems' optima took: they count as training.
    """

    def __init__(
        self,
        config: ChainTrainingConfig,
        directory: Path,
        model: MaskablePPO,
        env: TimedVecEnv,
        source: ProblemSource,
        optima: OptimalPlacements,
        sets: TestSets,
        clock: Clock,
        command: str,
        solving_s: float = 0.0,
    ) -> None:
        assert isinstance(env.venv, StagePlacementVecEnv)
        self.config, self.directory, self.model = config, directory, model
        self.source, self.optima, self.sets = source, optima, sets
        self.clock, self.command = clock, command
        self._timed, self._env = env, env.venv
        self.milestones: dict[str, Milestone] = {}
        self._cpu_s, self._ppo_cpu_s = solving_s, 0.0
        self._learning_s, self._first_step = 0.0, 0
        self.passes, self._imitation_loss = 0, float("nan")
        self._gap = Gap(*[float("nan")] * 4)
        self._plan_next(clock.seconds)

    def update(self) -> None:
        """One pass of imitation, or one update of PPO, and what is due after that."""
        config, clock, model = self.config, self.clock, self.model
        model.ent_coef = clock.between(
            config.entropy_weight, config.entropy_weight * _FINAL_ENTROPY_SHARE
        )
        cpu_s, start = time.process_time(), time.perf_counter()
        is_imitating = self.passes < config.imitation_passes
        if is_imitating:
            self._imitate()
        else:
            one_update(model)
            clock.steps = model.num_timesteps
            self._refresh(config.refreshed_per_update)
        self._cpu_s += time.process_time() - cpu_s
        if not is_imitating:
            self._ppo_cpu_s += time.process_time() - cpu_s
            self._learning_s += time.perf_counter() - start
            self._record()
        has_imitated = is_imitating and self.passes == config.imitation_passes
        if clock.seconds >= self._next_evaluation_s or clock.is_over or has_imitated:
            self._evaluate()
        if clock.seconds >= self._next_checkpoint_s:
            self.save_checkpoint()
        self._plan_next(clock.seconds)

    def progress(self) -> TrainingProgress:
        """Where the run stands."""
        recent = self.model.ep_info_buffer or ()
        reward = float(np.mean([info["r"] for info in recent])) if recent else float("nan")
        steps, clock = self.model.num_timesteps, self.clock
        return TrainingProgress(
            clock.share, clock.seconds, steps, reward, self._gap.median, self._gap.p95,
            self.passes, self._imitation_loss,
        )  # fmt: skip

    def save_checkpoint(self) -> None:
        """Writes the checkpoint in one move."""
        content = run_state.collect(self.model, self._env, self.source, self.optima)
        content |= {
            "seconds": self.clock.seconds,
            "cpu_s": self._cpu_s,
            "ppo_cpu_s": self._ppo_cpu_s,
            "passes": self.passes,
            "milestones": {name: list(entry) for name, entry in self.milestones.items()},
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        write_bytes(self.directory / CHECKPOINT_FILE, buffer.getvalue())

    def restore(self, checkpoint: run_state.State) -> None:
        """Goes on from what `save_checkpoint` wrote."""
        run_state.restore(checkpoint, self.model, self._env, self.source, self.optima)
        self.clock.steps = self._first_step = self.model.num_timesteps
        self._cpu_s, self.passes = checkpoint["cpu_s"], checkpoint["passes"]
        self._ppo_cpu_s = checkpoint["ppo_cpu_s"]
        self.milestones = {
            name: Milestone(*entry) for name, entry in checkpoint["milestones"].items()
        }

    def finish(self, interrupted: bool) -> TrainingResult:
        """Scores and exports the policy."""
        steps, seconds = self.model.num_timesteps, self.clock.seconds
        policy = network_of(self.model).exported({})
        scores = numbers_of(self.sets.gaps(policy, SCORE_WIDTHS))
        policy.meta.update(
            command=self.command,
            config=self.config.to_mapping(),
            seed=self.config.seed,
            steps=steps,
            seconds=round(seconds, 1),
            cpu_s=round(self._cpu_s, 1),
            ppo_cpu_s=round(self._ppo_cpu_s, 1),
            milestones={name: entry._asdict() for name, entry in self.milestones.items()},
            scores=finite_or_none(scores),
        )
        path = self.directory / POLICY_FILE
        policy.save(path)
        write_text(self.directory / RESULT_FILE, json.dumps(policy.meta, indent=1) + "\n")
        self.model.logger.dump(steps)
        self.model.logger.close()
        return TrainingResult(policy, path, steps, seconds, scores, interrupted)

    def _plan_next(self, now_s: float) -> None:
        """Evaluations and checkpoints are due at multiples of their intervals."""
        config = self.config
        self._next_evaluation_s = _next_multiple(now_s, config.evaluation_every_s)
        self._next_checkpoint_s = _next_multiple(now_s, config.checkpoint_every_s)

    def _imitate(self) -> None:
        config, network = self.config, network_of(self.model)
        if self.passes > 0:
            self._refresh(config.imitation_refreshed)
        # From the number of passes, so that a resumed run draws the same examples.
        rng = np.random.default_rng([config.seed, _EXAMPLES_STREAM, self.passes])
        examples = self.optima.examples(self._env.pool, rng, config.imitation_problems)
        done = self.passes / config.imitation_passes
        for group in network.optimizer.param_groups:
            group["lr"] = config.imitation_learning_rate * (1 - done * (1 - _FINAL_IMITATION_SHARE))
        self._imitation_loss = imitate(network, examples, config.minibatch_size, rng)
        self.passes += 1
        self.model.logger.record("imitation/loss", self._imitation_loss)
        self.model.logger.record("imitation/decisions", len(examples.actions))
        self.model.logger.dump(self.passes)

    def _refresh(self, count: int) -> None:
        used = np.unique(self._env.episodes.rows.problem)
        # From what was done, so that a resumed run chooses the same rows.
        rng = np.random.default_rng([self.config.seed, self.model.num_timesteps, self.passes])
        refresh(self._env.pool, self.optima, self.source, used, count, rng)

    def _record(self) -> None:
        log, seconds = self.model.logger, max(self._learning_s, 1e-9)
        entropy = -log.name_to_value.get("train/entropy_loss", float("nan"))
        log.record("train/entropy", entropy)
        log.record("time/steps_per_second", (self.clock.steps - self._first_step) / seconds)
        log.record("time/environment_share", self._timed.seconds / seconds)
        log.record("time/cpu_seconds", self._cpu_s)
        log.record("pool/shortfall", float(self._env.pool.shortfall.mean()))

    def _evaluate(self) -> None:
        gaps = self.sets.gaps(network_of(self.model).exported({}))
        self._gap = gaps[f"{IN_RANGE}/greedy"]
        reached(gaps, self.milestones, self.clock.steps, self._cpu_s)
        if self.passes < self.config.imitation_passes:
            return  # Curves begin where imitation ends.
        for name, value in numbers_of(gaps).items():
            # TensorBoard groups by the first word.
            self.model.logger.record(name if "/" in name else f"placement/{name}", value)


def numbers_of(gaps: Mapping[str, Gap]) -> dict[str, float]:
    """Gaps by the names that curves, tables and model cards use, see `TrainingResult.scores`."""
    numbers: dict[str, float] = {}
    for curve, gap in gaps.items():
        key = curve.removeprefix(f"{IN_RANGE}/")
        for field, value in gap._asdict().items():
            numbers[f"{key}_gap_{field}" if field != "solved" else f"{key}_solved"] = value
    return numbers


def one_update(model: MaskablePPO) -> None:
    """One batch of steps and the update after it."""
    assert model.env is not None
    model.learn(model.n_steps * model.env.num_envs, reset_num_timesteps=False)


def network_of(model: MaskablePPO) -> StagePolicy:
    """The policy of a model as what it is."""
    assert isinstance(model.policy, StagePolicy)
    return model.policy


def _next_multiple(now_s: float, every_s: float) -> float:
    return (now_s // every_s + 1) * every_s
