"""TensorBoard of a run: every step as it comes, measured and predicted in one chart.

Two TensorBoard runs, `measured` and `predicted`, have the same tags, so that each chart shows both
lines. Steps count from 1, as in the names of checkpoints. `run/` has what is looked at first, then
come devices, stages and messages; the page Custom Scalars has all of a kind in one chart.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from heterps.reports.console import seconds_text
from heterps.reports.run_trace import measured_estimate, named_for_figure
from heterps.reports.ways import recompute_share
from heterps_agents.boards.layout import Chart, Layout
from heterps_configs.documents.plan import Plan
from heterps_configs.units import bytes_text, escaped
from heterps_envs.online.drift_monitor import DriftEvent
from heterps_envs.problem import Problem
from heterps_runtime.results.changes import Replan
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import Evaluation, RunResult
from heterps_runtime.results.step_figures import StepFigures

if TYPE_CHECKING:
    from heterps_agents.boards.board import Board

NAMES = ("measured", "predicted")
LAYOUT = Layout(
    "run",
    (
        Chart("seconds of a step", ("run/step_time_s",)),
        Chart("loss", ("run/loss", "run/evaluation/.*loss")),
        Chart("share of a step that each device idles", ("run_bubble_share/",)),
        Chart("forward seconds of each stage", ("run_stage_forward_s/",)),
        Chart("backward seconds of each stage", ("run_stage_backward_s/",)),
        Chart("seconds of each message", ("run_message_s/",)),
    ),
)
_LATE_MODULES = (
    "heterps.reports.figures",
    "heterps.reports.memory_figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "torch.utils.tensorboard.summary",
)
# Ranks that compute on the same cores have nearly all of them; yet it ends within a minute or so
# where other programs have them, too, and nobody may raise it again.
LOW_PRIORITY = 10


class RunBoard:
    """Writes a run's TensorBoard files, as a context manager: leaving it closes them.

    Args:
        folder: Gets the folders `measured` and `predicted`; event files of an earlier run there are
            replaced, but for a run that goes on.
        problem: Of the run.
        plan: What it begins with.
        is_resumed: The run goes on from a checkpoint.
    """

    def __init__(self, folder: Path, problem: Problem, plan: Plan, is_resumed: bool) -> None:
        self._folder, self._problem, self._plan = folder, problem, plan
        self._is_resumed = is_resumed
        self._writers: dict[str, Board] = {}
        self._generation, self._has_memory = 0, False
        self._importing = threading.Thread(target=_import_figures, name="figures", daemon=True)

    def __enter__(self) -> Self:
        """Opens nothing yet: the first step says where the run begins."""
        return self

    def __exit__(self, *raised: object) -> None:
        """Closes the files, also after an error."""
        for writer in self._writers.values():
            writer.close()

    def __call__(self, progress: StepProgress) -> None:
        """Takes one more step."""
        step = progress.step + 1
        if not self._writers:
            self._open(step)
        measured = self._writers["measured"]
        measured.add_scalar("run/loss", progress.loss, step)
        # People count plans from 1, as steps.
        measured.add_scalar("run_plan/number", progress.generation + 1, step)
        if progress.generation != self._generation:
            self._generation, self._has_memory = progress.generation, False
            measured.add_text("run/re-plans", f"plan {progress.generation + 1} begins", step)
        self._write_figures("predicted", progress.predicted, step)
        if not progress.measured.memory_bytes or self._has_memory:
            self._write_figures("measured", progress.measured, step)
        else:
            # One step of each plan is for memory, which takes time: it says nothing of speed.
            self._has_memory = True
            self._write_memory("measured", progress.measured, step)
            self._write_memory("predicted", progress.predicted, step)

    def on_drift(self, events: Iterable[DriftEvent]) -> None:
        """Notes what has drifted."""
        for event in events:
            self._writers["measured"].add_text("run/drift", event.text, event.step + 1)

    def on_evaluation(self, found: Evaluation) -> None:
        """Takes what an evaluation found."""
        for name, value in found.figures.items():
            self._writers["measured"].add_scalar(f"run/evaluation/{name}", value, found.step)

    def finish(self, result: RunResult) -> None:
        """Adds what is known in the end: figures, re-plans, settings and results."""
        if not self._writers:
            return
        hurry(self._importing)
        from heterps.reports.figures import compared_timelines_figure
        from heterps.reports.memory_figure import memory_figure

        measured, last = self._writers["measured"], result.first_step + len(result.losses)
        for replan in result.replans:
            measured.add_text("run/re-plans", _replan_text(replan), replan.step + 1)
        self._write_settings(result, last)
        if not result.timeline:
            return
        assert result.final_plan is not None
        assert result.final_estimate is not None
        plan = result.final_plan
        title = f"{plan.model} on {plan.cluster}, {plan.job.schedule}"
        both = {"predicted": result.final_estimate, "measured": measured_estimate(result)}
        shares = recompute_share(self._problem, plan)
        figure = compared_timelines_figure(named_for_figure(both), title, shares)
        measured.add_figure("run/timelines", figure, last, close=False)
        for name, estimate in both.items():
            if estimate.memory_curves:
                figure = memory_figure(estimate, f"{title}: memory as {name}")
                self._writers[name].add_figure("run/memory", figure, last, close=False)

    def _open(self, first_step: int) -> None:
        from heterps_agents.boards.board import Board

        for name in NAMES:
            # What an interrupted run wrote after its last checkpoint is done once more.
            self._writers[name] = Board(
                self._folder / name, purge_step=first_step, replaces=not self._is_resumed
            )
        self._writers["measured"].add_layout(LAYOUT)
        self._writers["measured"].add_text("run_plan/stages", _plan_text(self._plan), first_step)
        # Else the command would go on for seconds when the run is over.
        self._importing.start()

    def _write_figures(self, name: str, figures: StepFigures, step: int) -> None:
        scalars = {
            "run/step_time_s": figures.step_time_s,
            "run/samples_per_s": self._problem.job.global_batch_size / figures.step_time_s,
        }
        if figures.bubble_shares:
            shares = figures.bubble_shares
            scalars["run/bubble_share"] = sum(shares.values()) / len(shares)
            scalars |= {f"run_bubble_share/{device}": share for device, share in shares.items()}
        for entry in figures.stages:
            scalars[f"run_stage_forward_s/{entry.stage}_on_{entry.device}"] = entry.forward_s
            scalars[f"run_stage_backward_s/{entry.stage}_on_{entry.device}"] = entry.backward_s
        for route, seconds in figures.links:
            scalars[f"run_message_s/{route.stage}_{route.direction}_to_{route.destination}"] = (
                seconds
            )
        for tag, value in scalars.items():
            self._writers[name].add_scalar(tag, value, step)

    def _write_memory(self, name: str, figures: StepFigures, step: int) -> None:
        for device, num_bytes in figures.memory_bytes.items():
            self._writers[name].add_scalar(f"run_memory_mib/{device}", num_bytes / 2**20, step)

    def _write_settings(self, result: RunResult, last: int) -> None:
        job = self._plan.job
        settings: dict[str, bool | str | float | int] = {
            "planner": escaped(self._plan.planner),
            "model": self._plan.model,
            "cluster": self._plan.cluster,
            "batch": f"{job.global_batch_size} in {job.micro_batch_size}s",
            "schedule": job.schedule,
        }
        values = {
            # Of the whole run: its first plan may have had few of its steps.
            "run_result/step_time_s": result.phases[-1].measured_step_time_s,
            "run_result/samples_per_s": job.global_batch_size
            / result.phases[-1].measured_step_time_s,
            "run_result/bubble_share": result.bubble_share,
        }
        self._writers["measured"].add_results(settings, values, last)


def _import_figures() -> None:
    """What `finish` needs, at a low priority: ranks may compute on the same cores."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
    for module in _LATE_MODULES:
        importlib.import_module(module)


def hurry(thread: threading.Thread) -> None:
    """Gives a thread the priority of the caller, who waits for it; only where that is allowed."""
    if thread.is_alive() and thread.native_id is not None:
        with contextlib.suppress(OSError):
            own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            os.setpriority(os.PRIO_PROCESS, thread.native_id, own)


def _plan_text(plan: Plan) -> str:
    """A table in Markdown."""
    rows = [
        f"| {stage.name} | {', '.join(stage.devices)} | {stage.first_layer}-{stage.last_layer} |"
        for stage in plan.stages
    ]
    heading = f"{plan.model} on {plan.cluster}, planner {plan.planner}, {plan.job.schedule}"
    return "\n".join([heading, "", "| stage | device | layers |", "| --- | --- | --- |", *rows])


def _replan_text(replan: Replan) -> str:
    return (
        f"plan {replan.generation + 1} by {replan.planner}: predicted "
        f"{seconds_text(replan.predicted_step_time_s)}, measured "
        f"{seconds_text(replan.measured_step_time_s)}; moved {bytes_text(replan.bytes_moved)} in "
        f"{seconds_text(replan.seconds)}"
    )
