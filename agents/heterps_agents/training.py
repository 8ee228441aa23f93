"""Trains placement policies: MaskablePPO on the native vector environment. Imports torch and SB3.

heterps train quick --out runs/quick
tensorboard --logdir runs/quick
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import Logger, configure

from heterps_agents.callbacks import Clock, FineTuningCallback, TrainingCallback, TrainingProgress
from heterps_agents.evaluation import HeldOut
from heterps_agents.network import StagePolicy
from heterps_agents.policy import Policy
from heterps_agents.problem_source import ProblemSource, perturbed, pool_of, references
from heterps_configs.errors import HeterpsError
from heterps_configs.training_config import TrainingConfig
from heterps_configs.yaml_files import write_bytes, write_text
from heterps_envs.problem import CostTables
from heterps_envs.test_sets import held_out
from heterps_envs.vector_env import StagePlacementVecEnv

logger = logging.getLogger(__name__)

CONFIG_FILE, CHECKPOINT_FILE, POLICY_FILE, RESULT_FILE = (
    "config.yaml",
    "checkpoint.pt",
    "policy.npz",
    "result.json",
)
_ENDLESS = 10**12
# Fine-tuning: small steps around a policy that is already good.
_FINE_TUNING_PROBLEMS, _FINE_TUNING_SIGMA = 128, 0.10
_FINE_TUNING = TrainingConfig(
    budget_s=1.0,
    num_environments=64,
    steps_per_update=16,
    minibatch_size=512,
    learning_rate=3e-4,
    final_learning_rate=1e-4,
    entropy_weight=0.005,
    num_threads=1,
)


class TrainingResult(NamedTuple):
    """What a training run leaves behind.

    Attributes:
        policy: The trained policy.
        policy_file: Where it was written.
        steps: Environment steps, all runs of the directory together.
        seconds: The same of training time.
        scores: `greedy_gap_median`, `greedy_gap_p95`, `beam16_gap_median`, ... on the held-out set.
        interrupted: Whether the user stopped it; `resume=True` goes on.
    """

    policy: Policy
    policy_file: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    interrupted: bool


def train(
    config: TrainingConfig,
    run_directory: Path,
    resume: bool = False,
    progress: Callable[[TrainingProgress], None] | None = None,
    command: str = "",
) -> TrainingResult:
    """Trains until a budget of the config is spent, or the user interrupts.

    The directory gets `config.yaml`, TensorBoard events, `checkpoint.pt`, `policy.npz` and
    `result.json`.

    Args:
        config: What to train on and for how long. With `resume` its budgets count from the start
            of the first run.
        run_directory: Made if it does not exist.
        resume: Go on from the checkpoint of the directory.
        progress: Called after every update.
        command: How to make this policy again; stored in it.

    Raises:
        HeterpsError: The directory holds another run (without `resume`) or no checkpoint (with it).
    """
    _check_directory(run_directory, resume, config)
    torch.set_num_threads(config.num_threads)
    checkpoint = _read_checkpoint(run_directory) if resume else None
    source = ProblemSource(config, first_batch=checkpoint["batch"] if checkpoint else 0)
    pool = pool_of(
        source.take(config.pool_size), config.target_range, config.layers[1], config.classes[1]
    )
    seed = config.seed + (checkpoint["steps"] if checkpoint else 0)
    env = StagePlacementVecEnv(pool, config.num_environments, seed)
    held = HeldOut(held_out(config.evaluation_problems))
    # Preparation, compilation included, is not training time.
    clock = Clock(config, spent_s=checkpoint["seconds"] if checkpoint else 0.0)
    model = _make_model(config, env, clock, configure(str(run_directory), ["tensorboard"]), seed)
    if checkpoint:
        model.policy.load_state_dict(checkpoint["policy"])
        model.policy.optimizer.load_state_dict(checkpoint["optimizer"])
        model.num_timesteps = clock.steps = checkpoint["steps"]
    write_text(run_directory / CONFIG_FILE, config.to_yaml())
    run = _Run(config, run_directory, model, source, clock, command)
    callback = TrainingCallback(config, clock, pool, source, held, run.save_checkpoint, progress)
    interrupted = False
    try:
        if not clock.is_over:
            model.learn(_ENDLESS, callback=callback, reset_num_timesteps=False)
    except KeyboardInterrupt:
        interrupted = True
        logger.warning("interrupted; resume goes on from %s", run_directory / CHECKPOINT_FILE)
    run.save_checkpoint()
    model.logger.close()
    return run.finish(held, interrupted)


def fine_tune(
    policy: Policy, problems: Sequence[CostTables], seconds: float, seed: int = 0
) -> Policy:
    """Continues PPO in the simulator on given problems, and on small drifts around them.

    Args:
        policy: Where to start; stays as it is.
        problems: For example one problem whose costs were corrected by measurements.
        seconds: Training time, preparation included.
        seed: Of drifts, episodes and exploration.

    Returns:
        The tuned policy; the given one where the time did not suffice for one update.

    Raises:
        HeterpsError: There is no problem, or none has a placement.
    """
    if not problems or seconds <= 0:
        raise HeterpsError("fine-tuning needs at least one problem and more than 0 seconds")
    config = _FINE_TUNING.model_copy(
        update={"budget_s": seconds, "seed": seed, "hidden": policy.hidden}
    )
    clock = Clock(config)
    drifted = perturbed(
        problems, _FINE_TUNING_PROBLEMS, seed, _FINE_TUNING_SIGMA, _FINE_TUNING_SIGMA / 2
    )
    pool = pool_of(
        references(drifted, policy, lambda: clock.share > 0.3), config.target_range, keeps_best=True
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(config.num_threads)
    env = StagePlacementVecEnv(pool, config.num_environments, seed)
    model = _make_model(config, env, clock, Logger(None, []), seed)
    network = _network(model)
    network.imported(policy)
    model.learn(_ENDLESS, callback=FineTuningCallback(clock))
    torch.set_num_threads(threads)
    meta = {"fine_tuned_steps": model.num_timesteps, "fine_tuned_s": round(clock.seconds, 3)}
    return network.exported({**policy.meta, **meta})


def _network(model: MaskablePPO) -> StagePolicy:
    assert isinstance(model.policy, StagePolicy)
    return model.policy


@dataclass
class _Run:
    """What saving needs to know."""

    config: TrainingConfig
    directory: Path
    model: MaskablePPO
    source: ProblemSource
    clock: Clock
    command: str

    def save_checkpoint(self) -> None:
        """Writes the checkpoint in one move."""
        buffer = io.BytesIO()
        content = {
            "config": self.config.fingerprint(),
            "policy": self.model.policy.state_dict(),
            "optimizer": self.model.policy.optimizer.state_dict(),
            "steps": self.model.num_timesteps,
            "seconds": self.clock.seconds,
            "batch": self.source.batch,
        }
        torch.save(content, buffer)
        write_bytes(self.directory / CHECKPOINT_FILE, buffer.getvalue())

    def finish(self, held: HeldOut, interrupted: bool) -> TrainingResult:
        """Scores and exports the policy."""
        steps, seconds = self.model.num_timesteps, self.clock.seconds
        policy = _network(self.model).exported({})
        scores = held_out_scores(held, policy)
        policy.meta.update(
            command=self.command,
            config=self.config.to_mapping(),
            seed=self.config.seed,
            steps=steps,
            seconds=round(seconds, 1),
            scores=scores,
        )
        path = self.directory / POLICY_FILE
        policy.save(path)
        write_text(self.directory / RESULT_FILE, json.dumps(policy.meta, indent=1) + "\n")
        return TrainingResult(policy, path, steps, seconds, scores, interrupted)


def held_out_scores(held: HeldOut, policy: Policy) -> dict[str, float]:
    """Gaps on the held-out set by the names that tables and model cards use."""
    scores: dict[str, float] = {}
    for name, width in (("greedy", 1), ("beam16", 16)):
        gap = held.gap(policy, width)
        for field, value in gap._asdict().items():
            scores[f"{name}_gap_{field}" if field != "solved" else f"{name}_solved"] = value
    return scores


def _make_model(
    config: TrainingConfig, env: StagePlacementVecEnv, clock: Clock, log: Logger, seed: int
) -> MaskablePPO:
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
        policy_kwargs={"hidden": config.hidden},
        device="cpu",
        seed=seed,
    )
    model.set_logger(log)
    return model


def _check_directory(directory: Path, resume: bool, config: TrainingConfig) -> None:
    has_checkpoint = (directory / CHECKPOINT_FILE).is_file()
    if resume and not has_checkpoint:
        raise HeterpsError(f"{directory}: there is no {CHECKPOINT_FILE} to resume from")
    if not resume and has_checkpoint:
        raise HeterpsError(f"{directory}: holds a training run already; resume it or name another")
    if resume:
        before = TrainingConfig.from_file(directory / CONFIG_FILE)
        if before.hidden != config.hidden:
            raise HeterpsError(
                f"{directory}: was trained with hidden {before.hidden}, not {config.hidden}"
            )


def _read_checkpoint(directory: Path) -> dict[str, Any]:
    path = directory / CHECKPOINT_FILE
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise HeterpsError(f"{path}: is not a checkpoint: {error}") from None
    return dict(content)
