"""The other hosts of an elastic run, as they come, are lost, and come back."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from heterps_configs.errors import HeterpsError
from heterps_runtime.fleet.messages import Farewell, Joining, Welcome
from heterps_runtime.fleet.remote import RemotePlace
from heterps_runtime.network.connection import Connection
from heterps_runtime.network.dial import REMARK_EVERY_S
from heterps_runtime.network.gate import Gate, Hello
from heterps_runtime.network.lines import Lines
from heterps_runtime.specification.hosts import Hosts, machine_identity
from heterps_runtime.specification.run import RunSpecification

# Services of host 0's gate: the conversation, and the supervisor's store.
SERVICE, STORE = "fleet", "store"
# How long the others may take to end their part.
LEAVE_S = 5.0


class OtherHosts(contextlib.AbstractContextManager["OtherHosts", None]):
    """What host 0 has to do with the others, as a context manager: leaving it sends them home.

    Args:
        hosts: Of the run.
        facts: What must be equal on all of them, by the name that an error shows.
        on_message: Receives remarks, from other threads as well.

    Attributes:
        hosts: The same.

    Raises:
        HeterpsError: On entering: the port is in use.
    """

    def __init__(
        self, hosts: Hosts, facts: Mapping[str, str], on_message: Callable[[str], None]
    ) -> None:
        self.hosts, self._facts, self._on_message = hosts, facts, on_message
        self._gate = Gate(hosts.host_0, on_message)
        self._gate.serve(SERVICE, self._hear)
        self._changed = threading.Condition()
        self._welcome: Welcome | None = None
        self._is_emulated = False
        self._places: dict[int, RemotePlace] = {}

    def __enter__(self) -> Self:
        self._gate.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        failure = ""
        if error is not None:
            failure = str(error) if isinstance(error, HeterpsError) else type(error).__name__
        with self._changed:
            # Who waits for its welcome hears it, too.
            self._welcome = self._welcome or Welcome(refusal=failure or "the run is over")
            self._changed.notify_all()
        for place in self._places.values():
            place.send(Farewell(failure=failure))
        deadline_s = time.monotonic() + LEAVE_S
        while any(place.is_there for place in self._places.values()):
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.01)
        self._gate.__exit__()

    def places(
        self,
        specification: RunSpecification,
        devices: Sequence[Sequence[str]],
        directory: Path,
        num_threads: int,
    ) -> list[RemotePlace]:
        """The other hosts, when all of them have come.

        Args:
            specification: Of the run's first plan.
            devices: Those of each host, this one's first.
            directory: Run directory of this host.
            num_threads: Threads of each process's kernels.

        Raises:
            HeterpsError: One does not come.
        """
        with self._changed:
            self._places = {
                rank: RemotePlace(own, directory) for rank, own in enumerate(devices) if rank > 0
            }
            self._is_emulated = specification.emulation is not None
            self._welcome = Welcome(
                specification=specification.model_dump_json(), num_threads=num_threads
            )
            self._changed.notify_all()
            self._wait_for_all()
        return list(self._places.values())

    def open_store(self, port: int) -> None:
        """The others' processes may reach the supervisor's store from here on."""
        self._gate.forward(STORE, port)

    def _wait_for_all(self) -> None:
        began_s, said_s = time.monotonic(), None
        while missing := [rank for rank, place in self._places.items() if not place.is_there]:
            now_s = time.monotonic()
            names = f"host{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            if now_s > began_s + self.hosts.timeout_s:
                raise HeterpsError(f"{names} did not come within {self.hosts.timeout_s:g} s")
            if said_s is None or now_s - said_s >= REMARK_EVERY_S:
                said_s = now_s
                self._on_message(
                    f"waiting for {names} of {self.hosts.num_hosts} at {self.hosts.host_0} "
                    f"({now_s - began_s:.0f} s)"
                )
            self._changed.wait(0.2)

    def _hear(self, connection: Connection, hello: Hello) -> None:
        """A host has come: one thread for each."""
        lines = Lines(connection)
        words = iter(lines)
        rank, first = int(hello["host"]), next(words, None)
        try:
            joining = Joining.from_mapping(first, f"host {rank}")
        except HeterpsError:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._welcome is not None)
            assert self._welcome is not None
            refusal = self._welcome.refusal or self._refusal(rank, joining)
            if refusal:
                lines.send(Welcome(refusal=refusal).model_dump())
                self._on_message(f"host {rank} was turned away: {refusal}")
                return
            lines.send(self._welcome.model_dump())
            place = self._places[rank]
            place.begin(lines, has_same_clock=joining.machine == machine_identity())
            self._changed.notify_all()
        place.hear(words)

    def _refusal(self, rank: int, joining: Joining) -> str:
        """Why a host may not take part; empty where it may."""
        place = self._places.get(rank)
        if place is None:
            return f"--node-rank {rank}: this run has {self.hosts.num_hosts} hosts"
        if place.is_there:
            return f"there is a host with --node-rank {rank} already"
        if self._is_emulated and joining.machine != machine_identity():
            return "emulated devices need one machine: their times are compared on its clock"
        mine, theirs = self._facts, joining.facts
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        shown = (f"{n}: {theirs.get(n, '-')} there, {mine.get(n, '-')} on host 0" for n in names)
        return f"it was started for another run: {'; '.join(shown)}" if names else ""
