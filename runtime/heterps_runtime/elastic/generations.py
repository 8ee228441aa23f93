"""The newest generation of an elastic run: what is published of it, and what its ranks say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from heterps_configs.errors import HeterpsError
from heterps_runtime.elastic.heartbeats import Heartbeats, whom_to_wait_for
from heterps_runtime.elastic.open_recovery import OpenRecovery
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.store import CONNECT_S, Notice, publish
from heterps_runtime.fleet.processes import Processes
from heterps_runtime.run.hooks import PlanUpdate

# How long a rank may say that others are lost, while all of them are alive.
SETTLE_S = 0.5
# Repairs in a row without a step in between; then something is wrong that no repair mends.
MAX_REPAIRS = 5


class Generations:
    """The generations of one run, one after the other.

    Args:
        run: What is known of it.
        store: Where notices are published.
        processes: Of its devices.
        heartbeats: Of these; publishing a generation and a step of it are progress.

    Attributes:
        number: Of the newest notice, which is that of the newest generation.
        is_broken: Ranks of it are lost or apart: it does no more steps.
        recovery: The one under way.
        first_step_s: When the first step of the run was done.
    """

    def __init__(
        self, run: ElasticState, store: Store, processes: Processes, heartbeats: Heartbeats
    ) -> None:
        self._run, self._store = run, store
        self._processes, self._heartbeats = processes, heartbeats
        self.number = -1
        self.is_broken = False
        self.recovery: OpenRecovery | None = None
        self.first_step_s: float | None = None
        self._broken_below = 0
        self._has_steps = False  # the newest one has done one
        self._last_step_s = time.monotonic()
        self._holders: set[str] = set()
        self._finished: set[str] = set()
        self._complaint_s: float | None = None
        self._first_complaint = ""  # since the last step
        self._num_repairs = 0

    @property
    def is_done(self) -> bool:
        """Whether all ranks have done the last step."""
        return self._finished.issuperset(self._run.newest.devices)

    # -- what is published

    def publish(self, devices: Sequence[str]) -> None:
        """The newest specification is that of the next generation, with these ranks."""
        self.number += 1
        assert self._run.newest.generation == self.number
        if self.is_broken:
            self._broken_below = self.number
        notice = Notice(
            number=self.number,
            broken_below=self._broken_below,
            # Where they could not connect in time, they get twice as long.
            connect_s=CONNECT_S * 2**self._num_repairs,
            specification=self._run.newest,
        )
        publish(self._store, notice)
        self.is_broken = self._has_steps = False
        self._holders.update(devices)
        self._finished.clear()
        self._complaint_s = None
        self._heartbeats.note_progress()

    def publish_end(self) -> None:
        """No generation follows: processes may end."""
        self.number += 1
        publish(self._store, Notice(number=self.number, broken_below=self._broken_below))

    def adopt(self, update: PlanUpdate) -> None:
        """Goes on under a plan: at once where the generation is broken, else after a step."""
        ranks = set(update.plan.devices) | (self._holders & set(self._processes.members))
        names = [device.name for device in self._run.problem.cluster.devices]
        self._run.adopt(update, [name for name in names if name in ranks])
        self.publish(self._run.newest.devices)
        if self.recovery is not None:
            self.recovery.handed_out_s = time.monotonic()
            self.recovery.decision = update.reason or update.plan.planner
            self.recovery.state = {}
        self._run.describe_adopted(update)

    # -- what is said and happens in it

    def on_left(self, device: str, content: dict[str, Any]) -> None:
        """A rank has left a generation: at its end, or because it has lost others."""
        if content["left"] != self.number:
            return
        if content["is_done"]:
            self._finished.add(device)
        elif content["lost"] is not None and self._complaint_s is None:
            self._complaint_s = time.monotonic()
            rank = f"rank {self._run.newest.ranks[device]} ({device})"
            self._first_complaint = self._first_complaint or f"{rank}: {content['lost']}"

    def on_step(self, content: dict[str, Any]) -> None:
        """A step is done; the first one under a plan ends the recovery."""
        generation, sent_s = content["generation"], content["sent_s"]
        if generation != self.number:
            return
        if self.first_step_s is None:
            self.first_step_s = sent_s
        for name in self._run.newest.devices:
            if name in self._processes.members:
                self._processes.members[name].is_warm = True
        self._heartbeats.note_progress()
        self._num_repairs, self._has_steps, self._first_complaint = 0, True, ""
        recovery = self.recovery
        if recovery is not None and recovery.state and not self.is_broken:
            self._run.recoveries.append(recovery.ended(generation, sent_s))
            self.recovery = None
        self._last_step_s = sent_s

    def on_recovered(self, content: dict[str, Any]) -> None:
        """All ranks have their state."""
        if self.recovery is not None and content["recovered"] == self.number:
            self.recovery.state = content

    def lose(self, device: str) -> None:
        """A device has gone, with what it held."""
        self._holders.discard(device)
        self._finished.discard(device)

    # -- recoveries

    def open_recovery(self, noticed_s: float | None = None) -> OpenRecovery:
        """The recovery under way; a further fault in it belongs to it."""
        if self.recovery is None:
            self.recovery = OpenRecovery(
                noticed_s or time.monotonic(), self._last_step_s, self._run.next_step
            )
        return self.recovery

    def why_repair(self, now_s: float) -> str | None:
        """Why ranks that are all there should connect anew; None where they need not."""
        members = self._processes.members
        ranks = [members[d] for d in self._run.newest.devices if d in members]
        if len(ranks) < len(self._run.newest.devices) or not all(rank.is_ready for rank in ranks):
            return None
        if self._complaint_s is not None and now_s - self._complaint_s > SETTLE_S:
            return "ranks have lost one another"
        is_stalled = self._heartbeats.is_stalled(ranks, self._has_steps)
        return "nothing goes on any more" if is_stalled else None

    def repair(self) -> PlanUpdate:
        """The newest generation is given up; its plan, to begin anew with.

        Raises:
            HeterpsError: That was tried too often since the last step.
        """
        self._num_repairs += 1
        if self._num_repairs > MAX_REPAIRS:
            first = self._first_complaint or "no rank says why"
            raise HeterpsError(
                f"the ranks cannot work together: {MAX_REPAIRS} attempts without a step; {first}"
            )
        self.open_recovery()
        self.is_broken = True
        return self._run.update_of(self._run.newest.plan)

    def delay(self, now_s: float, *, has_plan: bool) -> str | None:
        """What a recovery waits for, where it is time to say so.

        Args:
            now_s: Of `time.monotonic`.
            has_plan: Nobody looks for one just now.
        """
        recovery = self.recovery
        is_waiting = self.is_broken or not self._has_steps
        if recovery is None or not is_waiting or not recovery.is_late(now_s):
            return None
        if self.is_broken:
            what = "waiting for devices" if has_plan else "waiting for a plan"
        else:
            ranks = [self._processes.members.get(name) for name in self._run.newest.devices]
            what = whom_to_wait_for((rank for rank in ranks if rank), self.number)
        return f"recovering for {now_s - recovery.noticed_s:.0f} s: {what}"
