"""One training run of any policy: its updates, and what happens between them. Imports torch."""

from __future__ import annotations

import contextlib
import io
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple

import torch

from heterps_agents.boards.training import LEARNING, TrainingBoards
from heterps_agents.learned.policy_file import finite_or_none
from heterps_agents.training.clock import Interrupt
from heterps_agents.training.learner import Learner, PolicyType, State
from heterps_configs.documents.training import TrainingConfig
from heterps_configs.documents.yaml_files import write_bytes, write_text
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import check_unused

CONFIG_FILE, CHECKPOINT_FILE, POLICY_FILE, RESULT_FILE = (
    "config.yaml",
    "checkpoint.pt",
    "policy.npz",
    "result.json",
)
CHECKPOINT_VERSION = 4


class TrainingProgress(NamedTuple):
    """Where a run stands.

    Attributes:
        share: Of the budget, 0 to 1.
        seconds: Of training.
        steps: Decisions: environment steps of chains, placed nodes of graphs.
        reward: Mean of recent placements; nan before the first one ends.
        score: Of the last evaluation; nan before. Chains: median gap of greedy decoding to the
            optimum. Graphs: mean of the best of 16 samples' step time over earliest finish.
        num_passes: Of imitation, before the first step.
        passes: How many of them are done.
        imitation_loss: Of the last pass; nan before the first.
        doing: What goes on, where it is neither a pass nor an update of PPO; else empty.
        is_ending: Interrupted, and saved; the policy is scored once more.
    """

    share: float
    seconds: float
    steps: int
    reward: float
    score: float
    num_passes: int
    passes: int
    imitation_loss: float
    doing: str = ""
    is_ending: bool = False


class TrainingResult(NamedTuple, Generic[PolicyType]):
    """What a training run leaves behind.

    Attributes:
        policy: The trained policy.
        policy_file: Where it was written.
        steps: Decisions, all runs of the directory together.
        passes: The same of imitation.
        seconds: The same of training time.
        scores: On held-out problems. Chains: `greedy_gap_median`, `greedy_gap_p95`,
            `beam16_gap_median`, ... on the development set; others with their names in front:
            `development-longer/beam16_gap_median`. Graphs: see `heterps_agents.graphs.evaluation`.
        interrupt: What stopped it before its end, if anything did; `resume=True` goes on.
        unwritten: Why the directory lacks the policy; empty where it has it.
    """

    policy: PolicyType
    policy_file: Path
    steps: int
    seconds: float
    scores: dict[str, float]
    interrupt: KeyboardInterrupt | None
    unwritten: str = ""
    passes: int = 0

    @property
    def interrupted(self) -> bool:
        """Whether it was stopped before its end."""
        return self.interrupt is not None


class TrainingRun(Generic[PolicyType]):
    """A run that updates one step at a time, so that between two updates its state is whole.

    Args:
        learner: Of the run; its preparation is over, and training begins now.
        directory: For config, checkpoint, policy and result.
        boards: Get the curves.
        command: How to make this policy again.
        checkpoint: Go on from there.
    """

    def __init__(
        self,
        learner: Learner[Any, PolicyType],
        directory: Path,
        boards: TrainingBoards,
        command: str = "",
        checkpoint: State | None = None,
    ) -> None:
        self.learner, self.directory, self.command = learner, directory, command
        self._boards = boards
        self._config, self._clock, self._log = learner.config, learner.clock, learner.log
        self._cpu_s, self._ppo_cpu_s, self._learning_s = learner.prepared_cpu_s, 0.0, 0.0
        self._clock.start()
        if checkpoint is not None:
            spent = (checkpoint[name] for name in ("seconds", "steps", "schedule_start_s"))
            self._clock.start(*spent)
            self._cpu_s, self._ppo_cpu_s = checkpoint["cpu_s"], checkpoint["ppo_cpu_s"]
            learner.restore(checkpoint)
        self._first_step, self._drawn_step = self._clock.steps, -1
        self._plan_next()
        write_text(directory / CONFIG_FILE, self._config.to_yaml())
        self._describe()

    def go(self, progress: Callable[[TrainingProgress], None] | None) -> TrainingResult[PolicyType]:
        """Updates until a budget is spent or the user interrupts; saves, scores and exports.

        Args:
            progress: Called after every update, and once when an interrupted run begins to end. If
                it raises KeyboardInterrupt, the run ends there.

        Raises:
            KeyboardInterrupt: A second Ctrl-C; the newest checkpoint stays as it is.
        """
        if self.learner.is_over:
            self._warn_of_nothing_left()
        interrupt = Interrupt()
        with interrupt.watched():
            while not self.learner.is_over and interrupt.cause is None:
                # An interrupt that comes out of an update is raised on: the state is not whole.
                self._update()
                try:
                    if progress is not None:
                        progress(self._progress())
                except KeyboardInterrupt as cause:
                    interrupt.cause = cause
        if self._clock.steps == 0 and self.learner.runs_ppo and interrupt.cause is None:
            self._warn_of_no_step()
        self._save_checkpoint()
        if progress is not None and interrupt.cause is not None:
            with contextlib.suppress(KeyboardInterrupt):  # it ends already
                progress(self._progress()._replace(is_ending=True))
        result = self._finish(interrupt.cause)
        self._log.close()
        return result

    def _update(self) -> None:
        """One update, and what is due after it."""
        learner, clock, log = self.learner, self._clock, self._log
        was_imitating = learner.is_imitating
        cpu_s, start_s = time.process_time(), time.perf_counter()
        learner.update()
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - start_s
        self._cpu_s += cpu_s
        if not was_imitating:
            self._ppo_cpu_s += cpu_s
            self._learning_s += wall_s
            steps_per_second = (clock.steps - self._first_step) / max(self._learning_s, 1e-9)
            log.record("time/steps_per_second", steps_per_second)
            log.record("time/cpu_seconds", self._cpu_s)
        has_imitated = was_imitating and not learner.is_imitating
        if clock.seconds >= self._next_evaluation_s or learner.is_over or has_imitated:
            self._judge()
        if has_imitated:
            clock.start_schedule()
        log.dump(learner.curve_step)
        if clock.seconds >= self._next_checkpoint_s:
            self._save_checkpoint()
        self._plan_next()

    def _judge(self) -> None:
        """Scores on held-out problems, and a picture of one of them."""
        learner = self.learner
        self._boards.judge(learner.by_set(learner.evaluate(self._cpu_s)), learner.curve_step)
        self._draw()

    def _draw(self) -> None:
        learner, step = self.learner, self.learner.curve_step
        if step <= self._drawn_step or (learner.runs_ppo and learner.is_imitating):
            return
        picture = learner.picture()
        if picture is not None:
            board = self._boards.board(LEARNING)
            board.add_image("train/episode", picture, step, dataformats="HWC")
            self._drawn_step = step

    def _warn_of_no_step(self) -> None:
        passes = f"; {self.learner.passes} of {self.learner.num_passes} passes of imitation"
        warnings.warn(
            f"the budget (budget_s {self._config.budget_s}, total_steps {self._config.total_steps})"
            f" ended before the first step of training"
            f"{passes if self.learner.num_passes else ''}: the policy is as it began, or as "
            "imitation left it; give more, such as --set total_steps=100000",
            stacklevel=3,
        )

    def _warn_of_nothing_left(self) -> None:
        config, clock, learner = self._config, self._clock, self.learner
        ends = {"total_steps": config.total_steps, "budget_s": config.budget_s}
        if not learner.runs_ppo:
            ends["imitation_passes"] = learner.num_passes
        given = ", ".join(f"{name} {end}" for name, end in ends.items() if end is not None)
        done = f"{clock.steps} steps" if learner.runs_ppo else f"{learner.passes} passes"
        warnings.warn(
            f"nothing is left to train: {done} in {clock.seconds:.0f} s are done already ({given})",
            stacklevel=3,
        )

    def _progress(self) -> TrainingProgress:
        clock, learner = self._clock, self.learner
        return TrainingProgress(
            learner.share, clock.seconds, clock.steps, learner.reward, learner.score,
            learner.num_passes, learner.passes, learner.imitation_loss, learner.doing,
        )  # fmt: skip

    def _plan_next(self) -> None:
        """Evaluations and checkpoints are due at multiples of their intervals."""
        config, now_s = self._config, self._clock.seconds
        self._next_evaluation_s = _next_multiple(now_s, config.evaluation_every_s)
        self._next_checkpoint_s = _next_multiple(now_s, config.checkpoint_every_s)

    def _describe(self) -> None:
        """The config as text, with the seed and the command, for who looks at the curves."""
        board, text = self._boards.board(LEARNING), f"```yaml\n{self._config.to_yaml()}```"
        step = self.learner.curve_step
        board.add_text("train/config", text, step)
        made = f"seed {self._config.seed}; {self.command or 'made by a program'}"
        board.add_text("train/command", made, step)

    def _describe_end(self, scores: dict[str, float]) -> None:
        """A picture, and settings beside final scores."""
        self._draw()
        kinds = (bool, int, float, str)
        fields, plain = type(self._config).model_fields, self._config.model_dump(mode="json")
        # What tells runs apart: TensorBoard's table shows five columns unasked.
        shown = {
            name: value
            for name, value in plain.items()
            if isinstance(value, kinds)
            and name not in ("description", *self._config.report_fields)
            and (name == "seed" or value != fields[name].default)
        }
        self._boards.finish(shown, self.learner.by_set(scores), self.learner.curve_step)

    def _save_checkpoint(self) -> None:
        """Writes the checkpoint in one move; where the disk is full, the next one may succeed."""
        content = {
            **self.learner.state(),
            "version": CHECKPOINT_VERSION,
            "steps": self._clock.steps,
            "seconds": self._clock.seconds,
            "schedule_start_s": self._clock.schedule_start_s,
            "cpu_s": self._cpu_s,
            "ppo_cpu_s": self._ppo_cpu_s,
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        try:
            write_bytes(self.directory / CHECKPOINT_FILE, buffer.getvalue())
        except HeterpsError as error:
            warnings.warn(f"{error}; the training goes on without it", stacklevel=3)

    def _finish(self, interrupt: KeyboardInterrupt | None) -> TrainingResult[PolicyType]:
        """Scores and exports the policy."""
        policy, steps, seconds = self.learner.policy(), self._clock.steps, self._clock.seconds
        scores = self.learner.scores(policy)
        self._describe_end(scores)
        policy.meta.update(
            command=self.command,
            config=self._config.to_mapping(),
            seed=self._config.seed,
            steps=steps,
            seconds=round(seconds, 3),
            cpu_s=round(self._cpu_s, 3),
            ppo_cpu_s=round(self._ppo_cpu_s, 3),
            **self.learner.remarks(),
            scores=finite_or_none(scores),
        )
        path, unwritten = self.directory / POLICY_FILE, ""
        try:
            policy.save(path)
            write_text(self.directory / RESULT_FILE, json.dumps(policy.meta, indent=1) + "\n")
        except HeterpsError as error:
            # Hours of training: who called can still write it elsewhere.
            unwritten = str(error)
        passes = self.learner.passes
        return TrainingResult(policy, path, steps, seconds, scores, interrupt, unwritten, passes)


def check_directory(config: TrainingConfig, directory: Path, resume: bool) -> None:
    """Refuses a directory that a run cannot begin or go on in.

    Raises:
        HeterpsError: It holds another run (without `resume`), or no checkpoint of one like this; or
            another process trains in it.
    """
    check_unused(directory)
    has_checkpoint = (directory / CHECKPOINT_FILE).is_file()
    if resume and not has_checkpoint:
        raise HeterpsError(f"{directory}: there is no {CHECKPOINT_FILE} to resume from")
    if not resume and has_checkpoint:
        raise HeterpsError(f"{directory}: holds a training run already; resume it or name another")
    if resume:
        before = type(config).from_file(directory / CONFIG_FILE)
        for name in config.fixed_fields:
            old, new = getattr(before, name), getattr(config, name)
            if old != new:
                raise HeterpsError(
                    f"{directory}: was trained with {name} {_as_in_file(old)}, "
                    f"not {_as_in_file(new)}"
                )


# A run with more of them goes on.
_ENDS = ("budget_s", "total_steps")


def warn_of_changes(config: TrainingConfig, directory: Path) -> None:
    """Says which settings of a run that goes on are new: a policy names those of its end alone."""
    before = type(config).from_file(directory / CONFIG_FILE)
    told = {*config.fixed_fields, *config.report_fields, *_ENDS, "description"}
    changes = [
        f"{name} {_as_in_file(new)} instead of {_as_in_file(getattr(before, name))}"
        for name, new in config
        if name not in told and getattr(before, name) != new
    ]
    if changes:
        warnings.warn(
            f"{directory}: goes on with other settings than it began with: {', '.join(changes)}",
            stacklevel=3,
        )


def _as_in_file(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def read_checkpoint(directory: Path) -> State:
    """The checkpoint of a run's directory.

    Raises:
        HeterpsError: It is broken, or of another version of heterps.
    """
    path = directory / CHECKPOINT_FILE
    try:
        # Builds tensors and plain values alone.
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        raise HeterpsError(f"{path}: is not a checkpoint of a training run") from error
    if not isinstance(content, dict):
        raise HeterpsError(f"{path}: is not a checkpoint of a training run")
    if content.get("version") != CHECKPOINT_VERSION:
        raise HeterpsError(f"{path}: was written by another version of heterps; train anew")
    return dict(content)


def _next_multiple(now_s: float, every_s: float) -> float:
    return (now_s // every_s + 1) * every_s
