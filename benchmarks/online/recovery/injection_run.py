"""One run of the fault injections, in a process of its own.

    python -m benchmarks.online.recovery.injection_run FOLDER [--resume] [--quiet]
    python -m benchmarks.online.recovery.injection_run --serve

FOLDER has `case.json`; the run leaves `outcome.json` there: losses by step, recoveries, remarks.
With --quiet nothing is done to it.
With --serve, folders come as lines of standard input, the process that runs each is forked, and so
are those of its devices; a line with its number says that it has begun, one with its
exit code that it has ended.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks.online.recovery.injection_cases import (
    CHECKPOINT_EVERY,
    GROUP_PLANS,
    HEARTBEAT_S,
    Action,
    Case,
    plan_left,
    plan_named,
    problem,
)
from heterps.online.elastic import ElasticController
from heterps_agents.recovery.plans import rule_plans
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, ElasticSettings, RunSettings
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import NotEnoughDevicesError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.elastic import worker as elastic_worker
from heterps_runtime.elastic.records import MembershipChange, Replanner
from heterps_runtime.elastic.run_elastic import run_elastic
from heterps_runtime.fleet import local as fleet_local
from heterps_runtime.models.build import build_module
from heterps_runtime.process.template import Template
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.specification.build import why_not_run
from heterps_runtime.state.checkpoint_files import complete_checkpoints

# Files of checkpoints are larger, logs smaller.
FULL_DISK_BYTES = 30_000
# An action waits for its step or its message no longer.
WAIT_S = 30.0


class Rules:
    """Plans by the rules of recovery alone: the fastest that there is."""

    def __init__(self, of: Problem) -> None:
        self._problem = of

    def replan(self, change: MembershipChange) -> PlanUpdate:
        """See `heterps_runtime.elastic.records.Replanner`."""
        gone = set(self._problem.device_named) - set(change.alive)
        left = without_devices(self._problem, gone)
        plans = rule_plans(left, change.plan, sorted(gone))
        if not plans:
            raise NotEnoughDevicesError("no rule has a plan")
        plan = min(plans.values(), key=lambda each: estimate(left, each).step_time_s)
        return PlanUpdate(plan, left, change.step, "rules alone")


class ByHand:
    """Plans that do not depend on any rule: a chain of what is left.

    Args:
        of: The problem.
        has_groups: Whether it begins with a group.
    """

    def __init__(self, of: Problem, *, has_groups: bool) -> None:
        self._problem, self._has_groups = of, has_groups

    def replan(self, change: MembershipChange) -> PlanUpdate:
        """See `heterps_runtime.elastic.records.Replanner`."""
        plan = plan_left(change.alive, self._problem, has_groups=self._has_groups)
        return PlanUpdate(plan, self._problem, change.step, "by hand")


@dataclass
class Injector:
    """Does what a case says, in a thread beside the run.

    Attributes:
        done: What was done, with the time since the begin.
        done_at_s: When something was done to a process, since the begin.
        steps_at_s: When each report of a step came, since the begin.
    """

    case: Case
    folder: Path
    done: list[str] = field(default_factory=list)
    done_at_s: list[float] = field(default_factory=list)
    steps_at_s: list[float] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    num_steps_done: int = 0
    num_plans: int = 0
    _news: threading.Condition = field(default_factory=threading.Condition)
    _began_s: float = field(default_factory=time.monotonic)

    def on_progress(self, progress: StepProgress) -> None:
        """A step is done."""
        self.steps_at_s.append(self._elapsed_s())
        with self._news:
            self.num_steps_done = max(self.num_steps_done, progress.step + 1)
            self._news.notify_all()

    def on_plan(self, update: PlanUpdate, alive: Sequence[str]) -> None:
        """The run goes on under another plan."""
        with self._news:
            self.num_plans += 1
            self._news.notify_all()

    def on_message(self, text: str) -> None:
        """The run has a remark."""
        with self._news:
            self.messages.append(text)
            self._news.notify_all()

    def run(self) -> None:
        """All actions in their order."""
        for action in self.case.actions:
            with self._news:
                if not self._news.wait_for(partial(self._is_due, action), WAIT_S):
                    self.done.append(f"{action.act} {action.device}: its moment did not come")
                    continue
            time.sleep(action.delay_s)
            at_s = self._elapsed_s()
            text = _ACTS[action.act](self, action)
            self.done_at_s.append(at_s)
            self.done.append(f"{at_s:.3f} s {text}")

    def _is_due(self, action: Action) -> bool:
        is_said = action.message is None or any(action.message in text for text in self.messages)
        has_steps = action.step is None or self.num_steps_done >= action.step
        return is_said and has_steps and self.num_plans >= action.generation

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def signal(self, action: Action, number: signal.Signals) -> str:
        """Sends a signal to the process of a device."""
        pid = self.pid_of(action.device)
        if pid is None:
            return f"{action.act} {action.device}: it has no process"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return f"{action.act} {action.device}"

    def pid_of(self, device: str) -> int | None:
        """The newest process of a device, by the name that it gives itself."""
        found = [
            pid for pid, _ in processes_in(self.folder) if _name_of(pid) == f"heterps {device}"
        ]
        return max(found, default=None)

    def corrupt(self, action: Action) -> str:
        """Flips a byte in the middle of a file of the newest checkpoint."""
        newest = complete_checkpoints(self.folder / "checkpoints")[-1:]
        files = sorted(path for folder in newest for path in folder.glob("*.safetensors"))
        if not files:
            return "corrupt: there is no checkpoint"
        path = files[self.case.seed % len(files)]
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0xFF]))
        return f"corrupt {path.parent.name}/{path.name}"

    def limit(self, action: Action) -> str:
        """Lets a process write small files only, as a full disk would, or as many as it likes."""
        pid = self.pid_of(action.device)
        if pid is None:
            return f"{action.act} {action.device}: it has no process"
        hard = resource.RLIM_INFINITY
        soft = FULL_DISK_BYTES if action.act == "fill disk" else hard
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
        return f"{action.act} {action.device}"

    def end_supervisor(self, action: Action) -> str:
        """Ends this process as a crash would."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"


_ACTS: dict[str, Callable[[Injector, Action], str]] = {
    "kill": lambda run, action: run.signal(action, signal.SIGKILL),
    "stop": lambda run, action: run.signal(action, signal.SIGSTOP),
    "continue": lambda run, action: run.signal(action, signal.SIGCONT),
    "corrupt": Injector.corrupt,
    "fill disk": Injector.limit,
    "free disk": Injector.limit,
    "kill supervisor": Injector.end_supervisor,
}


def processes_in(folder: Path) -> list[tuple[int, str]]:
    """Processes that work in a folder or below it: number and command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (path / "cwd").readlink().is_relative_to(folder):
                text = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if text:  # otherwise it has ended, and nobody has asked for its code yet
                    found.append((int(path.name), text))
    return found


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def main(folder: Path, options: Sequence[str], *, is_forked: bool = False) -> None:
    """Runs the case of a folder."""
    os.chdir(folder)  # by which all its processes are known
    if is_forked:
        template = Template.of_this_process(elastic_worker.main)
        setattr(fleet_local, "start_template", lambda *_: template)  # noqa: B010
    case = Case.from_file(folder / "case.json")
    injector = Injector(case, folder)
    of = problem(is_of_blocks=case.is_of_blocks)
    plan = plan_named(case.plan, of)
    replanner: Replanner = Rules(of)
    if case.is_of_blocks:
        replanner = ByHand(of, has_groups=case.plan in GROUP_PLANS)
    elif case.has_controller:
        replanner = ElasticController(of, plan, on_message=injector.on_message)
    if "--quiet" not in options:
        threading.Thread(target=injector.run, daemon=True).start()
    outcome: dict[str, Any] = {"error": None}
    try:
        result = run_elastic(
            of,
            plan,
            RunSettings(
                steps=case.steps,
                run_directory=str(folder / "run"),
                checkpoint=CheckpointSettings(
                    folder=str(folder / "checkpoints"), every=CHECKPOINT_EVERY
                ),
                resume="--resume" in options,
                elastic=ElasticSettings(heartbeat_s=HEARTBEAT_S),
            ),
            replanner,
            events=[RunEvent(step=step, join=device) for device, step in case.joins],
            hooks=RunHooks(
                on_progress=injector.on_progress,
                on_message=injector.on_message,
                on_plan=injector.on_plan,
            ),
        )
        outcome["first_step"] = result.first_step
        outcome["losses"] = list(result.losses)
        outcome["recoveries"] = [entry.model_dump(mode="json") for entry in result.recoveries]
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
    outcome["messages"], outcome["done"] = injector.messages, injector.done
    outcome["done_at_s"], outcome["steps_at_s"] = injector.done_at_s, injector.steps_at_s
    write_text(folder / "outcome.json", json.dumps(outcome, indent=1))


def serve() -> None:
    """Forks a process for every line."""
    keep_compiler_out()
    split = problem(is_of_blocks=True)
    build_module(cast(ModelSource, split.profile.source))
    assert why_not_run(split, plan_named("two groups", split)) is None
    of = problem()
    build_module(cast(ModelSource, of.profile.source))
    plan = plan_named("chain of four", of)
    # Compiled planners are loaded once for all runs.
    rules = MembershipChange(0, 1, ("d1",), (), ("d0", "d2", "d3"), plan)
    Rules(of).replan(rules)
    ElasticController(of, plan).replan(rules)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        folder, *options = line.split()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open(Path(folder, "log.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            try:
                main(Path(folder), options, is_forked=True)
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(0)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        main(Path(sys.argv[1]).resolve(), sys.argv[2:])
