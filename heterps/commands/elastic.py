"""`heterps run --elastic`: its options, and the run that goes on without lost devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from heterps.reports.console import remarks
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.elastic.records import Event
from heterps_runtime.run.parent import PlanUpdate
from heterps_runtime.run.result import RunResult
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from heterps_runtime.state.checkpoint_files import CheckpointDocument, complete_checkpoints

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController
    from heterps.online.spot_run import SpotRun

_EVENT = re.compile(r"(?P<device>[^@]+)@(?P<step>[0-9]+)")


@dataclass(frozen=True)
class ElasticOptions:
    """What belongs to `--elastic`.

    Attributes:
        heartbeat_s: A device without a sign of life for so long is taken for lost.
        tolerated: Devices whose loss at one time is prepared for.
        events: Faults and joins that are injected.
        spot: A spot trace that is lived through.
    """

    heartbeat_s: float = 1.5
    tolerated: int = 1
    events: tuple[Event, ...] = ()
    spot: SpotRun | None = None

    def absent(self, plan: Plan) -> list[str]:
        """Devices that only come later: they have no stage, and joining is the first they do."""
        first: dict[str, str] = {}
        for event in sorted(self.events, key=lambda event: (event.step or 0, event.time_s or 0.0)):
            first.setdefault(event.device, event.kind)
        return [name for name, kind in first.items() if kind == "join" and name not in plan.devices]


def elastic_options(
    is_elastic: bool,
    *,
    heartbeat_s: float | None = None,
    tolerated: int | None = None,
    lose: Sequence[str] = (),
    stop: Sequence[str] = (),
    join: Sequence[str] = (),
    spot_trace: Path | None = None,
    compress: float | None = None,
) -> ElasticOptions | None:
    """What --elastic and the options that need it say together; None without it.

    Raises:
        HeterpsError: One of the others stands without --elastic, or has no such form.
    """
    if not is_elastic:
        given = {
            "--heartbeat": heartbeat_s, "--tolerate": tolerated, "--lose": lose or None,
            "--stop": stop or None, "--join": join or None,
            "--events": spot_trace, "--compress": compress,
        }  # fmt: skip
        for name, value in given.items():
            if value is not None:
                raise HeterpsError(f"{name}: needs --elastic")
        return None
    spot = None
    if spot_trace is not None:
        from heterps.online.spot_run import SpotRun

        spot = SpotRun.of(spot_trace, 1.0 if compress is None else compress)
    elif compress is not None:
        raise HeterpsError("--compress: needs --events FILE.csv")
    events = [
        *(_event("lose", text) for text in lose),
        *(_event("stop", text) for text in stop),
        *(_event("join", text) for text in join),
    ]
    defaults = ElasticOptions()
    return ElasticOptions(
        defaults.heartbeat_s if heartbeat_s is None else heartbeat_s,
        defaults.tolerated if tolerated is None else tolerated,
        tuple(events),
        spot,
    )


def _event(kind: Literal["lose", "stop", "join"], text: str) -> Event:
    match = _EVENT.fullmatch(text)
    if match is None:
        raise HeterpsError(f"--{kind} {text!r}: expected DEVICE@STEP, such as fast@10")
    return Event(kind, match["device"], step=int(match["step"]))


def run_with_recovery(
    problem: Problem,
    plan: Plan,
    options: ElasticOptions,
    *,
    checkpoint: CheckpointSettings | None = None,
    seed: int = 0,
    watcher: OnlineController | None = None,
    on_message: Callable[[str], None] = remarks.print,
    **run_options: Any,
) -> RunResult:
    """`heterps_runtime.elastic.run_elastic.run_elastic` with the controller that chooses plans.

    Args:
        problem: With all devices.
        plan: What runs first.
        options: Of `--elastic`.
        checkpoint: Where and how often to save.
        seed: Of the run and of planners.
        watcher: The controller of an online run.
        on_message: Called with remarks.
        run_options: Others of `run_elastic`.
    """
    from heterps.online.elastic import ElasticController
    from heterps_runtime.elastic.run_elastic import run_elastic

    controller = ElasticController(
        problem,
        plan,
        absent=options.absent(plan),
        tolerated=options.tolerated,
        checkpoint_step=lambda: newest_step(checkpoint),
        seed=seed,
        on_message=lambda text: on_message(f"elastic: {text}"),
    )

    def on_plan(update: PlanUpdate, alive: Sequence[str]) -> None:
        if update.plan != controller.plan:  # by drift; its own it knows
            controller.plan_changed(update.plan, update.problem, alive)
        if watcher is not None:
            watcher.plan_changed(update.plan, update.problem, alive)

    spot = options.spot
    if spot is not None:
        events = (*options.events, *spot.events(problem, plan))
        options = replace(options, events=events)
        run_options["on_progress"] = spot.noting(run_options["on_progress"])
    with controller:
        result = run_elastic(
            problem,
            plan,
            replanner=controller,
            checkpoint=checkpoint,
            seed=seed,
            heartbeat_s=options.heartbeat_s,
            events=options.events,
            absent=options.absent(plan),
            on_plan=on_plan,
            on_message=on_message,
            **run_options,
        )
    if spot is not None:
        spot.finish(result, problem, plan, checkpoint, options.tolerated)
    return result


def newest_step(checkpoint: CheckpointSettings | None) -> int:
    """Step of the newest complete checkpoint in the local folder; 0 for none."""
    for path in reversed(complete_checkpoints(Path(checkpoint.folder)) if checkpoint else []):
        try:
            return CheckpointDocument.of(path).step
        except HeterpsError:
            continue  # removed or damaged meanwhile
    return 0
