"""What a training run asks of what it trains: the part that differs between kinds of policies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from stable_baselines3.common.logger import Logger

from heterps_agents.learned.policy_file import StoredPolicy
from heterps_agents.training.clock import Clock
from heterps_configs.documents.training import TrainingConfig
from heterps_envs.environments.base.drawing import Image

ConfigType = TypeVar("ConfigType", bound=TrainingConfig)
PolicyType = TypeVar("PolicyType", bound=StoredPolicy)
State = dict[str, Any]

_FINAL_ENTROPY_SHARE = 0.1


class Learner(ABC, Generic[ConfigType, PolicyType]):
    """Problems, network, updates, and how a policy is judged.

    Args:
        config: The run's.
        clock: The run's; an update adds its decisions to `clock.steps`.
        log: The run's; gets curves.

    Attributes:
        prepared_cpu_s: CPU seconds of preparation that count as training.
        reward: Mean of recent placements; nan before the first.
        score: What a user watches: of the last evaluation; nan before the first.
        num_passes: Of imitation, before the first decision.
        passes: How many of them are done.
        imitation_loss: Of the last pass; nan before the first.
        runs_ppo: Whether PPO follows the passes of imitation.
        doing: What the next update does, where it is neither of them; else empty.
        main_set: The problems that names of scores leave out.
    """

    main_set: str

    def __init__(self, config: ConfigType, clock: Clock, log: Logger) -> None:
        self.config, self.clock, self.log = config, clock, log
        self.reward = self.score = self.imitation_loss = float("nan")
        self.prepared_cpu_s, self.num_passes, self.passes = 0.0, 0, 0
        self.runs_ppo, self.doing = True, ""

    @property
    def is_imitating(self) -> bool:
        """Whether the next update is a pass of imitation."""
        return self.passes < self.num_passes

    @property
    def share(self) -> float:
        """How far the training is, 0 to 1."""
        if self.runs_ppo:
            return self.clock.share
        # No step is ever taken, so that the clock counts seconds, if anything.
        return max(self.clock.share, self.passes / self.num_passes)

    @property
    def is_over(self) -> bool:
        """Nothing is left to do, or to spend."""
        return self.share >= 1.0

    @property
    def curve_step(self) -> int:
        """What curves count: decisions or, without PPO, passes."""
        return self.clock.steps if self.runs_ppo else self.passes

    @property
    def learning_rate(self) -> float:
        """The learning rate of PPO now."""
        return self.clock.between(self.config.learning_rate, self.config.final_learning_rate)

    @property
    def entropy_weight(self) -> float:
        """How much the entropy of the policy counts now."""
        weight = self.config.entropy_weight
        return self.clock.between(weight, weight * _FINAL_ENTROPY_SHARE)

    @abstractmethod
    def update(self) -> None:
        """One pass of imitation, or one update of PPO."""

    @abstractmethod
    def policy(self) -> PolicyType:
        """A copy of the network as it is now."""

    @abstractmethod
    def evaluate(self, cpu_s: float) -> dict[str, float]:
        """Judges the network as it is now.

        Args:
            cpu_s: CPU seconds of training so far, evaluations left out.

        Returns:
            Values by their names, as `scores` has them; none while curves have not begun.
        """

    @abstractmethod
    def scores(self, policy: PolicyType) -> dict[str, float]:
        """What a finished policy is told by, on problems that it never saw."""

    def by_set(self, scores: dict[str, float]) -> dict[str, dict[str, float]]:
        """Scores by the set of problems that they are of, then by what is left of their names."""
        sets: dict[str, dict[str, float]] = {}
        for name, value in scores.items():
            given, _, rest = name.rpartition("/")
            sets.setdefault(given or self.main_set, {})[rest] = value
        return sets

    def picture(self) -> Image | None:
        """An episode that the network plays as it is now; None where none is drawn."""
        return None

    @abstractmethod
    def remarks(self) -> dict[str, Any]:
        """Plain data about the run that the policy's file keeps."""

    @abstractmethod
    def state(self) -> State:
        """All that the run needs to go on, as `torch.load(weights_only=True)` reads it."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Takes over the state of another learner of the same config."""
