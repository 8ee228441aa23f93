"""Elastic runs of a tiny model, for the tests that break them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import (
    CheckpointSettings,
    ElasticSettings,
    RunSettings,
)
from heterps_configs.errors import NotEnoughDevicesError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.records import MembershipChange
from heterps_runtime.elastic.run_elastic import Whereabouts, run_elastic
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.verify import reference_losses
from heterps_runtime.specification.build import build_specification
from tests.runtime.group_plans import grouped, sharing
from tests.runtime.processes import ranks_of
from tests.runtime.small_runs import DEVICES, chain_of, problem_of

# A step takes about 60 ms: longer than it takes to notice what happens in it.
STEP_S = 0.02
LIMIT_S = 240.0
PATIENT = ElasticSettings(heartbeat_s=60.0, stall_s=60.0)
CUTS = {1: (), 2: (4,), 3: (2, 4), 4: (2, 4, 6)}


def elastic_problem(**job: Any) -> Problem:
    """Eight layers on four emulated devices of one speed."""
    return problem_of("sequential", slowdowns=(1.0,) * 4, step_s=STEP_S, **job)


def chain(problem: Problem, devices: Sequence[str]) -> Plan:
    """One stage for each device: no layer is anywhere twice."""
    return chain_of(problem, *CUTS[len(devices)], devices=devices)


class Chains:
    """A replanner that puts a chain over all devices that are alive.

    Args:
        problem: With all devices.
        least: With fewer devices there is no plan.
        before: Called with each change before it is answered.
    """

    def __init__(
        self,
        problem: Problem,
        least: int = 1,
        before: Callable[[MembershipChange], None] = lambda change: None,
    ) -> None:
        self._problem, self._least, self._before = problem, least, before
        self.changes: list[MembershipChange] = []

    def replan(self, change: MembershipChange) -> PlanUpdate:
        """A chain over those that are alive, in the order of the cluster."""
        self.changes.append(change)
        self._before(change)
        if len(change.alive) < self._least:
            raise NotEnoughDevicesError(f"{len(change.alive)} devices; at least {self._least}")
        plan = self.plan_for(change.alive)
        return PlanUpdate(plan, self._problem, change.step, f"a chain of {len(change.alive)}")

    def plan_for(self, devices: Sequence[str]) -> Plan:
        """What runs on some devices."""
        return chain(self._problem, devices)


class Groups(Chains):
    """The same with tensor-parallel groups, of two devices and of what is left.

    Args:
        problem: Of a model that groups can split.
    """

    def plan_for(self, devices: Sequence[str]) -> Plan:
        """An uneven group at the front; on four devices two groups, which share the state."""
        if len(devices) == 4:
            groups = {"a": devices[:2], "b": devices[2:]}
            return sharing(grouped(self._problem, groups, (0.25, 0.75), are_replicas=True))
        groups = {"a": devices[:2], "b": devices[2:]} if len(devices) > 2 else {"a": devices}
        return grouped(self._problem, groups, (0.75, 0.25))


@dataclass
class ElasticCase:
    """One run, with what it said.

    Attributes:
        directory: Of the run.
        on_step: Called with the number of steps that are done.
        on_message: Called with each remark.
    """

    problem: Problem
    directory: Path
    steps: int = 10
    devices: Sequence[str] = DEVICES[:3]
    on_step: Callable[[int], None] = lambda num_done: None
    on_message: Callable[[str], None] = lambda text: None
    messages: list[str] = field(default_factory=list)

    def run(
        self,
        replanner: Chains | None = None,
        *,
        events: Sequence[RunEvent] = (),
        absent: Sequence[str] | None = None,
        plan: Plan | None = None,
        on_plan: Callable[..., None] = lambda update, alive: None,
        limits: ElasticSettings = PATIENT,
        trust_code: bool = False,
        **settings: Any,
    ) -> RunResult:
        """Runs it; by default devices without a stage are absent, and heartbeats may be late."""
        if absent is None:
            absent = [name for name in DEVICES if name not in self.devices]
        given = {"timeout_s": LIMIT_S, **settings}
        return run_elastic(
            self.problem,
            plan or chain(self.problem, self.devices),
            RunSettings(
                steps=self.steps, run_directory=str(self.directory), elastic=limits, **given
            ),
            replanner or Chains(self.problem),
            events=events,
            where=Whereabouts(absent),
            trust_code=trust_code,
            hooks=RunHooks(on_progress=self._progress, on_message=self._say, on_plan=on_plan),
        )

    @property
    def text(self) -> str:
        """All remarks."""
        return "\n".join(self.messages)

    def _progress(self, progress: StepProgress) -> None:
        self.on_step(progress.step + 1)

    def _say(self, text: str) -> None:
        self.messages.append(text)
        self.on_message(text)


def uninterrupted(
    problem: Problem, steps: int, checkpoint: Path | None = None, first_step: int = 0
) -> list[float]:
    """The losses of one process that nothing happens to; or its losses behind a checkpoint."""
    plan = chain_of(problem, devices=DEVICES[:1])
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=steps), devices=plan.devices
    )
    update = {
        "resume_from": None if checkpoint is None else str(checkpoint),
        "first_step": first_step,
        "emulation": None,
    }
    return reference_losses(specification.changed(**update))


def send(directory: Path, device: str, number: signal.Signals) -> None:
    """Sends a signal to the worker of a device, where it has one."""
    pid = ranks_of(directory).get(device)
    if pid is not None:
        # It may end by itself between the two lines.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(is_done: Callable[[], bool], seconds: float) -> bool:
    """Whether something came true within a time."""
    deadline_s = time.monotonic() + seconds
    while time.monotonic() < deadline_s:
        if is_done():
            return True
        time.sleep(0.02)
    return is_done()


def controller(directory: Path, folder: Path) -> None:
    """A long run with checkpoints, in a process that a test kills; says how many steps are done."""
    problem = elastic_problem()
    case = ElasticCase(problem, directory, steps=10_000)
    case.on_step = lambda num_done: print(num_done, flush=True)
    case.run(checkpoint=CheckpointSettings(folder=str(folder), every=2))


if __name__ == "__main__":
    controller(Path(sys.argv[1]), Path(sys.argv[2]))
