"""What happens around each PPO update: clock, fresh problems, evaluation, checkpoints, progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback

from heterps_agents.evaluation import HeldOut
from heterps_agents.network import StagePolicy
from heterps_agents.problem_source import ProblemSource, refresh
from heterps_configs.graph_training_config import GraphTrainingConfig
from heterps_configs.training_config import TrainingConfig
from heterps_envs.problem_pool import ProblemPool
from heterps_envs.vector_env import StagePlacementVecEnv

_FINAL_ENTROPY_SHARE = 0.1


class TrainingProgress(NamedTuple):
    """Where a run stands.

    Attributes:
        share: Of the budget, 0 to 1.
        seconds: Of training.
        steps: Environment steps.
        episode_reward: Mean of recent episodes; nan before the first one ends.
        gap_median: Greedy decoding on the held-out set, at the last evaluation; nan before.
        gap_p95: The same.
    """

    share: float
    seconds: float
    steps: int
    episode_reward: float
    gap_median: float
    gap_p95: float


class Clock:
    """Time and steps spent of a config's budgets.

    Args:
        config: Has the budgets.
        spent_s: Seconds of earlier runs.
    """

    def __init__(
        self, config: TrainingConfig | GraphTrainingConfig, spent_s: float = 0.0
    ) -> None:
        self.config, self.steps = config, 0
        self._start = time.perf_counter() - spent_s

    @property
    def seconds(self) -> float:
        """Of training, earlier runs included."""
        return time.perf_counter() - self._start

    @property
    def share(self) -> float:
        """Of the budget that is nearer to its end, 0 to 1."""
        config, share = self.config, 0.0
        if config.budget_s is not None:
            share = self.seconds / config.budget_s
        if config.total_steps is not None:
            share = max(share, self.steps / config.total_steps)
        return min(1.0, share)

    @property
    def is_over(self) -> bool:
        """Nothing is left."""
        return self.share >= 1.0

    def between(self, start: float, end: float) -> float:
        """Linear from `start` to `end` over the budget."""
        return start + (end - start) * self.share


class FineTuningCallback(BaseCallback):
    """Stops when the clock has run out."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def _on_step(self) -> bool:
        self.clock.steps = self.num_timesteps
        return not self.clock.is_over


class TrainingCallback(FineTuningCallback):
    """Everything beside PPO itself.

    Args:
        config: The run's.
        clock: The run's.
        pool: Gets fresh problems after every update.
        source: Of those.
        held: Problems for the gap curves.
        save_checkpoint: Called now and then.
        progress: Called after every update.
    """

    def __init__(
        self,
        config: TrainingConfig,
        clock: Clock,
        pool: ProblemPool,
        source: ProblemSource,
        held: HeldOut,
        save_checkpoint: Callable[[], None],
        progress: Callable[[TrainingProgress], None] | None,
    ) -> None:
        super().__init__(clock)
        self.config, self.pool, self.source, self.held = config, pool, source, held
        self._save_checkpoint, self._progress = save_checkpoint, progress
        self._next_evaluation_s = clock.seconds + config.evaluation_every_s
        self._next_checkpoint_s = clock.seconds + config.checkpoint_every_s
        self._gap = (float("nan"), float("nan"))
        self._rng = np.random.default_rng([config.seed, clock.steps])

    def _on_rollout_end(self) -> None:
        config, clock = self.config, self.clock
        model = self.model
        assert isinstance(model, MaskablePPO)
        model.ent_coef = clock.between(
            config.entropy_weight, config.entropy_weight * _FINAL_ENTROPY_SHARE
        )
        env = self.training_env
        assert isinstance(env, StagePlacementVecEnv)
        used = np.unique(env.episodes.rows.problem)
        refresh(self.pool, self.source, used, config.refreshed_per_update, self._rng)
        if clock.seconds >= self._next_evaluation_s:
            self._evaluate()
            self._next_evaluation_s = clock.seconds + config.evaluation_every_s
        if clock.seconds >= self._next_checkpoint_s:
            self._save_checkpoint()
            self._next_checkpoint_s = clock.seconds + config.checkpoint_every_s
        entropy = -self.logger.name_to_value.get("train/entropy_loss", float("nan"))
        self.logger.record("train/entropy", entropy)
        self.logger.record("time/steps_per_second", self.num_timesteps / max(clock.seconds, 1e-9))
        if self._progress is not None:
            self._progress(
                TrainingProgress(
                    clock.share,
                    clock.seconds,
                    self.num_timesteps,
                    self._episode_reward(),
                    *self._gap,
                )
            )

    def _evaluate(self) -> None:
        assert isinstance(self.model.policy, StagePolicy)
        gap = self.held.gap(self.model.policy.exported({}))
        self._gap = gap.median, gap.p95
        self.logger.record("placement/greedy_gap_median", gap.median)
        self.logger.record("placement/greedy_gap_p95", gap.p95)
        self.logger.record("placement/greedy_solved", gap.solved)

    def _episode_reward(self) -> float:
        recent = self.model.ep_info_buffer or ()
        return float(np.mean([info["r"] for info in recent])) if recent else float("nan")
