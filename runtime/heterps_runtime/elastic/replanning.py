"""Which devices a run has, and the search for a plan for them, in a thread.

While it goes on the supervisor goes on watching, and a plan that was asked for before the last
change is thrown away. What is noticed at one look is one change, and so are the devices of a host
that come one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from heterps_configs.errors import NotEnoughDevicesError
from heterps_runtime.elastic.injection import Injection
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.records import MembershipChange, Replanner
from heterps_runtime.fleet.processes import Processes
from heterps_runtime.run.hooks import PlanUpdate

# So long the first device that comes waits for others of its host.
GATHER_S = 10.0


class Replanning:
    """Asks for the plans of one run.

    Args:
        run: What is known of it.
        processes: Of its devices.
        replanner: Finds plans.
        events: Faults and joins that are still to come.
        absent: Devices that have no process at first.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self,
        run: ElasticState,
        processes: Processes,
        replanner: Replanner,
        events: Injection,
        absent: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._processes = run, processes
        self._replanner, self._events = replanner, events
        self._names = [device.name for device in run.problem.cluster.devices]
        # What the run was planned for last, and which of these have been lost since.
        self._known, self._gone = set(self._names) - set(absent), set[str]()
        self._last_loss = ""
        # Those that have come and wait for others, and since when the first one has.
        self._come, self._come_at_s, self._clock = set[str](), 0.0, clock
        self._thread = ThreadPoolExecutor(1, "heterps-replan")
        self._planning: Future[PlanUpdate] | None = None
        self._asked, self._planned_for = 0, 0

    @property
    def known(self) -> frozenset[str]:
        """Devices that the run was planned for last."""
        return frozenset(self._known)

    @property
    def is_busy(self) -> bool:
        """Whether a plan is being looked for."""
        return self._planning is not None or self._planned_for != self._asked

    def is_new(self, device: str) -> bool:
        """Whether the newest plan was made without a device, or before it was lost."""
        return device not in self._known or device in self._gone

    def lose(self, device: str, why: str) -> None:
        """A device has gone."""
        self._gone.add(device)
        self._last_loss = f"{device}: {why}"

    def come(self, device: str) -> None:
        """A device is there that the newest plan was made without."""
        if not self._come:
            self._come_at_s = self._clock()
        self._come.add(device)

    def alive(self) -> tuple[str, ...]:
        """In the order of the cluster; a process that has just been started is not there yet."""
        members = self._processes.members
        first = self._known - self._gone
        return tuple(
            name
            for name in self._names
            if name in members and (members[name].is_ready or name in first)
        )

    def ask(self) -> None:
        """Asks for a plan for the devices that there are at the next `take`."""
        self._asked += 1

    def gathered(self) -> set[str]:
        """Devices that have come and for which a plan is asked now: with all of their host."""
        members = self._processes.members
        there = {name for name in self._come if name in members and members[name].is_ready}
        self._come = {name for name in there if self.is_new(name)}
        is_late = self._clock() - self._come_at_s >= GATHER_S
        # What is asked for because of others is for these, too.
        is_asked = self._planned_for != self._asked
        if not (is_late or is_asked) and self._processes.is_starting_beside(self._come):
            return set()
        found, self._come = self._come, set()
        if found:
            self.ask()
        return found

    def take(self) -> PlanUpdate | None:
        """A plan that has been found, unless something has changed since it was asked for.

        Raises:
            NotEnoughDevicesError: There is none, and no device will come.
        """
        if self._planning is None:
            if self._planned_for != self._asked:
                self._submit()
            return None
        if not self._planning.done():
            return None
        planning, self._planning = self._planning, None
        if self._planned_for != self._asked:
            self._submit()
            return None
        try:
            update = planning.result()
        except NotEnoughDevicesError as error:
            self._wait_for_devices(error)
            return None
        self._known, self._gone = self._planned_alive, set()
        return update

    def close(self) -> None:
        """Nobody waits for a plan any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self) -> None:
        self._planned_for, alive = self._asked, self.alive()
        if not alive:
            message = f"all devices are lost, the last one is {self._last_loss}"
            self._wait_for_devices(NotEnoughDevicesError(message))
            return
        change = MembershipChange(
            step=self._run.next_step,
            num_steps=self._run.newest.num_steps,
            lost=tuple(sorted(self._known - set(alive))),
            joined=tuple(sorted(set(alive) - self._known)),
            alive=alive,
            plan=self._run.newest.plan,
        )
        self._planned_alive = set(alive)
        self._planning = self._thread.submit(self._replanner.replan, change)

    def _wait_for_devices(self, error: NotEnoughDevicesError) -> None:
        """Leaves those that are left waiting, with what they hold, where somebody may yet come.

        Raises:
            NotEnoughDevicesError: Nobody will.
        """
        is_starting = any(not member.is_ready for member in self._processes.members.values())
        if not is_starting and not self._events.has_joins:
            raise error
        self._run.hooks.on_message(f"{error}; waiting for devices")
