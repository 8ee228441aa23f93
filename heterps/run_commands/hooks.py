"""Who is told while a run goes on: the terminal, TensorBoard, the controller of an online run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from heterps.online.drift_watch import DriftWatch
from heterps.reports.console import remarks
from heterps.reports.run_progress import RunProgress
from heterps.reports.run_report import evaluation_line
from heterps.reports.run_tensorboard import RunBoard
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import Evaluation
from heterps_runtime.run.hooks import Controller, PlanUpdate, RunHooks

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController
    from heterps_runtime.results.measurements import Measurements


def make_controller(problem: Problem, plan: Plan, settings: RunSettings) -> OnlineController:
    """The controller of an online run, which starts from a shipped policy or a policy file."""
    from heterps.online.controller import OnlineController
    from heterps_agents.learned.policy import Policy

    return OnlineController(
        problem,
        plan,
        Policy.load(settings.online.policy),
        settings.online,
        seed=settings.seed,
        on_message=lambda text: remarks.print(f"online: {text}", soft_wrap=True),
    )


def as_runtime_controller(watcher: OnlineController) -> Controller:
    """What the runtime calls with every measurement."""

    def observe(measurements: Measurements) -> PlanUpdate | None:
        plan = watcher.observe(
            measurements.step, measurements.remaining_steps, measurements.stage_measurements()
        )
        return None if plan is None else PlanUpdate(plan, watcher.problem)

    return observe


@contextmanager
def shown(
    problem: Problem,
    steps: int,
    title: str,
    *,
    watcher: OnlineController | None = None,
    board: RunBoard | None = None,
    is_quiet: bool = False,
) -> Iterator[RunHooks]:
    """Shows a run's progress and remarks on stderr, and tells those who follow its steps.

    Args:
        problem: What the plan was made for.
        steps: Optimizer steps, from the beginning of training.
        title: What the progress is called.
        watcher: The controller of an online run.
        board: Gets every step, too.
        is_quiet: Without a terminal no progress is shown.
    """
    batch = problem.job.global_batch_size
    watch = DriftWatch(
        lambda text: remarks.print(f"online: {text}", soft_wrap=True),
        None if watcher is None else watcher.told,
    )
    with RunProgress(title, steps, batch, is_quiet=is_quiet) as bar:

        def show(step: StepProgress) -> None:
            events = []
            if watcher is not None:
                events = watch.take(step)
                watcher.on_drift(events)
            bar(step, watch.text)
            if board is not None:
                board(step)
                board.on_drift(events)

        def show_evaluation(found: Evaluation) -> None:
            remarks.print(evaluation_line(found), soft_wrap=True)
            if board is not None:
                board.on_evaluation(found)

        yield RunHooks(
            controller=None if watcher is None else as_runtime_controller(watcher),
            on_progress=show,
            on_message=lambda text: remarks.print(text, soft_wrap=True),
            on_evaluation=show_evaluation,
            drifts=lambda: watch.events,
        )
