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

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import register
from heterps_agents.interface.torch_threads import one_thread
from heterps_agents.search.planner import SearchPlanner
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.formula import KernelTables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.problem import CostTables

DEFAULT_EVALUATIONS = 2048
NUM_ENVIRONMENTS, STEPS, MINIBATCH, EPOCHS, LEARNING_RATE = 32, 32, 256, 4, 1e-3
_ENDLESS = 10**12


@register("layer-ppo")
def layer_ppo(seed: int = 0) -> SearchPlanner:
    """The planner `layer-ppo`."""
    return SearchPlanner("layer-ppo", layer_ppo_code, seed)


def layer_ppo_code(
    tables: CostTables,
    kernel: KernelTables,
    goal: Goal,
    budget: Budget,
    seed: int,
    *,
    start: Code | None = None,
) -> Code | None:
    """Code of the best episode, see `heterps_agents.search.planner.Search`.

    Every episode is one evaluation, those too that end without a placement. The network makes
    nothing of a start.
    """
    if not np.isfinite(price_bound(tables)[0]) or budget.is_exhausted:
        return start
    pool = LayerPool.from_tables(
        [tables], objective="price" if goal.is_price else "throughput", floors_s=[goal.floor_s]
    )
    env = LayerPlacementVecEnv(pool, NUM_ENVIRONMENTS, seed)
    episodes = _BestEpisode(kernel, goal, budget, start)
    with one_thread():
        model = PPO(
            "MlpPolicy", env, LEARNING_RATE, n_steps=STEPS, batch_size=MINIBATCH, n_epochs=EPOCHS,
            gamma=1.0, ent_coef=0.01, seed=seed, device="cpu",
        )  # fmt: skip
        model.learn(_ENDLESS, callback=episodes)
    return episodes.code


class _BestEpisode(BaseCallback):
    """Charges the budget for episodes, keeps the best, and ends the training with the budget."""

    def __init__(
        self, kernel: KernelTables, goal: Goal, budget: Budget, start: Code | None
    ) -> None:
        super().__init__()
        self._kernel, self._goal, self._budget = kernel, goal, budget
        self.code = start
        self._cost = np.inf if start is None else goal.cost(start, kernel)
        limited = budget.evaluations is not None or budget.has_time_limit
        self._left = None if limited else DEFAULT_EVALUATIONS

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
            cost = self._goal.cost(info["code"], self._kernel)
            if cost < self._cost:
                self.code, self._cost = info["code"], cost
