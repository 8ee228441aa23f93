"""Trains placement policies, for chains and for graphs. Imports torch and stable-baselines3.

heterps train --config quick
tensorboard --logdir runs/train/quick
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import overload

import torch
from stable_baselines3.common.logger import Logger

from heterps_agents.boards.training import CHAIN_LAYOUT, GRAPH_LAYOUT, TrainingBoards
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.policy import Policy
from heterps_agents.training.chains import ChainLearner
from heterps_agents.training.clock import Clock
from heterps_agents.training.graphs import GraphLearner
from heterps_agents.training.learner import State
from heterps_agents.training.run import (
    TrainingProgress,
    TrainingResult,
    TrainingRun,
    check_directory,
    read_checkpoint,
    warn_of_changes,
)
from heterps_configs.documents.training import ChainTrainingConfig, GraphTrainingConfig
from heterps_configs.outputs import folder_lock

ShowProgress = Callable[[TrainingProgress], None]


@overload
def train(
    config: ChainTrainingConfig,
    run_directory: Path,
    resume: bool = ...,
    progress: ShowProgress | None = ...,
    command: str = ...,
) -> TrainingResult[Policy]: ...


@overload
def train(
    config: GraphTrainingConfig,
    run_directory: Path,
    resume: bool = ...,
    progress: ShowProgress | None = ...,
    command: str = ...,
) -> TrainingResult[GraphPolicy]: ...


def train(
    config: ChainTrainingConfig | GraphTrainingConfig,
    run_directory: Path,
    resume: bool = False,
    progress: ShowProgress | None = None,
    command: str = "",
) -> TrainingResult[Policy] | TrainingResult[GraphPolicy]:
    """Trains until a budget of the config is spent, or the user interrupts.

    The directory gets `config.yaml`, TensorBoard events, `checkpoint.pt`, `policy.npz` and
    `result.json`. With `total_steps` alone, a run that was interrupted and resumed on the same CPU
    ends with the same weights as one that was not.

    Args:
        config: What to train on and for how long. With `resume` its budgets count from the start
            of the first run.
        run_directory: Made if it does not exist.
        resume: Go on from the checkpoint of the directory.
        progress: Called after every update, and once when an interrupted run begins to end. If it
            raises KeyboardInterrupt, the run ends there.
        command: How to make this policy again; stored in it.

    Raises:
        HeterpsError: The directory holds another run (without `resume`) or no checkpoint (with it),
            or another process trains in it.
    """
    check_directory(config, run_directory, resume)
    if resume:
        warn_of_changes(config, run_directory)
    with folder_lock(run_directory):
        checkpoint = read_checkpoint(run_directory) if resume else None
        torch.set_num_threads(config.num_threads)
        boards = _boards(config, run_directory, checkpoint)
        log = Logger(str(run_directory), [boards])
        if isinstance(config, GraphTrainingConfig):
            graphs = GraphLearner(config, Clock(config), log)
            return TrainingRun(graphs, run_directory, boards, command, checkpoint).go(progress)
        chains = ChainLearner(config, Clock(config), log, resumes=resume)
        return TrainingRun(chains, run_directory, boards, command, checkpoint).go(progress)


def _boards(
    config: ChainTrainingConfig | GraphTrainingConfig, run_directory: Path, checkpoint: State | None
) -> TrainingBoards:
    """Boards that do what an interrupted run wrote after its last checkpoint once more."""
    layout = GRAPH_LAYOUT if isinstance(config, GraphTrainingConfig) else CHAIN_LAYOUT
    if checkpoint is None:
        return TrainingBoards(run_directory, layout)
    passes = checkpoint.get("passes", 0)
    counts_passes = isinstance(config, ChainTrainingConfig) and not config.runs_ppo
    step = passes if counts_passes else checkpoint["steps"]
    return TrainingBoards(run_directory, layout, step + 1, passes + 1)
