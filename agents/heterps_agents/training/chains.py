"""Learns to place chains: imitation of optima, then MaskablePPO on the native vector environment.

Imports torch and stable-baselines3.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from heterps_agents.learned.policy import Policy
from heterps_agents.training import state as run_state
from heterps_agents.training.clock import Clock
from heterps_agents.training.evaluation import SCORE_WIDTHS, Gap, TestSets
from heterps_agents.training.expert import ExpertRounds
from heterps_agents.training.imitation import imitate
from heterps_agents.training.learner import Learner, State
from heterps_agents.training.milestones import Milestone, reached
from heterps_agents.training.network import StagePolicy, network_of
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
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.priced_pool import PricedPool
from heterps_envs.environments.stage.state import Limits
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.development import DEVELOPMENT_CHAINS

# A run is judged on the first, and shows the others. Frozen test sets are for `heterps score`.
MAIN_SET, *_FURTHER_SETS = DEVELOPMENT_CHAINS
_EXAMPLES_STREAM, _FINAL_IMITATION_SHARE = 1, 0.05
# Of the problem in the pictures: draws its limits; so many are looked at for one with a reference.
_SHOWN_SEED, _MOST_LOOKED_AT = 0, 16


class ChainLearner(Learner[ChainTrainingConfig, Policy]):
    """Model, environment, pool and optima of a run on chains.

    Args:
        config: The run's.
        clock: The run's.
        log: The run's.
        resumes: Whether `restore` is to follow: nothing that it replaces is prepared.
    """

    main_set = MAIN_SET

    def __init__(
        self, config: ChainTrainingConfig, clock: Clock, log: Logger, resumes: bool
    ) -> None:
        super().__init__(config, clock, log)
        self.num_passes, self.runs_ppo = config.imitation_passes, config.runs_ppo
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
        self._expert: ExpertRounds | None = None
        if config.searches:
            self._expert = ExpertRounds(config, pool, self._optima)
        self._env = StagePlacementVecEnv(
            pool, config.num_environments, config.seed, with_prices=with_prices
        )
        self._timed = TimedVecEnv(self._env)
        self._shown = self._one_problem()
        self._sets = TestSets(_test_sets(config), _cheapest_set(config))
        self.model = make_model(config, self._timed, clock, log)
        self._load_compiled_code()
        if not resumes:
            run_state.begin(self.model)

    def _one_problem(self) -> ProblemPool:
        """The first development problem with a reference, to be drawn again and again."""
        tables = DEVELOPMENT_CHAINS[MAIN_SET].problems(_MOST_LOOKED_AT)
        found = next(filter(None, map(self._source.referenced, tables)))
        return pool_of([found], self.config.target_range, objective=self.config.objective)

    def _load_compiled_code(self) -> None:
        """Does once and small what the run will do, so that compilation is no part of its time."""
        pool = self._env.pool
        episodes, row = StageEpisodes(pool, 1, isinstance(pool, PricedPool)), np.zeros(1, np.int64)
        episodes.begin(row, row, Limits(pool.step_time_s[:1], *np.full((2, 1), np.inf)))
        episodes.step(episodes.view.allowed.argmax(axis=1))
        if self.is_imitating:
            self._optima.examples(pool, np.random.default_rng(0), 1)
        if self._expert is not None:
            self._expert.load_compiled_code(self.policy())
        one = DEVELOPMENT_CHAINS[MAIN_SET].problems(1)
        cheapest = one if self._sets.cheapest is not None else ()
        TestSets({MAIN_SET: one}, cheapest).gaps(self.policy())

    def update(self) -> None:
        """One pass of imitation, part of a round of search, or one update of PPO."""
        if self.is_imitating:
            if self._expert is not None and self._expert.is_due(self.passes):
                self._search_placements(self._expert)
            else:
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

    def _search_placements(self, expert: ExpertRounds) -> None:
        is_over, count = expert.search_some(self.policy()), len(expert.rows)
        self.doing = (
            f"searching, round {expert.done + 1} of {self.config.expert_rounds}: "
            f"{expert.searched} of {count} problems"
        )
        if not is_over:
            return
        if count == 0 and expert.done == 0:
            warnings.warn(
                "all optima are proven: there is nothing to search, and expert iteration is "
                "imitation; larger problems have some to search, such as with --set classes=[2,10]",
                stacklevel=2,
            )
        self.log.record("imitation/improved_placements", expert.improved)
        self.log.record("imitation/mean_log_gain", expert.gained / max(1, expert.improved))
        self.log.dump(self.passes)
        expert.end()
        self.doing = ""

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
        if self._expert is not None:  # what was searched stays
            used = np.union1d(used, self._expert.rows)
        # From what was done, so that a resumed run chooses the same rows.
        rng = np.random.default_rng([self.config.seed, self.model.num_timesteps, self.passes])
        refresh(
            self._env.pool, self._optima, self._source, used, count, rng,
            proven_only=self._expert is not None,
        )  # fmt: skip

    def policy(self) -> Policy:
        """A copy of the network as it is now."""
        return network_of(self.model).exported({})

    def evaluate(self, cpu_s: float) -> dict[str, float]:
        """Curves of the gaps to the optimum; they begin where imitation ends."""
        gaps = self._sets.gaps(self.policy())
        self.score = gaps[f"{MAIN_SET}/greedy"].median
        reached(gaps, self.milestones, self.curve_step, cpu_s)
        return {} if self.is_imitating and self.runs_ppo else numbers_of(gaps)

    def scores(self, policy: Policy) -> dict[str, float]:
        """Gaps to the optimum of all sets, with wider beams than `evaluate`."""
        return numbers_of(self._sets.gaps(policy, SCORE_WIDTHS))

    def picture(self) -> Image | None:
        """The likeliest placement of one development problem, for one target."""
        pool, row = self._shown, np.zeros(1, np.int64)
        episodes = StageEpisodes(pool, 1, isinstance(pool, PricedPool))
        episodes.begin(row, row, pool.draw_limits(np.random.default_rng(_SHOWN_SEED), row))
        scorer = network_of(self.model).scorer
        while (episodes.rows.status == RUNNING).all():
            with torch.no_grad():
                logits, _ = scorer(torch.from_numpy(episodes.observations()))
            episodes.step(logits.argmax(dim=1).numpy())
        return episodes.image(0)

    def remarks(self) -> dict[str, Any]:
        """When the run reached its milestones."""
        return {"milestones": {name: entry._asdict() for name, entry in self.milestones.items()}}

    def state(self) -> State:
        """See `heterps_agents.training.state`."""
        return {
            **run_state.collect(self.model, self._env, self._source, self._optima),
            "passes": self.passes,
            "expert": {} if self._expert is None else self._expert.state(),
            "milestones": {name: list(entry) for name, entry in self.milestones.items()},
        }

    def restore(self, state: State) -> None:
        """Takes over the state of another learner of the same config."""
        run_state.restore(state, self.model, self._env, self._source, self._optima)
        self.passes = state["passes"]
        if self._expert is not None:
            self._expert.restore(state["expert"])
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


def numbers_of(gaps: Mapping[str, Gap]) -> dict[str, float]:
    """Gaps by the names that curves, tables and model cards use, see `TrainingResult.scores`."""
    numbers: dict[str, float] = {}
    for curve, gap in gaps.items():
        key = curve.removeprefix(f"{MAIN_SET}/")
        for field, value in gap._asdict().items():
            numbers[f"{key}_gap_{field}" if field != "solved" else f"{key}_solved"] = value
    return numbers


def _mean_reward(model: MaskablePPO) -> float:
    recent = model.ep_info_buffer or ()
    return float(np.mean([info["r"] for info in recent])) if recent else float("nan")


def _cheapest_set(config: ChainTrainingConfig) -> list[CostTables]:
    """Problems whose gap of the price is shown."""
    if config.objective == "throughput":
        return []
    return DEVELOPMENT_CHAINS[MAIN_SET].problems(config.evaluation_problems)


def _test_sets(config: ChainTrainingConfig) -> dict[str, list[CostTables]]:
    counts = {MAIN_SET: config.evaluation_problems}
    counts |= dict.fromkeys(_FURTHER_SETS, config.curve_problems)
    return {
        name: DEVELOPMENT_CHAINS[name].problems(count)
        for name, count in counts.items()
        if count > 0
    }
