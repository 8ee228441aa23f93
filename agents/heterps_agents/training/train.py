"""Trains placement policies: MaskablePPO on the native vector environment. Imports torch and SB3.

heterps train quick --out runs/quick
tensorboard --logdir runs/quick
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.vec_env import VecEnv

from heterps_agents.learned.policy import Policy
from heterps_agents.training import state as run_state
from heterps_agents.training.clock import Clock, Interrupt
from heterps_agents.training.evaluation import TestSets
from heterps_agents.training.examples import OptimalPlacements
from heterps_agents.training.network import StagePolicy
from heterps_agents.training.problems import (
    ProblemSource,
    optima_of,
    perturbed,
    pool_of,
    references,
)
from heterps_agents.training.progress import TrainingProgress
from heterps_agents.training.run import (
    CHECKPOINT_FILE,
    TrainingResult,
    TrainingRun,
    network_of,
    one_update,
)
from heterps_agents.training.state import STATE_VERSION, State
from heterps_agents.training.timed_env import TimedVecEnv
from heterps_configs.documents.chain_training import ChainTrainingConfig
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.packed import empty_problems
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.priced_pool import Anchor, PricedPool
from heterps_envs.environments.stage.state import Limits
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem import CostTables
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS

logger = logging.getLogger(__name__)

CONFIG_FILE = "config.yaml"
# What a checkpoint has room for: these cannot change when a run goes on.
_FIXED_FIELDS = (
    "objective",
    "hidden",
    "seed",
    "layers",
    "classes",
    "pool_size",
    "num_environments",
)
# Sets beside the one in range whose gaps are shown, as far as their optima are quick to prove.
_FURTHER_SETS = ("longer", "more-types")
# Fine-tuning: small steps around a policy that is already good.
_FINE_TUNING_PROBLEMS, _FINE_TUNING_SIGMA = 128, 0.10
_FINE_TUNING = ChainTrainingConfig(
    budget_s=1.0,
    num_environments=64,
    steps_per_update=16,
    minibatch_size=512,
    learning_rate=3e-4,
    final_learning_rate=1e-4,
    entropy_weight=0.005,
    num_threads=1,
)


def train(
    config: ChainTrainingConfig,
    run_directory: Path,
    resume: bool = False,
    progress: Callable[[TrainingProgress], None] | None = None,
    command: str = "",
) -> TrainingResult:
    """Trains until a budget of the config is spent, or the user interrupts.

    The directory gets `config.yaml`, TensorBoard events, `checkpoint.pt`, `policy.npz` and
    `result.json`. With `total_steps` alone, a run that was interrupted and resumed on the same CPU
    ends with the same weights as one that was not.

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
    checkpoint = _read_checkpoint(run_directory) if resume else None
    source, start_s = ProblemSource(config), time.process_time()
    pool, optima = _pool(config, None if checkpoint else source)
    solving_s = time.process_time() - start_s
    env = StagePlacementVecEnv(
        pool,
        config.num_environments,
        config.seed,
        with_prices=config.objective != "throughput",
    )
    sets = TestSets(_test_sets(config), _cheapest_set(config))
    if checkpoint is None:
        _compile(env.pool)
    timed = TimedVecEnv(env)
    log = configure(str(run_directory), ["tensorboard"])
    # Preparation, compilation included, is not training time.
    clock = Clock(config, spent_s=checkpoint["seconds"] if checkpoint else 0.0)
    model = _make_model(config, timed, clock, log)
    run = TrainingRun(
        config, run_directory, model, timed, source, optima, sets, clock, command, solving_s
    )
    if checkpoint:
        run.restore(checkpoint)
    else:
        run_state.begin(model)
    write_text(run_directory / CONFIG_FILE, config.to_yaml())
    interrupt = Interrupt()
    with interrupt.watched():
        try:
            while not clock.is_over and not interrupt.requested:
                run.update()
                if progress is not None:
                    progress(run.progress())
        except KeyboardInterrupt:
            interrupt.requested = True
    if interrupt.requested:
        logger.warning("interrupted; resume goes on from %s", run_directory / CHECKPOINT_FILE)
    run.save_checkpoint()
    return run.finish(interrupt.requested)


def fine_tune(
    policy: Policy, problems: Sequence[CostTables], seconds: float, seed: int = 0
) -> Policy:
    """Continues PPO in the simulator on given problems, and on small drifts around them.

    Args:
        policy: Where to start; stays as it is.
        problems: For example one problem whose costs were corrected by measurements.
        seconds: Of this process's CPU, preparation included.
        seed: Of drifts, episodes and exploration.

    Returns:
        The tuned policy; the given one where the time did not suffice for one update.

    Raises:
        HeterpsError: There is no problem, or none has a placement.
    """
    if not problems or seconds <= 0:
        raise HeterpsError("fine-tuning needs at least one problem and more than 0 seconds")
    config = _FINE_TUNING.changed(
        budget_s=seconds,
        seed=seed,
        hidden=policy.hidden,
        objective="price" if policy.knows_prices else "throughput",
    )
    clock = Clock(config, clock=time.process_time)
    drifted = perturbed(
        problems, _FINE_TUNING_PROBLEMS, seed, _FINE_TUNING_SIGMA, _FINE_TUNING_SIGMA / 2
    )
    pool = pool_of(
        references(drifted, policy, lambda: clock.share > 0.3), config.target_range, keeps_best=True
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(config.num_threads)
    env = StagePlacementVecEnv(pool, config.num_environments, seed, with_prices=policy.knows_prices)
    model = _make_model(config, env, clock, Logger(None, []))
    network = network_of(model)
    network.imported(policy)
    while not clock.is_over:
        one_update(model)
        clock.steps = model.num_timesteps
    torch.set_num_threads(threads)
    meta = {"fine_tuned_steps": model.num_timesteps, "fine_tuned_s": round(clock.seconds, 3)}
    return network.exported({**policy.meta, **meta})


def _pool(
    config: ChainTrainingConfig, source: ProblemSource | None
) -> tuple[ProblemPool, OptimalPlacements]:
    """A pool from the source, and its optima; without a source, empty ones of the same size."""
    shape = config.layers[1], config.classes[1]
    if source is None and config.objective != "throughput":
        nowhere = [(Anchor(0.0, 0.0, 0.0),)] * config.pool_size
        priced = PricedPool(
            empty_problems(config.pool_size, *shape),
            nowhere,
            config.target_range,
            config.prioritised_share,
            config.objective,
        )
        return priced, OptimalPlacements(config.pool_size, shape[0])
    if source is None:
        nothing = np.zeros(config.pool_size)
        empty = ProblemPool(
            empty_problems(config.pool_size, *shape),
            nothing,
            nothing.copy(),
            config.target_range,
            keeps_best=True,
            prioritised_share=config.prioritised_share,
        )
        return empty, OptimalPlacements(config.pool_size, shape[0])
    problems = source.take(config.pool_size)
    pool = pool_of(
        problems,
        config.target_range,
        *shape,
        keeps_best=True,
        prioritised_share=config.prioritised_share,
        objective=config.objective,
    )
    return pool, optima_of(problems, shape[0])


def _compile(pool: ProblemPool) -> None:
    """One step of an episode of its own, so that compilation is no part of the training time."""
    episodes, row = StageEpisodes(pool, 1, isinstance(pool, PricedPool)), np.zeros(1, np.int64)
    episodes.begin(row, row, Limits(pool.step_time_s[:1], *np.full((2, 1), np.inf)))
    episodes.step(episodes.view.allowed.argmax(axis=1))


def _cheapest_set(config: ChainTrainingConfig) -> list[CostTables]:
    """Problems in range whose gap of the price is shown."""
    if config.objective == "throughput":
        return []
    return DRAWN_CHAINS["in-range"].problems(config.evaluation_problems)


def _test_sets(config: ChainTrainingConfig) -> dict[str, list[CostTables]]:
    counts = {"in-range": config.evaluation_problems}
    counts |= dict.fromkeys(_FURTHER_SETS, config.curve_problems)
    return {name: DRAWN_CHAINS[name].problems(count) for name, count in counts.items() if count > 0}


def _make_model(config: ChainTrainingConfig, env: VecEnv, clock: Clock, log: Logger) -> MaskablePPO:
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


def _check_directory(directory: Path, resume: bool, config: ChainTrainingConfig) -> None:
    has_checkpoint = (directory / CHECKPOINT_FILE).is_file()
    if resume and not has_checkpoint:
        raise HeterpsError(f"{directory}: there is no {CHECKPOINT_FILE} to resume from")
    if not resume and has_checkpoint:
        raise HeterpsError(f"{directory}: holds a training run already; resume it or name another")
    if resume:
        before = ChainTrainingConfig.from_file(directory / CONFIG_FILE)
        for name in _FIXED_FIELDS:
            old, new = getattr(before, name), getattr(config, name)
            if old != new:
                raise HeterpsError(f"{directory}: was trained with {name} {old}, not {new}")


def _read_checkpoint(directory: Path) -> State:
    path = directory / CHECKPOINT_FILE
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise HeterpsError(f"{path}: is not a checkpoint: {error}") from None
    if content.get("version") != STATE_VERSION:
        raise HeterpsError(f"{path}: was written by another version of heterps; train anew")
    return dict(content)
