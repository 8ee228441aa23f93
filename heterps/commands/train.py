"""`heterps train` for graphs: a policy that places them node by node."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from heterps.reports.console import answer, print_json, remarks
from heterps_configs import library
from heterps_configs.documents.base import Document
from heterps_configs.documents.chain_training import ChainTrainingConfig
from heterps_configs.documents.graph_training import GraphTrainingConfig
from heterps_configs.errors import HeterpsError

if TYPE_CHECKING:
    from heterps_agents.graphs.training import GraphTrainingResult


def graph_scores(result: GraphTrainingResult) -> str:
    """One sentence on what a training run reached."""
    scores = result.scores
    return (
        f"{result.steps:,} nodes placed in {result.seconds:.0f} s; step time on the held-out "
        f"set, of that of earliest finish: greedy mean {scores['greedy_mean']:.1%}, best of 16 "
        f"samples mean {scores['samples16_mean']:.1%}"
    )


def train_graphs_with_progress(
    config: GraphTrainingConfig, folder: Path, *, resume: bool = False, command: str = ""
) -> GraphTrainingResult:
    """`heterps_agents.graphs.training.train_graphs` with a progress bar on stderr."""
    with training_bar("preparing") as bar:
        # torch takes seconds to load; the bar is there already.
        from heterps_agents.graphs.training import GraphTrainingProgress, train_graphs

        def show(state: GraphTrainingProgress) -> None:
            share = state.step_time_share
            held_out = "" if math.isnan(share) else f"  held-out {share:.1%} of earliest finish"
            now = f"{state.steps:,} nodes  reward {state.reward:.3f}{held_out}"
            bar(state.share, now)

        return train_graphs(config, folder, resume, show, command)


if TYPE_CHECKING:
    from heterps_agents.graphs.training import GraphTrainingResult
    from heterps_agents.training.run import TrainingResult

Config = TypeVar("Config", bound=Document)


def run_train(
    config: str,
    *,
    run_directory: Path | None,
    resume: bool,
    overrides: list[str],
    output: Path | None,
    as_json: bool,
) -> None:
    """Trains, prints the scores, and says where everything is."""
    loaded = library.load("training", config)
    folder = run_directory or Path("runs/train") / Path(config).stem
    command = shlex.join(
        ["heterps", "train", "--config", config, *(f"--set={text}" for text in overrides)]
    )
    result: TrainingResult | GraphTrainingResult
    if isinstance(loaded, GraphTrainingConfig):
        from heterps.commands.train import graph_scores, train_graphs_with_progress

        graphs = override(loaded, overrides)
        _say_where_to_look(folder)
        result = train_graphs_with_progress(graphs, folder, resume=resume, command=command)
        scores = graph_scores(result)
    else:
        assert isinstance(loaded, ChainTrainingConfig)
        chains = override(loaded, overrides)
        _say_where_to_look(folder)
        result = train_with_progress(chains, folder, resume=resume, command=command)
        scores = _scores(result)
    if output is not None:
        result.policy.save(output)
    if as_json:
        from heterps_agents.learned.policy_file import finite_or_none

        print_json(
            {
                "policy": str(output or result.policy_file),
                "steps": result.steps,
                "seconds": result.seconds,
                "scores": finite_or_none(result.scores),
                "interrupted": result.interrupted,
            }
        )
    else:
        answer.print(scores)
        answer.print(f"policy: {output or result.policy_file}")
        if result.interrupted:
            answer.print(f"interrupted; `--resume --run-directory {folder}` goes on")
    if result.interrupted:
        raise KeyboardInterrupt


def _say_where_to_look(folder: Path) -> None:
    remarks.print(f"TensorBoard: tensorboard --logdir {folder}")


def load_config(reference: str) -> ChainTrainingConfig:
    """A training config by shipped name or path."""
    document = library.load("training", reference)
    assert isinstance(document, ChainTrainingConfig)
    return document


def override(config: Config, overrides: list[str]) -> Config:
    """A config with some fields replaced.

    Args:
        config: The base.
        overrides: `field=value` each; the value is YAML.

    Raises:
        HeterpsError: Not of that form, an unknown field, or a value that is not allowed.
    """
    given: dict[str, Any] = {}
    for text in overrides:
        name, separator, value = text.partition("=")
        if not separator:
            raise HeterpsError(f"--set {text!r}: expected field=value, such as budget_s=120")
        given[name.strip()] = yaml.safe_load(value)
    return type(config).from_mapping({**config.to_mapping(), **given}, source="training config")


@contextmanager
def training_bar(now: str) -> Iterator[Callable[[float, str], None]]:
    """A progress bar on stderr.

    Args:
        now: What is shown after it at first.

    Yields:
        What moves it: called with the share of the training that is done, and a new text.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=remarks, transient=True) as progress:
        task = progress.add_task("train", total=1.0, now=now)
        yield lambda share, now: progress.update(task, completed=share, now=now)


def train_with_progress(
    config: ChainTrainingConfig, folder: Path, *, resume: bool = False, command: str = ""
) -> TrainingResult:
    """`heterps_agents.training.train.train` with a progress bar on stderr."""
    with training_bar("preparing problems and optima") as bar:
        # torch and SB3 take seconds to load; the bar is there already.
        from heterps_agents.training.progress import TrainingProgress
        from heterps_agents.training.train import train

        def show(state: TrainingProgress) -> None:
            gap = "" if math.isnan(state.gap_median) else f"  median gap {state.gap_median:.2%}"
            now = f"{state.steps:,} steps  reward {state.episode_reward:.2f}{gap}"
            if state.passes > 0 and state.steps == 0:
                passes = f"pass {state.passes} of {config.imitation_passes}"
                now = f"imitating optima, {passes}  loss {state.imitation_loss:.2f}"
            bar(state.share, now)

        return train(config, folder, resume, show, command)


def _scores(result: TrainingResult) -> str:
    scores = result.scores
    return (
        f"{result.steps:,} environment steps in {result.seconds:.0f} s; gap to the optimum on the "
        f"held-out set: greedy median {scores['greedy_gap_median']:.2%}, "
        f"p95 {scores['greedy_gap_p95']:.2%}; beam 16 median {scores['beam16_gap_median']:.2%}, "
        f"p95 {scores['beam16_gap_p95']:.2%}"
    )
