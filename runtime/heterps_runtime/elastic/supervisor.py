"""The supervisor of an elastic run: watches the processes, and leads them from plan to plan.

It runs in the parent process and hosts the store, so that no worker's end takes anything along that
the others need. What it decides is always the same thing: the next generation (`generations`). A
device that goes breaks the generation; one that comes, or a better plan (`replanning`), ends it at
a step boundary.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import ElasticSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.generations import Generations
from heterps_runtime.elastic.heartbeats import Heartbeats, leave_s
from heterps_runtime.elastic.injection import Injection
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.records import Replanner
from heterps_runtime.elastic.replanning import Replanning
from heterps_runtime.elastic.store import allow_beats, serve
from heterps_runtime.elastic.watch import STUCK
from heterps_runtime.fleet.processes import LOST_HOST, Line, Member, Processes
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.run.hooks import PlanUpdate
from heterps_runtime.run.rank_errors import RankError, first_cause, log_hint
from heterps_runtime.specification.devices import torch_devices

POLL_S = 0.005
# How long processes get to end by themselves: the last checkpoint may still be on its way to a
# remote storage.
END_S = 630.0
# New processes for a device whose process has hung or crashed, in one run. gloo ends a process
# (`std::terminate`) where a connection breaks at a bad moment.
MAX_RESTARTS = 3
CRASHES = (STUCK, -signal.SIGABRT, -signal.SIGSEGV)


class Supervisor:
    """Leads one run.

    Args:
        run: What is known of it.
        processes: Of its devices; none is started yet.
        replanner: Finds plans.
        limits: How closely processes are watched; `stall_s` is set.
        events: Faults and joins that are injected.
        absent: Devices that have no process at first.
    """

    def __init__(
        self,
        run: ElasticState,
        processes: Processes,
        replanner: Replanner,
        *,
        limits: ElasticSettings,
        events: Sequence[RunEvent] = (),
        absent: Sequence[str] = (),
    ) -> None:
        self._run, self._processes, self._directory = run, processes, run.directory
        self._on_message, self._on_plan = run.hooks.on_message, run.hooks.on_plan
        cluster = run.problem.cluster
        self._names = [device.name for device in cluster.devices]
        places = torch_devices(cluster, self._names, run.newest.device)
        self._torch_devices = dict(zip(self._names, places, strict=True))
        self._store = serve()
        self._restarts: dict[str, int] = {}
        self._began_s = time.monotonic()
        self._heartbeats = Heartbeats(self._store, limits)
        self._events = Injection(processes, events, self._start)
        self._generations = Generations(run, self._store, processes, self._heartbeats)
        self._replanning = Replanning(run, processes, replanner, self._events, absent)

    @property
    def port(self) -> int:
        """Of the store, on the loopback."""
        port: int = self._store.port
        return port

    def lead(self, timeout_s: float | None = None) -> None:
        """Starts the processes, and returns when the last step is done.

        Raises:
            NotEnoughDevicesError: The devices that are left are too few for any plan.
            HeterpsError: A worker failed by an error of its own, repairs do not help, or the time
                is over.
        """
        allow_beats(self._store, self._names)
        for name in self._replanning.known:
            self._start(name)
        self._generations.publish(self._run.newest.devices)
        try:
            while not self._generations.is_done:
                for line in self._processes.lines(POLL_S):
                    self._on_line(line)
                self._look_around()
                if timeout_s is not None and time.monotonic() > self._began_s + timeout_s:
                    raise HeterpsError(f"timeout_s: the run was ended after {timeout_s:g} s")
        finally:
            self._replanning.close()
        for name in self._events.unneeded:
            self._on_message(f"join {name!r} was not needed: it was there all the time")
        self._end()

    def _end(self) -> None:
        """Lets the processes end by themselves."""
        for member in list(self._processes.members.values()):
            if not member.is_ready:
                self._processes.remove(member.device)
        self._generations.publish_end()
        deadline_s = time.monotonic() + END_S
        while self._processes.running() and time.monotonic() < deadline_s:
            for _, content in self._processes.lines(POLL_S):
                self._run.on_line(content)
            for member, _ in self._heartbeats.overdue(self._processes.running()):
                self._processes.remove(member.device)

    def _look_around(self) -> None:
        """Everything that is not said by a process."""
        if self._generations.first_step_s is not None:
            self._events.carry_out(self._run.next_step, self._generations.first_step_s)
        for member, code in self._processes.ended():
            self._on_end(member, code)
        for device in self._processes.come_back():
            self._start(device)
        for member, silent_s in self._heartbeats.overdue(self._processes.members.values()):
            self._lose(member, f"no sign of life for {silent_s:g} s")
        self._look_at_plan()
        self._look_for_repairs()
        delay = self._generations.delay(time.monotonic(), has_plan=not self._replanning.is_busy)
        if delay is not None:
            self._on_message(delay)
        self._run.on_poll()
        self._look_at_updates()

    # -- what processes say, and what happens to them

    def _on_line(self, line: Line) -> None:
        device, content = line
        if "ready" in content:
            self._on_ready(device, content["ready"])
        elif "left" in content:
            self._generations.on_left(device, content)
        elif "step_time_s" in content:
            self._generations.on_step(content)
        elif "recovered" in content:
            self._generations.on_recovered(content)
        if "ready" not in content and "left" not in content:
            self._run.on_line(content)

    def _on_ready(self, device: str, pid: int) -> None:
        member = self._processes.members.get(device)
        if member is None or member.process.pid != pid:
            return  # of a process that has gone
        member.is_ready, member.beat_at_s = True, time.monotonic()
        if self._replanning.is_new(device):
            self._on_message(f"{device} has come")
            self._replanning.come(device)

    def _start(self, device: str) -> None:
        number = self._generations.number
        self._processes.start(
            WorkerSettings(
                device=device,
                number=self._names.index(device),
                port=self._store.port,
                torch_device=self._torch_devices[device],
                leave_s=leave_s(self._run.predicted_step_time_s),
                generation=number,
                is_standby=number >= 0 or device not in self._run.newest.devices,
            )
        )

    def _on_end(self, member: Member, code: int) -> None:
        if code == 1:
            self._raise_first_error(member.device)
        why = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        hung = "it hung in a plan that was given up; its log says where"
        why = {STUCK: hung, LOST_HOST: "its host has gone"}.get(code, why)
        num_restarts = self._restarts.get(member.device, 0)
        comes_back = code in CRASHES and num_restarts < MAX_RESTARTS
        if comes_back:
            self._restarts[member.device] = num_restarts + 1
        self._lose(member, why, comes_back=comes_back)

    def _raise_first_error(self, device: str) -> None:
        """Ends the run with the first error of all workers; `device` has failed.

        Raises:
            HeterpsError: Always.
        """
        number = self._names.index(device)
        message = f"rank {number} ({device}): it ended with code 1; " + log_hint(self._directory)
        raise first_cause(self._directory) or RankError(message, str(number))

    def _lose(self, member: Member, why: str, *, comes_back: bool = False) -> None:
        """A device has gone, or is to go; where it comes back, with a new process."""
        device, noticed_s = member.device, time.monotonic()
        self._processes.remove(device)
        allow_beats(self._store, [device])
        if comes_back:  # before anybody asks whether there is a device to wait for
            self._start(device)
        self._generations.lose(device)
        is_rank = device in self._run.newest.devices
        if device not in self._replanning.known and not is_rank:
            return  # it had not come yet
        self._on_message(f"{device} is lost: {why}")
        self._replanning.lose(device, why)
        self._generations.open_recovery(noticed_s).lose(device, member.fault_s, noticed_s)
        self._generations.is_broken |= is_rank
        self._replanning.ask()

    # -- the next generation

    def _look_at_plan(self) -> None:
        """Goes on under a plan that has been found, where it is another one."""
        for device in self._replanning.gathered():
            self._generations.open_recovery().join(device)
        update = self._replanning.take()
        if update is None:
            return
        if update.plan.runs_like(self._run.newest.plan) and not self._generations.is_broken:
            self._generations.recovery = None
            self._run.hooks.on_same_plan(update, self._replanning.alive())
            return
        self._adopt(update)

    def _look_at_updates(self) -> None:
        """Goes on under the newest plan of a controller, unless another is needed first."""
        if not self._run.updates or self._replanning.is_busy or self._generations.is_broken:
            return
        update = self._run.updates.pop()
        self._run.updates.clear()
        if set(update.plan.devices).issubset(self._replanning.alive()):
            self._generations.open_recovery()
            self._adopt(update)

    def _adopt(self, update: PlanUpdate) -> None:
        self._generations.adopt(update)
        self._on_plan(update, self._replanning.alive())

    def _look_for_repairs(self) -> None:
        """Begins anew with the same devices, where ranks have lost one another or all wait."""
        if self._replanning.is_busy or self._generations.is_broken:
            return
        why = self._generations.why_repair(time.monotonic())
        if why is None:
            return
        cause = first_cause(self._directory)
        if cause is not None:
            raise cause  # the others have lost that rank, which is about to end
        update = self._generations.repair()
        self._on_message(f"{why}, and all are alive: connecting anew")
        self._adopt(update)
