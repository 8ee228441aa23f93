"""`heterps train`: trains a policy for chains or for graphs, with a progress bar."""

from __future__ import annotations

import json
import math
import shlex
import string
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from heterps.reports.console import (
    SparseLines,
    answer,
    percent_text,
    print_json,
    remarks,
    say_when_compiling,
)
from heterps_configs import library
from heterps_configs.documents.base import parse_yaml
from heterps_configs.documents.training import (
    ALGORITHMS,
    ChainTrainingConfig,
    GraphTrainingConfig,
)
from heterps_configs.documents.yaml_files import to_yaml
from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.hyperparameters import (
    hyperparameters_of,
    read_hyperparameters,
    with_zoo_name,
)
from heterps_configs.interrupts import ended_by_sigterm, exit_code
from heterps_configs.outputs import file_name_of, try_outputs

if TYPE_CHECKING:
    from heterps_agents.graphs.policy import GraphPolicy
    from heterps_agents.learned.policy import Policy
    from heterps_agents.training.run import TrainingProgress, TrainingResult

AnyConfig = ChainTrainingConfig | GraphTrainingConfig


ENDING = (
    "interrupted, and saved; now the policy is scored for its file, which can take half a minute "
    "(Ctrl-C ends it at once, without that file)"
)
_ENDS = {"budget_s", "total_steps"}


class Words(NamedTuple):
    """How the training of one kind of policy is shown: format strings of `shown`.

    Attributes:
        preparing: Before the first update.
        now: Of a `TrainingProgress`.
        score: The same, after the first evaluation.
        result: One sentence, of the fields and scores of a `TrainingResult`.
    """

    preparing: str
    now: str
    score: str
    result: str


CHAINS = Words(
    "preparing problems and optima",
    "{steps:,} steps  reward {reward:.2f}",
    "  median gap {score:.2%}",
    "{steps:,} environment steps in {seconds:.0f} s; gap to the optimum on the held-out set: "
    "greedy median {greedy_gap_median:.2%}, p95 {greedy_gap_p95:.2%}; "
    "beam 16 median {beam16_gap_median:.2%}, p95 {beam16_gap_p95:.2%}",
)
IMITATED = CHAINS._replace(
    result=CHAINS.result.replace("{steps:,} environment steps", "{passes} passes of imitation")
)
GRAPHS = Words(
    "preparing",
    "{steps:,} nodes  reward {reward:.3f}",
    "  held-out {score:.1%} of earliest finish",
    "{steps:,} nodes placed in {seconds:.0f} s; step time on the held-out set, of that of earliest "
    "finish: greedy mean {greedy_mean:.1%}, best of 16 samples mean {samples16_mean:.1%}",
)


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> Any:
        if format_spec.endswith("%"):
            return percent_text(value, int(format_spec.strip(".%")))
        return super().format_field(value, format_spec)


def shown(text: str, **fields: Any) -> str:
    """A format string with its fields, shares as everywhere: `{gap:.2%}` becomes 1.25 %."""
    return _Formatter().format(text, **fields)


class TrainingRequest(NamedTuple):
    """A training config, and what differs from it.

    Attributes:
        config: Shipped name or file.
        overrides: `field=value` each.
        algorithm: Instead of what the config does.
        hyperparameters: A file with an entry for the config's environment; `overrides` outdo it.
    """

    config: str
    overrides: Sequence[str] = ()
    algorithm: str | None = None
    hyperparameters: Path | None = None


def run_train(
    asked: TrainingRequest,
    *,
    run_directory: Path | None,
    resume: bool,
    show_hyperparameters: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Trains, prints the scores, and says where everything is.

    Args:
        asked: How to train.
        run_directory: By default named by the config and what differs from it.
        resume: Go on there.
        show_hyperparameters: Print the entry of a file of hyper-parameters instead of training.
        output: Write the policy here too.
        as_json: Print JSON.

    Raises:
        HeterpsError: Anything of this is not known, or not allowed.
    """
    config, hyperparameters = asked.config, asked.hyperparameters
    base = load_config(config)
    overrides = [*of_algorithm(asked.algorithm, base), *asked.overrides]
    named = overrides
    if hyperparameters is not None:
        # Its name stands for what is in it.
        named = [*overrides, hyperparameters.stem]
        overrides = [*of_file(hyperparameters, base), *overrides]
    settings = _overridden(base, overrides, hyperparameters)
    _check_alone(asked.algorithm, settings)
    if show_hyperparameters:
        answer.print(to_yaml(hyperparameters_of(settings)), end="", soft_wrap=True, markup=False)
        return
    folder = run_directory or Path("runs/train") / run_name(config, named)
    try_outputs({"--output": (output, (".npz",))}, {"--run-directory": folder})
    command = shlex.join(
        ["heterps", "train", "--config", config, *(f"--set={text}" for text in overrides)]
    )
    say_when_compiling()
    with _interrupts_explained(folder), ended_by_sigterm():
        logs = f"TensorBoard: tensorboard --logdir {folder}"
        result = train_with_progress(
            settings, folder, resume=resume, command=command, says=logs, is_quiet=as_json
        )
        _leave(result, settings, output, as_json)
        if result.interrupt is not None:
            raise result.interrupt


@contextmanager
def _interrupts_explained(folder: Path) -> Iterator[None]:
    """After an interrupt, says what there is to go on from."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        has_checkpoint = (folder / "checkpoint.pt").is_file()
        more = "the same command with --resume goes on" if has_checkpoint else "nothing was saved"
        remarks.print(f"interrupted; {more}", soft_wrap=True)
        raise typer.Exit(exit_code(interrupt)) from None


def _leave(
    result: TrainingResult[Policy] | TrainingResult[GraphPolicy],
    settings: AnyConfig,
    output: Path | None,
    as_json: bool,
) -> None:
    """The policy where it was asked for, and the answer."""
    written = None if result.unwritten else result.policy_file
    try:
        if output is not None:
            result.policy.save(output)
            written = output
        elif result.unwritten:
            raise HeterpsError(f"{result.unwritten}; the trained policy is lost: --output FILE")
    finally:
        _print(result, settings, written, as_json)
    if result.unwritten:
        warnings.warn(result.unwritten, stacklevel=1)


def _overridden(base: AnyConfig, overrides: list[str], hyperparameters: Path | None) -> AnyConfig:
    """`override`; where a file says some of it, by the names of that file."""
    try:
        return override(base, overrides)
    except DocumentError as error:
        if hyperparameters is None:
            raise
        source = f"{error.source} with {hyperparameters}"
        raise DocumentError(source, map(with_zoo_name, error.problems)) from None


def of_algorithm(algorithm: str | None, base: AnyConfig) -> list[str]:
    """What `--algorithm` sets, as `--set` has it."""
    if algorithm is None:
        return []
    if algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    if isinstance(base, GraphTrainingConfig):
        raise HeterpsError(
            f"--algorithm {algorithm}: chooses for chains; a policy for graphs learns by PPO and, "
            "in each update, from the annealed best of its own placements"
        )
    alone = ["imitation_passes=0"] if algorithm == "ppo" else []
    return [f"algorithm={algorithm}", *alone]


def _check_alone(algorithm: str | None, settings: AnyConfig) -> None:
    """Refuses PPO alone that imitates after all."""
    passes = getattr(settings, "imitation_passes", 0)
    if algorithm == "ppo" and passes:
        raise HeterpsError(
            f"--algorithm ppo: is PPO alone, and imitation_passes is {passes}; without --algorithm "
            "PPO follows imitation"
        )


def of_file(path: Path, base: AnyConfig) -> list[str]:
    """What a file of hyper-parameters changes, as `--set` has it."""
    before = base.model_dump(mode="json")
    return [
        f"{name}={json.dumps(value)}"
        for name, value in read_hyperparameters(path, base).items()
        if before.get(name) != value
    ]


def run_name(config: str, overrides: list[str]) -> str:
    """The config and what differs from it: `quick`, `quick,seed=1`."""
    stays = {"total_steps", "budget_s"}  # a run with more of them goes on
    changed = [text for text in overrides if text.partition("=")[0] not in stays]
    return file_name_of(",".join([Path(config).stem, *sorted(changed)]))


def _print(
    result: TrainingResult[Policy] | TrainingResult[GraphPolicy],
    settings: AnyConfig,
    written: Path | None,
    as_json: bool,
) -> None:
    """The scores, and where the policy is; None: nowhere."""
    if as_json:
        from heterps_agents.learned.policy_file import finite_or_none

        print_json(
            {
                "policy": None if written is None else str(written),
                "steps": result.steps,
                "passes": result.passes,
                "seconds": result.seconds,
                "scores": finite_or_none(result.scores),
                "interrupted": result.interrupted,
            }
        )
    else:
        answer.print(shown(_words(settings).result, **result._asdict(), **result.scores))
        if written is not None:
            answer.print(f"policy: {written}")


def load_config(reference: str) -> AnyConfig:
    """A training config by shipped name or path."""
    document = library.load("training", reference)
    assert isinstance(document, ChainTrainingConfig | GraphTrainingConfig)
    return document


def override(config: AnyConfig, overrides: list[str]) -> AnyConfig:
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
        given[name.strip()] = parse_yaml(value, f"--set {name.strip()}")
    if len(_ENDS & given.keys()) == 1:
        # Who names one end of a run means it, whatever the config's own is.
        given = dict.fromkeys(_ENDS) | given
    return type(config).from_mapping({**config.to_mapping(), **given}, source="training config")


def train_with_progress(
    config: AnyConfig,
    folder: Path,
    *,
    resume: bool = False,
    command: str = "",
    says: str = "",
    is_quiet: bool = False,
) -> TrainingResult[Policy] | TrainingResult[GraphPolicy]:
    """`heterps_agents.training.train.train` with a progress bar, or lines, on stderr.

    Args:
        config: As there.
        folder: As there.
        resume: As there.
        command: As there.
        says: A line for it, which a run that cannot begin or go on there does not get.
        is_quiet: Without a terminal no progress is shown.
    """
    words, lines = _words(config), SparseLines(time.monotonic())
    has_lines = not (remarks.is_terminal or is_quiet)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=remarks, transient=True) as bar:
        task = bar.add_task("train", total=1.0, now=words.preparing)
        # torch and SB3 take seconds to load; the bar is there already.
        from heterps_agents.training.run import check_directory
        from heterps_agents.training.train import train

        check_directory(config, folder, resume)
        if says:
            remarks.print(says, soft_wrap=True)

        def show(state: TrainingProgress) -> None:
            if state.is_ending:
                remarks.print(ENDING, soft_wrap=True)
                return
            now = _now(words, state)
            bar.update(task, completed=state.share, now=now)
            if has_lines and lines.is_due(int(10 * state.share), time.monotonic()):
                remarks.print(f"train: {percent_text(state.share, 0)}  {now}", soft_wrap=True)

        return train(config, folder, resume, show, command)


def _words(config: AnyConfig) -> Words:
    if isinstance(config, GraphTrainingConfig):
        return GRAPHS
    return CHAINS if config.runs_ppo else IMITATED


def _now(words: Words, state: TrainingProgress) -> str:
    """Where a run stands, in one line."""
    if state.doing:
        return state.doing
    if state.passes > 0 and state.steps == 0:
        done = f"pass {state.passes} of {state.num_passes}"
        return f"imitating optima, {done}  loss {state.imitation_loss:.2f}"
    text = words.now if math.isnan(state.score) else words.now + words.score
    return shown(text, **state._asdict())
