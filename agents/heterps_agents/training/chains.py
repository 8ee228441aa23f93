"""Learns to place chains: imitation of optima, then MaskablePPO on the native vector environment.

Imports torch and stable-baselines3.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from heterps_agents.learned.policy import Policy
from heterps_agents.training import state as run_state
from heterps_agents.training.clock import Clock
from heterps_agents.training.evaluation import SCORE_WIDTHS, Gap, TestSets
from heterps_agents.training.imitation import imitate
from heterps_agents.training.learner import Learner, State
from heterps_agents.training.milestones import Milestone, reached
from heterps_agents.training.network import StagePolicy
from heterps_agents.training.problems import (
    ProblemSource,
    optima_of,
    pool_of,
    refresh,
)
from heterps_agents.training.timed_env import TimedVecEnv
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.state import RUNNING
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.priced_pool import PricedPool
from heterps_envs.environments.stage.state import Limits
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS

IN_RANGE = "in-range"
# Sets beside the one in range whose gaps are shown, as far as their optima are quick to prove.
_FURTHER_SETS = ("longer", "more-types")
_EXAMPLES_STREAM, _FINAL_IMITATION_SHARE = 1, 0.05


class ChainLearner(Learner[ChainTrainingConfig, Policy]):
    """Model, environment, pool and optima of a run on chains.

    Args:
        config: The run's.
        clock: The run's.
        log: The run's.
        resumes: Whether `restore` is to follow: nothing that it replaces is prepared.
    """

    main_set = IN_RANGE

    def __init__(
        self, config: ChainTrainingConfig, clock: Clock, log: Logger, resumes: bool
    ) -> None:
        super().__init__(config, clock, log)
        self.num_passes = config.imitation_passes
        self.milestones: dict[str, Milestone] = {}
        self._source, self._learning_s = ProblemSource(config), 0.0
        start_s = time.process_time()
        # What is to be restored has the same size: one problem fills it.
        problems = (
            self._source.take(1) * config.pool_size
            if resumes
            else self._source.take(config.pool_size)
        )
        shape, with_prices = (config.layers[1], config.classes[1]), config.objective != "throughput"
        pool = pool_of(
            problems, config.target_range, *shape,
            keeps_best=True, prioritised_share=config.prioritised_share, objective=config.objective,
        )  # fmt: skip
        self._optima = optima_of(problems, config.layers[1])
        self.prepared_cpu_s = time.process_time() - start_s
        self._env = StagePlacementVecEnv(
            pool, config.num_environments, config.seed, with_prices=with_prices
        )
        self._timed = TimedVecEnv(self._env)
        self._sets = TestSets(_test_sets(config), _cheapest_set(config))
        self.model = make_model(config, self._timed, clock, log)
        self._load_compiled_code()
        if not resumes:
            run_state.begin(self.model)

    def _load_compiled_code(self) -> None:
        """Does once and small what the run will do, so that compilation is no part of its time."""
        pool = self._env.pool
        episodes, row = StageEpisodes(pool, 1, isinstance(pool, PricedPool)), np.zeros(1, np.int64)
        episodes.begin(row, row, Limits(pool.step_time_s[:1], *np.full((2, 1), np.inf)))
        episodes.step(episodes.view.allowed.argmax(axis=1))
        if self.is_imitating:
            self._optima.examples(pool, np.random.default_rng(0), 1)
        in_range = DRAWN_CHAINS[IN_RANGE].problems(1)
        cheapest = in_range if self._sets.cheapest is not None else ()
        TestSets({IN_RANGE: in_range}, cheapest).gaps(self.policy())

    def update(self) -> None:
        """One pass of imitation, or one update of PPO."""
        if self.is_imitating:
            self._imitate()
            return
        config, model, log = self.config, self.model, self.log
        start_s = time.perf_counter()
        model.ent_coef = self.entropy_weight
        one_update(model)
        self.clock.steps = model.num_timesteps
        self._refresh(config.refreshed_per_update)
        self._learning_s += time.perf_counter() - start_s
        self.reward = _mean_reward(model)
        log.record("train/entropy", -log.name_to_value.get("train/entropy_loss", float("nan")))
        log.record("time/environment_share", self._timed.seconds / max(self._learning_s, 1e-9))
        log.record("pool/shortfall", float(self._env.pool.shortfall.mean()))

    def _imitate(self) -> None:
        config, network = self.config, network_of(self.model)
        if self.passes > 0:
            self._refresh(config.imitation_refreshed)
        # From the number of passes, so that a resumed run draws the same examples.
        rng = np.random.default_rng([config.seed, _EXAMPLES_STREAM, self.passes])
        examples = self._optima.examples(self._env.pool, rng, config.imitation_problems)
        done = self.passes / config.imitation_passes
        for group in network.optimizer.param_groups:
            group["lr"] = config.imitation_learning_rate * (1 - done * (1 - _FINAL_IMITATION_SHARE))
        self.imitation_loss = imitate(network, examples, config.minibatch_size, rng)
        self.passes += 1
        self.log.record("imitation/loss", self.imitation_loss)
        self.log.record("imitation/decisions", len(examples.actions))
        self.log.dump(self.passes)

    def _refresh(self, count: int) -> None:
        used = np.unique(self._env.episodes.rows.problem)
        # From what was done, so that a resumed run chooses the same rows.
        rng = np.random.default_rng([self.config.seed, self.model.num_timesteps, self.passes])
        refresh(self._env.pool, self._optima, self._source, used, count, rng)

    def policy(self) -> Policy:
        """A copy of the network as it is now."""
        return network_of(self.model).exported({})

    def evaluate(self, cpu_s: float) -> dict[str, float]:
        """Curves of the gaps to the optimum; they begin where imitation ends."""
        gaps = self._sets.gaps(self.policy())
        self.score = gaps[f"{IN_RANGE}/greedy"].median
        reached(gaps, self.milestones, self.clock.steps, cpu_s)
        return {} if self.is_imitating else numbers_of(gaps)

    def scores(self, policy: Policy) -> dict[str, float]:
        """Gaps to the optimum of all test sets, with wider beams than `evaluate`."""
        return numbers_of(self._sets.gaps(policy, SCORE_WIDTHS))

    def picture(self) -> Image | None:
        """The likeliest placement of the pool's first problem, for one target."""
        pool, row = self._env.pool, np.zeros(1, np.int64)
        episodes = StageEpisodes(pool, 1, isinstance(pool, PricedPool))
        episodes.begin(row, row, pool.draw_limits(np.random.default_rng(self.config.seed), row))
        while not (ended := episodes.rows.status != RUNNING).any():
            actions, _ = self.model.predict(
                episodes.observations(), deterministic=True, action_masks=episodes.view.allowed
            )
            episodes.step(actions)
        episodes.finish(np.flatnonzero(ended))
        return episodes.image(0)

    def remarks(self) -> dict[str, Any]:
        """When the run reached its milestones."""
        return {"milestones": {name: entry._asdict() for name, entry in self.milestones.items()}}

    def state(self) -> State:
        """See `heterps_agents.training.state`."""
        return {
            **run_state.collect(self.model, self._env, self._source, self._optima),
            "passes": self.passes,
            "milestones": {name: list(entry) for name, entry in self.milestones.items()},
        }

    def restore(self, state: State) -> None:
        """Takes over the state of another learner of the same config."""
        run_state.restore(state, self.model, self._env, self._source, self._optima)
        self.passes = state["passes"]
        self.milestones = {name: Milestone(*entry) for name, entry in state["milestones"].items()}


def make_model(config: ChainTrainingConfig, env: VecEnv, clock: Clock, log: Logger) -> MaskablePPO:
    """PPO as a config has it; its learning rate falls with the clock."""
    model = MaskablePPO(
        StagePolicy,
        env,
        learning_rate=lambda _: clock.between(config.learning_rate, config.final_learning_rate),
        n_steps=config.steps_per_update,
        batch_size=config.minibatch_size,
        n_epochs=config.epochs,
        gamma=1.0,
        gae_lambda=config.gae_lambda,
        clip_range=config.clip_range,
        ent_coef=config.entropy_weight,
        policy_kwargs={"hidden": config.hidden, "with_prices": config.objective != "throughput"},
        device="cpu",
        seed=config.seed,
    )
    model.set_logger(log)
    return model


def one_update(model: MaskablePPO) -> None:
    """One batch of steps and the update after it."""
    assert model.env is not None
    model.learn(model.n_steps * model.env.num_envs, reset_num_timesteps=False)


def network_of(model: MaskablePPO) -> StagePolicy:
    """The policy of a model as what it is."""
    assert isinstance(model.policy, StagePolicy)
    return model.policy


def numbers_of(gaps: Mapping[str, Gap]) -> dict[str, float]:
    """Gaps by the names that curves, tables and model cards use, see `TrainingResult.scores`."""
    numbers: dict[str, float] = {}
    for curve, gap in gaps.items():
        key = curve.removeprefix(f"{IN_RANGE}/")
        for field, value in gap._asdict().items():
            numbers[f"{key}_gap_{field}" if field != "solved" else f"{key}_solved"] = value
    return numbers


def _mean_reward(model: MaskablePPO) -> float:
    recent = model.ep_info_buffer or ()
    return float(np.mean([info["r"] for info in recent])) if recent else float("nan")


def _cheapest_set(config: ChainTrainingConfig) -> list[CostTables]:
    """Problems in range whose gap of the price is shown."""
    if config.objective == "throughput":
        return []
    return DRAWN_CHAINS[IN_RANGE].problems(config.evaluation_problems)


def _test_sets(config: ChainTrainingConfig) -> dict[str, list[CostTables]]:
    counts = {IN_RANGE: config.evaluation_problems}
    counts |= dict.fromkeys(_FURTHER_SETS, config.curve_problems)
    return {name: DRAWN_CHAINS[name].problems(count) for name, count in counts.items() if count > 0}
