"""One run of the recovery benchmark, in a process of its own: FOLDER KIND PLAN REPEATS.

Devices are lost and come back at fixed times; the run leaves `recoveries.json` in FOLDER.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.online.recovery.injection_cases import plan_named, problem
from heterps.online.elastic import ElasticController
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, ElasticSettings, RunSettings
from heterps_configs.documents.yaml_files import write_text
from heterps_runtime.elastic import (
    run_elastic as elastic_run,
)
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import RunHooks

HEARTBEAT_S = 1.5
KILL, HANG, TWO = "kill", "hang", "two at once"
_ONE = (("d1",), ("d3",), ("d0",), ("d2",))
# Which devices are lost, in turns.
KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    KILL: _ONE,
    HANG: _ONE,
    TWO: (("d1", "d2"), ("d0", "d3"), ("d2", "d3"), ("d0", "d1")),
}
# Seconds: of one repetition, until the fault in it, and until lost devices come back.
PERIOD_S, FAULT_S, JOIN_S = 9.0, 3.0, 6.0
# Of training before the first repetition; the plans for likely losses are made meanwhile.
LEAD_S = 15.0


# Nobody waits for the last one.
MANY_STEPS = 100_000


class _OverError(Exception):
    """The time is over."""


class _Clock:
    """Ends a run so many seconds after its first step."""

    def __init__(self, until_s: float) -> None:
        self._until_s = until_s
        self._began_s: float | None = None

    def __call__(self, progress: StepProgress) -> None:
        now_s = time.monotonic()
        self._began_s = self._began_s or now_s
        if now_s - self._began_s > self._until_s:
            raise _OverError


def main(folder: Path, kind: str, plan_name: str, repeats: int) -> None:
    """Runs, and writes all recoveries."""
    keep_compiler_out()
    of = problem()
    plan = plan_named(plan_name, of)
    events = []
    for index in range(repeats):
        began_s = LEAD_S + index * PERIOD_S
        for device in KINDS[kind][index % len(KINDS[kind])]:
            fault = RunEvent(
                time_s=began_s + FAULT_S, **{"stop" if kind == HANG else "lose": device}
            )
            events += [fault, RunEvent(time_s=began_s + JOIN_S, join=device)]
    states: list[ElasticState] = []

    class Kept(ElasticState):
        """Of a run that is ended by the clock, and gives no result."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            states.append(self)

    setattr(elastic_run, "ElasticState", Kept)  # noqa: B010
    clock = _Clock(LEAD_S + repeats * PERIOD_S)
    with ElasticController(of, plan) as controller, contextlib.suppress(_OverError):
        elastic_run.run_elastic(
            of,
            plan,
            RunSettings(
                steps=MANY_STEPS,
                run_directory=str(folder / "run"),
                checkpoint=CheckpointSettings(folder=str(folder / "checkpoints"), every=20),
                elastic=ElasticSettings(heartbeat_s=HEARTBEAT_S),
            ),
            controller,
            events=events,
            hooks=RunHooks(on_progress=clock, on_message=lambda text: None),
        )
    found = [entry.model_dump(mode="json") for entry in states[0].recoveries]
    write_text(folder / "recoveries.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]))
