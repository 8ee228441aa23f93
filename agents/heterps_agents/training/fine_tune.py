"""Goes on with PPO from a trained policy, on given problems. Imports torch and SB3."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from stable_baselines3.common.logger import Logger

from heterps_agents.learned.policy import Policy
from heterps_agents.training.chains import make_model, one_update
from heterps_agents.training.clock import Clock
from heterps_agents.training.network import network_of
from heterps_agents.training.problems import perturbed, pool_of, references
from heterps_configs import library
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import HeterpsError
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv

CONFIG = "fine-tuning"
# How far seconds drift in the problems around the given ones: of classes, and of layers.
_CLASS_SIGMA, _LAYER_SIGMA = 0.10, 0.05
# Of the time, at most, for the optima that rewards refer to.
_PREPARATION_SHARE = 0.3


def fine_tune(
    policy: Policy, problems: Sequence[CostTables], seconds: float, seed: int = 0
) -> Policy:
    """Continues PPO in the simulator on given problems, and on small drifts around them.

    How is in the training configuration `fine-tuning`; its pool is filled with drifts.

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
    config = _config().changed(
        budget_s=seconds,
        total_steps=None,
        seed=seed,
        hidden=policy.hidden,
        objective="price" if policy.knows_prices else "throughput",
    )
    clock = Clock(config, clock=time.process_time)
    drifted = perturbed(problems, config.pool_size, seed, _CLASS_SIGMA, _LAYER_SIGMA)
    known = references(drifted, policy, lambda: clock.share > _PREPARATION_SHARE)
    pool = pool_of(known, config.target_range, keeps_best=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(config.num_threads)
    env = StagePlacementVecEnv(pool, config.num_environments, seed, with_prices=policy.knows_prices)
    model = make_model(config, env, clock, Logger(None, []))
    network = network_of(model)
    network.imported(policy)
    clock.start_schedule()
    while not clock.is_over:
        one_update(model)
        clock.steps = model.num_timesteps
    torch.set_num_threads(threads)
    meta = {"fine_tuned_steps": model.num_timesteps, "fine_tuned_s": round(clock.seconds, 3)}
    return network.exported({**policy.meta, **meta})


def _config() -> ChainTrainingConfig:
    config = library.load("training", CONFIG)
    if not isinstance(config, ChainTrainingConfig):
        raise HeterpsError(f"{CONFIG}: is a training configuration for graphs, not for chains")
    return config
