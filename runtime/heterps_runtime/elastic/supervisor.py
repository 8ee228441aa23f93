"""The supervisor of an elastic run: watches the processes, and leads them from plan to plan.

It runs in the parent process and hosts the store, so that no worker's end takes anything along that
the others need. What it decides is always the same thing: the next generation. A device that goes
breaks the generation; one that comes, or a better plan, ends it at a step boundary. Plans come from
a callback, in a thread: while it thinks, the supervisor goes on watching, and a plan that was asked
for before the last change is thrown away.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import ElasticSettings
from heterps_configs.errors import HeterpsError, NotEnoughDevicesError
from heterps_runtime.elastic.heartbeats import Heartbeats, leave_s, whom_to_wait_for
from heterps_runtime.elastic.injection import Injection
from heterps_runtime.elastic.open_recovery import OpenRecovery
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.records import MembershipChange, Replanner
from heterps_runtime.elastic.store import CONNECT_S, Notice, allow_beats, publish, serve
from heterps_runtime.elastic.watch import STUCK
from heterps_runtime.fleet.processes import LOST_HOST, Line, Member, Processes
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.run.launcher import first_cause, log_hint
from heterps_runtime.run.parent import PlanUpdate
from heterps_runtime.specification.devices import torch_devices

POLL_S = 0.005
# How long a rank may say that others are lost, while all of them are alive.
SETTLE_S = 0.5
# How long processes get to end by themselves: the last checkpoint may still be on its way to a
# remote storage.
END_S = 630.0
# Repairs in a row without a step in between; then something is wrong that no repair mends.
MAX_REPAIRS = 5
# New processes for a device whose process has hung, in one run.
MAX_RESTARTS = 3


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
        self._replanner, self._limits = replanner, limits
        self._events = Injection(processes, events, self._start)
        self._on_message, self._on_plan = run.hooks.on_message, run.hooks.on_plan
        cluster = run.problem.cluster
        self._names = [device.name for device in cluster.devices]
        places = torch_devices(cluster, self._names, run.newest.device)
        self._torch_devices = dict(zip(self._names, places, strict=True))
        self._store = serve()
        self._number = -1  # of the newest notice, which is that of the newest generation
        self._broken_below = 0
        # What the run was planned for last, and which of these have been lost since.
        self._known, self._gone = set(self._names) - set(absent), set[str]()
        self._holders: set[str] = set()
        self._finished: set[str] = set()
        self._complaint_s: float | None = None
        self._first_complaint = ""  # since the last step
        self._num_repairs = 0
        self._restarts: dict[str, int] = {}
        self._planner = ThreadPoolExecutor(1, "heterps-replan")
        self._planning: Future[PlanUpdate] | None = None
        self._asked, self._planned_for = 0, 0
        self._is_broken = False
        self._has_steps = False  # the newest generation has done one
        self._recovery: OpenRecovery | None = None
        self._began_s = self._last_step_s = time.monotonic()
        self._heartbeats = Heartbeats(self._store, limits)
        self._first_step_s: float | None = None

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
        for name in self._known:
            self._start(name)
        self._publish(self._run.newest.devices)
        try:
            while not self._finished.issuperset(self._run.newest.devices):
                for line in self._processes.lines(POLL_S):
                    self._on_line(line)
                self._look_around()
                if timeout_s is not None and time.monotonic() > self._began_s + timeout_s:
                    raise HeterpsError(f"the run was ended after {timeout_s:g} s")
        finally:
            self._planner.shutdown(wait=False, cancel_futures=True)
        for name in self._events.unneeded:
            self._on_message(f"join {name!r} was not needed: it was there all the time")
        self._end()

    def _end(self) -> None:
        """Lets the processes end by themselves."""
        for member in list(self._processes.members.values()):
            if not member.is_ready:
                self._processes.remove(member.device)
        self._number += 1
        publish(self._store, Notice(number=self._number, broken_below=self._broken_below))
        deadline_s = time.monotonic() + END_S
        while self._processes.running() and time.monotonic() < deadline_s:
            for _, content in self._processes.lines(POLL_S):
                self._run.on_line(content)
            for member, _ in self._heartbeats.overdue(self._processes.running()):
                self._processes.remove(member.device)

    def _look_around(self) -> None:
        """Everything that is not said by a process."""
        if self._first_step_s is not None:
            self._events.carry_out(self._run.next_step, self._first_step_s)
        for member, code in self._processes.ended():
            self._on_end(member, code)
        for device in self._processes.come_back():
            self._start(device)
        for member, silent_s in self._heartbeats.overdue(self._processes.members.values()):
            self._lose(member, f"no sign of life for {silent_s:g} s")
        self._look_at_plan()
        self._look_for_repairs(time.monotonic())
        self._tell_delay(time.monotonic())
        self._run.on_poll()
        if self._run.updates and self._planning is None and not self._is_broken:
            update = self._run.updates.pop()
            self._run.updates.clear()
            if set(update.plan.devices).issubset(self._alive()):
                self._open_recovery()
                self._adopt(update)

    # -- what processes say

    def _on_line(self, line: Line) -> None:
        device, content = line
        member = self._processes.members.get(device)
        if "ready" in content:
            if member is None or member.process.pid != content["ready"]:
                return  # of a process that has gone
            member.is_ready, member.beat_at_s = True, time.monotonic()
            if device not in self._known or device in self._gone:
                self._open_recovery().join(device)
                self._on_message(f"{device} has come")
                self._ask_for_plan()
        elif "left" in content:
            self._on_left(device, content)
        elif "step_time_s" in content:
            self._on_step(content)
        elif "recovered" in content:
            self._on_recovered(content)
        if "ready" not in content and "left" not in content:
            self._run.on_line(content)

    def _on_left(self, device: str, content: dict[str, Any]) -> None:
        if content["left"] != self._number:
            return
        if content["is_done"]:
            self._finished.add(device)
        elif content["lost"] is not None and self._complaint_s is None:
            self._complaint_s = time.monotonic()
            rank = f"rank {self._run.newest.ranks[device]} ({device})"
            self._first_complaint = self._first_complaint or f"{rank}: {content['lost']}"

    def _on_step(self, content: dict[str, Any]) -> None:
        generation, sent_s = content["generation"], content["sent_s"]
        if generation != self._number:
            return
        if self._first_step_s is None:
            self._first_step_s = sent_s
        for name in self._run.newest.devices:
            if name in self._processes.members:
                self._processes.members[name].is_warm = True
        self._heartbeats.note_progress()
        self._num_repairs, self._has_steps, self._first_complaint = 0, True, ""
        recovery = self._recovery
        if recovery is not None and recovery.state and not self._is_broken:
            self._run.recoveries.append(recovery.ended(generation, sent_s))
            self._recovery = None
        self._last_step_s = sent_s

    def _on_recovered(self, content: dict[str, Any]) -> None:
        if self._recovery is not None and content["recovered"] == self._number:
            self._recovery.state = content

    # -- what happens to processes

    def _start(self, device: str) -> None:
        self._processes.start(
            WorkerSettings(
                device=device,
                number=self._names.index(device),
                port=self._store.port,
                torch_device=self._torch_devices[device],
                leave_s=leave_s(self._run.predicted_step_time_s),
                generation=self._number,
                is_standby=self._number >= 0 or device not in self._run.newest.devices,
            )
        )

    def _on_end(self, member: Member, code: int) -> None:
        if code == 1:
            self._raise_first_error(member.device)
        why = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        hung = "it hung in a plan that was given up; its log says where"
        why = {STUCK: hung, LOST_HOST: "its host has gone"}.get(code, why)
        self._lose(member, why)
        if code == STUCK and self._restarts.get(member.device, 0) < MAX_RESTARTS:
            self._restarts[member.device] = self._restarts.get(member.device, 0) + 1
            self._start(member.device)

    def _raise_first_error(self, device: str) -> None:
        """Ends the run with the first error of all workers; `device` has failed.

        Raises:
            HeterpsError: Always.
        """
        number = self._names.index(device)
        message = f"rank {number} ({device}): it ended with code 1; " + log_hint(self._directory)
        raise HeterpsError(first_cause(self._directory) or message)

    def _lose(self, member: Member, why: str) -> None:
        """A device has gone, or is to go."""
        device, noticed_s = member.device, time.monotonic()
        self._processes.remove(device)
        allow_beats(self._store, [device])
        self._holders.discard(device)
        self._finished.discard(device)
        if device not in self._known and device not in self._planned_devices():
            return  # it had not come yet
        self._on_message(f"{device} is lost: {why}")
        self._gone.add(device)
        recovery = self._open_recovery(noticed_s)
        recovery.lose(device, member.fault_s)
        self._ask_for_plan(is_broken=device in self._run.newest.devices)

    def _planned_devices(self) -> tuple[str, ...]:
        return self._run.newest.devices

    # -- the next generation

    def _alive(self) -> tuple[str, ...]:
        """In the order of the cluster; a process that has just been started is not there yet."""
        members = self._processes.members
        first = self._known - self._gone
        return tuple(
            name
            for name in self._names
            if name in members and (members[name].is_ready or name in first)
        )

    def _can_anybody_come(self) -> bool:
        """Whether a process is starting, or will be."""
        is_starting = any(not member.is_ready for member in self._processes.members.values())
        return is_starting or self._events.has_joins

    def _open_recovery(self, noticed_s: float | None = None) -> OpenRecovery:
        """The recovery under way; a further fault in it belongs to it."""
        if self._recovery is None:
            self._recovery = OpenRecovery(
                noticed_s or time.monotonic(), self._last_step_s, self._run.next_step
            )
        return self._recovery

    def _ask_for_plan(self, *, is_broken: bool = False) -> None:
        """Asks for a plan for the devices that there are now."""
        self._asked += 1
        self._is_broken |= is_broken
        if self._planning is None:
            self._submit()

    def _submit(self) -> None:
        alive = self._alive()
        if not alive:
            self._wait_for_devices(NotEnoughDevicesError("all devices are lost"))
            return
        change = MembershipChange(
            step=self._run.next_step,
            num_steps=self._run.newest.num_steps,
            lost=tuple(sorted(self._known - set(alive))),
            joined=tuple(sorted(set(alive) - self._known)),
            alive=alive,
            plan=self._run.newest.plan,
        )
        self._planned_for, self._planned_alive = self._asked, set(alive)
        self._planning = self._planner.submit(self._replanner.replan, change)

    def _look_at_plan(self) -> None:
        """Takes a plan that has been found, unless something has changed since it was asked for."""
        if self._planning is None or not self._planning.done():
            return
        planning, self._planning = self._planning, None
        if self._planned_for != self._asked:
            self._submit()
            return
        try:
            update = planning.result()
        except NotEnoughDevicesError as error:
            self._wait_for_devices(error)
            return
        self._known, self._gone = self._planned_alive, set()
        if update.plan.runs_like(self._run.newest.plan) and not self._is_broken:
            self._recovery = None
            return
        self._adopt(update)

    def _wait_for_devices(self, error: NotEnoughDevicesError) -> None:
        """Leaves those that are left waiting, with what they hold, where somebody may yet come.

        Raises:
            NotEnoughDevicesError: Nobody will.
        """
        if not self._can_anybody_come():
            raise error
        self._on_message(f"{error}; waiting for devices")

    def _adopt(self, update: PlanUpdate) -> None:
        """Goes on under a plan: at once where the generation is broken, else after a step."""
        ranks = set(update.plan.devices) | (self._holders & set(self._processes.members))
        self._run.adopt(update, [name for name in self._names if name in ranks])
        self._publish(self._run.newest.devices)
        if self._recovery is not None:
            self._recovery.handed_out_s = time.monotonic()
            self._recovery.decision = update.reason or update.plan.planner
            self._recovery.state = {}
        self._run.describe_adopted(update)
        self._on_plan(update, self._alive())

    def _publish(self, devices: Sequence[str]) -> None:
        self._number += 1
        assert self._run.newest.generation == self._number
        if self._is_broken:
            self._broken_below = self._number
        notice = Notice(
            number=self._number,
            broken_below=self._broken_below,
            # Where they could not connect in time, they get twice as long.
            connect_s=CONNECT_S * 2**self._num_repairs,
            specification=self._run.newest,
        )
        publish(self._store, notice)
        self._is_broken = self._has_steps = False
        self._holders.update(devices)
        self._finished.clear()
        self._complaint_s = None
        self._heartbeats.note_progress()

    def _look_for_repairs(self, now_s: float) -> None:
        """Begins anew with the same devices, where ranks have lost one another or all wait."""
        if self._planning is not None or self._is_broken or not self._all_ready():
            return
        is_apart = self._complaint_s is not None and now_s - self._complaint_s > SETTLE_S
        members = [self._processes.members[name] for name in self._run.newest.devices]
        is_stalled = self._heartbeats.is_stalled(members, self._has_steps)
        if not is_apart and not is_stalled:
            return
        cause = first_cause(self._directory)
        if cause is not None:
            raise HeterpsError(cause)  # the others have lost that rank, which is about to end
        self._num_repairs += 1
        if self._num_repairs > MAX_REPAIRS:
            first = self._first_complaint or "no rank says why"
            raise HeterpsError(
                f"the ranks cannot work together: {MAX_REPAIRS} attempts without a step; {first}"
            )
        why = "ranks have lost one another" if is_apart else "nothing goes on any more"
        self._on_message(f"{why}, and all are alive: connecting anew")
        self._open_recovery()
        self._is_broken = True
        self._adopt(self._run.update_of(self._run.newest.plan))

    def _tell_delay(self, now_s: float) -> None:
        """Says what a recovery waits for that takes long."""
        recovery = self._recovery
        is_waiting = self._is_broken or not self._has_steps
        if recovery is None or not is_waiting or not recovery.is_late(now_s):
            return
        if self._is_broken:
            what = "waiting for a plan" if self._planning is not None else "waiting for devices"
        else:
            ranks = [self._processes.members.get(name) for name in self._run.newest.devices]
            what = whom_to_wait_for((rank for rank in ranks if rank), self._number)
        self._on_message(f"recovering for {now_s - recovery.noticed_s:.0f} s: {what}")

    def _all_ready(self) -> bool:
        members = self._processes.members
        return all(d in members and members[d].is_ready for d in self._run.newest.devices)
