"""The command `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.completion import names_of, one_of
from heterps.cli.options import OUTPUT, Json

ALGORITHMS = ("ppo", "imitation", "expert-iteration")


def train(
    config: Annotated[
        str,
        typer.Option(
            "--config",
            help="Training config: shipped name (`heterps list training`) or file.",
            autocompletion=names_of("training"),
        ),
    ] = "quick",
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            help="ppo (alone), imitation (alone) or expert-iteration, instead of what the config "
            "does: imitation, then PPO.",
            autocompletion=one_of(*ALGORITHMS),
        ),
    ] = None,
    hyperparameters: Annotated[
        Path | None,
        typer.Option(
            "--hyperparameters",
            help="File as of rl-baselines3-zoo: id of the environment, then arguments.",
        ),
    ] = None,
    show_hyperparameters: Annotated[
        bool,
        typer.Option("--show-hyperparameters", help="Print such a file, and do nothing else."),
    ] = False,
    run_directory: Annotated[
        Path | None,
        typer.Option(
            "--run-directory", help="Checkpoints and TensorBoard.", rich_help_panel=OUTPUT
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the last checkpoint.")
    ] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="field=value of the config; repeat for several."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the trained policy (.npz) here too.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a placement policy; TensorBoard; resumable."""
    from heterps.commands.train import TrainingRequest, run_train

    run_train(
        TrainingRequest(config, overrides or (), algorithm, hyperparameters),
        run_directory=run_directory,
        resume=resume,
        show_hyperparameters=show_hyperparameters,
        output=output,
        as_json=as_json,
    )
