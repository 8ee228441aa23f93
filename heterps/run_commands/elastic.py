"""`heterps run --elastic`: the run that goes on without lost devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.state.checkpoint_files import CheckpointDocument, complete_checkpoints

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController
    from heterps.online.spot_run import SpotRun
    from heterps_runtime.fleet.others import OtherHosts


def run_with_recovery(
    problem: Problem,
    plan: Plan,
    settings: RunSettings,
    hooks: RunHooks,
    *,
    events: Sequence[RunEvent] = (),
    spot: SpotRun | None = None,
    watcher: OnlineController | None = None,
    others: OtherHosts | None = None,
) -> RunResult:
    """`heterps_runtime.elastic.run_elastic.run_elastic` with the controller that chooses plans.

    Args:
        problem: With all devices.
        plan: What runs first.
        settings: Of the run.
        hooks: Who is told.
        events: What is done to devices.
        spot: A spot trace that is lived through; its report is the caller's to finish.
        watcher: The controller of an online run.
        others: The other hosts of a run on several.
    """
    from heterps.online.elastic import ElasticController
    from heterps_runtime.elastic.run_elastic import Whereabouts, run_elastic

    saving = settings.saving
    if spot is not None:
        events = (*events, *spot.events(problem, plan))
        hooks = replace(hooks, on_progress=spot.noting(hooks.on_progress))
    absent = absent_at_first(events, plan)
    controller = ElasticController(
        problem,
        plan,
        settings.elastic,
        absent=absent,
        checkpoint_step=lambda: newest_step(saving),
        seed=settings.seed,
        on_message=lambda text: hooks.on_message(f"elastic: {text}"),
    )

    def on_plan(update: PlanUpdate, alive: Sequence[str]) -> None:
        controller.goes_on(update, alive)
        if watcher is not None:
            watcher.plan_changed(update.plan, update.problem, alive)

    heard = replace(hooks, on_plan=on_plan, on_same_plan=on_plan)
    with controller:
        where = Whereabouts(absent, others)
        return run_elastic(
            problem, plan, settings, controller, events=events, where=where, hooks=heard
        )


def absent_at_first(events: Sequence[RunEvent], plan: Plan) -> list[str]:
    """Devices that only come later: they have no stage, and joining is the first they do."""
    first: dict[str, str] = {}
    for event in sorted(events, key=lambda event: (event.step or 0, event.time_s or 0.0)):
        if event.slow is None:
            first.setdefault(event.subject, event.kind)
    return [name for name, kind in first.items() if kind == "join" and name not in plan.devices]


def newest_step(checkpoint: CheckpointSettings | None) -> int:
    """Step of the newest complete checkpoint in the local folder; 0 for none."""
    for path in reversed(complete_checkpoints(Path(checkpoint.folder)) if checkpoint else []):
        try:
            return CheckpointDocument.of(path).step
        except HeterpsError:
            continue  # removed or damaged meanwhile
    return 0
