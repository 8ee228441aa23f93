"""The planner `layer-ppo`: plain PPO of stable-baselines3 on HeterPS's sequence of decisions.

For every problem a new network learns `heterps/LayerPlacement-v0` of that problem alone; the best
placement of all its episodes is the answer. Nothing is tuned to the environment: `MlpPolicy`, no
masks (a forbidden action ends the episode). It is what one gets from the shelf, and how far the
policies of `heterps_agents.training.train` are from that. Imports torch and stable-baselines3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from heterps_agents.interface.question import Question
from heterps_agents.interface.search_planner import search_planner
from heterps_agents.interface.torch_threads import one_thread
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv

DEFAULT_EVALUATIONS = 2048
NUM_ENVIRONMENTS, STEPS, MINIBATCH, EPOCHS, LEARNING_RATE = 32, 32, 256, 4, 1e-3
_ENDLESS = 10**12


@search_planner("layer-ppo", simple_start, chooses_options=False)
def layer_ppo_code(question: Question) -> Code | None:
    """Code of the best episode.

    Every episode is one evaluation, those too that end without a placement. The network makes
    nothing of a start.
    """
    tables, _, goal, budget, seed, start, *_ = question
    if not np.isfinite(price_bound(tables)[0]) or budget.is_exhausted:
        return start
    pool = LayerPool.from_tables(
        [tables], objective="price" if goal.is_price else "throughput", floors_s=[goal.floor_s]
    )
    env = LayerPlacementVecEnv(pool, NUM_ENVIRONMENTS, seed)
    episodes = _BestEpisode(question)
    with one_thread():
        model = PPO(
            "MlpPolicy", env, LEARNING_RATE, n_steps=STEPS, batch_size=MINIBATCH, n_epochs=EPOCHS,
            gamma=1.0, ent_coef=0.01, seed=seed, device="cpu",
        )  # fmt: skip
        # The logger of stable-baselines3's own making leaves a temporary folder behind.
        model.set_logger(Logger(folder=None, output_formats=[]))
        model.learn(_ENDLESS, callback=episodes)
    return episodes.code


class _BestEpisode(BaseCallback):
    """Charges the budget for episodes, keeps the best, and ends the training with the budget."""

    def __init__(self, question: Question) -> None:
        super().__init__()
        self._question, self._budget = question, question.budget
        self.code = question.start
        self._cost = question.cost(question.start)
        self._left = None if self._budget.is_limited else DEFAULT_EVALUATIONS

    def _on_step(self) -> bool:
        infos: list[dict[str, Any]] = self.locals["infos"]
        for info in infos:
            if "episode" in info:
                if self._is_over:
                    return False
                self._count(info)
        return not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._budget.is_exhausted or self._left == 0

    def _count(self, info: dict[str, Any]) -> None:
        self._budget.spend()
        if self._left is not None:
            self._left -= 1
        if info["is_success"]:
            cost = self._question.cost(info["code"])
            if cost < self._cost:
                self.code, self._cost = info["code"], cost
                self._question.found(info["code"], cost)
