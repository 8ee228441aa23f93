"""`heterps train` for graphs: a policy that places them node by node."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from heterps.console import answer, print_json, remarks
from heterps_configs.graph_training_config import GraphTrainingConfig

if TYPE_CHECKING:
    from heterps_agents.graph_training import GraphTrainingResult


def run_train_graphs(
    config: str,
    document: GraphTrainingConfig,
    *,
    run_directory: Path | None,
    resume: bool,
    overrides: list[str],
    output: Path | None,
    as_json: bool,
) -> None:
    """Trains, prints the scores, and says where everything is."""
    from heterps.train_command import override

    document = override(document, overrides)
    folder = run_directory or Path("runs/train") / Path(config).stem
    command = shlex.join(
        ["heterps", "train", "--config", config, *(f"--set={text}" for text in overrides)]
    )
    remarks.print(f"TensorBoard: tensorboard --logdir {folder}")
    result = _train_with_progress(document, folder, resume, command)
    if output is not None:
        result.policy.save(output)
    if as_json:
        print_json(
            {
                "policy": str(output or result.policy_file),
                "steps": result.steps,
                "seconds": result.seconds,
                "scores": result.scores,
                "interrupted": result.interrupted,
            }
        )
    else:
        scores = result.scores
        answer.print(
            f"{result.steps:,} nodes placed in {result.seconds:.0f} s; step time on the held-out "
            f"set, of that of earliest finish: greedy mean {scores['greedy_mean']:.1%}, best of 16 "
            f"samples mean {scores['samples16_mean']:.1%}"
        )
        answer.print(f"policy: {output or result.policy_file}")
        if result.interrupted:
            answer.print(f"interrupted; `--resume --run-directory {folder}` goes on")
    if result.interrupted:
        raise KeyboardInterrupt


def _train_with_progress(
    config: GraphTrainingConfig, folder: Path, resume: bool, command: str
) -> GraphTrainingResult:
    """`heterps_agents.graph_training.train_graphs` with a progress bar on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=remarks, transient=True) as progress:
        task = progress.add_task("train", total=1.0, now="preparing")
        # torch takes seconds to load; the bar is there already.
        from heterps_agents.graph_training import GraphTrainingProgress, train_graphs

        def show(state: GraphTrainingProgress) -> None:
            share = state.step_time_share
            held_out = "" if math.isnan(share) else f"  held-out {share:.1%} of earliest finish"
            now = f"{state.steps:,} nodes  reward {state.reward:.3f}{held_out}"
            progress.update(task, completed=state.share, now=now)

        return train_graphs(config, folder, resume, show, command)
