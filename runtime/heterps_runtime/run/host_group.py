"""The launchers of a run on several hosts: they agree, watch one another, and collect results.

They meet at a key-value store on host 0. Nothing else is shared: each host has its own run
directory. When one host fails, its message reaches all others, which end their workers and raise
the same error.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Self

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.run.launcher import LostConnectionError
from heterps_runtime.specification.hosts import Hosts

POLL_S = 0.2
# A host whose launcher says nothing for so long is taken for lost.
SILENCE_S = 30.0
# How long a host that only lost its connections waits to hear of the cause.
CAUSE_S = 5.0
_ANSWER = timedelta(seconds=SILENCE_S)


class HostGroup:
    """One host's part in a run on several, as a context manager.

    Leaving it with an error ends the run on all hosts with that error.

    Args:
        hosts: Who they are.

    Attributes:
        hosts: The same.

    Raises:
        HeterpsError: On entering: host 0 cannot be reached, its port is taken, or there is another
            host of this rank.
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._last_poll_s = 0.0
        self._heard: dict[int, tuple[int, float]] = {}
        self._has_failed = False

    def __enter__(self) -> Self:
        """Opens the store, or connects to it."""
        self._store = _opened(self.hosts)
        rank = self.hosts.rank
        if self._store.add(f"present-{rank}", 1) > 1:
            self._fail(f"two hosts were started with --node-rank {rank}")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tells the others of an error; raises theirs where the own one is a consequence."""
        cause = None
        if error is not None and not self._has_failed:
            if isinstance(error, LostConnectionError):
                cause = self._wait_for_cause()
            if cause is None:
                text = str(error) if isinstance(error, HeterpsError) else type(error).__name__
                self._publish(f"host {self.hosts.rank}: {text}")
        self._leave()
        del self._store  # else an error's traceback would keep the port
        if cause is not None:
            raise HeterpsError(cause) from None

    def agree(self, facts: Mapping[str, str]) -> None:
        """Waits for all hosts, and makes sure that they were started for the same run.

        Args:
            facts: What must be equal on all hosts, by the name that an error shows.

        Raises:
            HeterpsError: Something differs, or a host did not come.
        """
        rank = self.hosts.rank
        if rank == 0:
            self._store.set("facts", json.dumps(dict(facts)))
            for other in range(1, self.hosts.num_hosts):
                self._wait_for(f"ready-{other}", f"host {other} has not come")
            return
        self._wait_for("facts", "host 0 has sent nothing")
        first = json.loads(self._store.get("facts"))
        names = [name for name in {**first, **facts} if first.get(name) != facts.get(name)]
        if names:
            shown = "; ".join(
                f"{name}: {facts.get(name, '-')} here, {first.get(name, '-')} on host 0"
                for name in names
            )
            self._fail(f"host {rank} was started for another run than host 0: {shown}")
        self._store.set(f"ready-{rank}", "")

    def share(self, text: str | None) -> str:
        """Host 0's text, on all hosts."""
        if self.hosts.rank == 0:
            assert text is not None
            self._store.set("shared", text)
            return text
        self._wait_for("shared", "host 0 has sent nothing")
        return str(self._store.get("shared").decode())

    def poll(self) -> None:
        """Looks whether all others are well; to be called again and again.

        Raises:
            HeterpsError: A host has failed, or is silent.
        """
        now_s = time.monotonic()
        if now_s - self._last_poll_s < POLL_S:
            return
        self._last_poll_s = now_s
        try:
            self._store.add(f"beat-{self.hosts.rank}", 1)
            message = self._message()
            silent = self._silent_host(now_s) if self.hosts.rank == 0 else None
        except RuntimeError as error:
            self._has_failed = True
            raise HeterpsError(f"host 0 ({self.hosts.address}) has gone") from error
        if message is not None:
            self._has_failed = True
            raise HeterpsError(message)
        if silent is not None:
            self._fail(f"host {silent} has been silent for {SILENCE_S:g} s")

    def collect(self, directory: Path, num_ranks: int) -> None:
        """Brings the results of all ranks into the run directory of host 0.

        Raises:
            HeterpsError: A host has failed.
        """
        if self.hosts.rank > 0:
            for path in directory.glob("result-*.json"):
                self._store.set(path.name, path.read_text())
            self._wait_for("collected", "host 0 does not collect results")
            return
        for rank in range(num_ranks):
            path = directory / f"result-{rank}.json"
            if not path.exists():
                self._wait_for(path.name, f"there is no result of rank {rank}")
                write_text(path, self._store.get(path.name).decode())
        self._store.set("collected", "")

    def _silent_host(self, now_s: float) -> int | None:
        for other in range(1, self.hosts.num_hosts):
            beat = self._store.add(f"beat-{other}", 0)
            seen, since_s = self._heard.get(other, (-1, now_s))
            if beat != seen:
                since_s = now_s
            self._heard[other] = beat, since_s
            if beat and now_s - since_s > SILENCE_S and not self._store.check([f"left-{other}"]):
                return other
        return None

    def _wait_for(self, key: str, otherwise: str) -> None:
        """Returns when a host has set the key; raises where one fails instead, or time is over."""
        deadline_s = time.monotonic() + self.hosts.timeout_s
        while True:
            self.poll()
            with contextlib.suppress(RuntimeError):  # the next poll says that the store has gone
                if self._store.check([key]):
                    return
            if time.monotonic() > deadline_s:
                self._fail(f"{otherwise}, after {self.hosts.timeout_s:g} s")
            time.sleep(POLL_S / 4)

    def _wait_for_cause(self) -> str | None:
        deadline_s = time.monotonic() + CAUSE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(RuntimeError):
                message = self._message()
                if message is not None:
                    return message
            time.sleep(POLL_S)
        return None

    def _message(self) -> str | None:
        """The first error of any host."""
        return self._store.get("error").decode() if self._store.check(["error"]) else None

    def _fail(self, message: str) -> None:
        self._publish(message)
        raise HeterpsError(message)

    def _publish(self, message: str) -> None:
        self._has_failed = True
        with contextlib.suppress(RuntimeError):
            # Only the first error stays; an empty expectation stands for "not set".
            self._store.compare_set("error", "", message)

    def _leave(self) -> None:
        """The store must outlive the others' last look at it."""
        with contextlib.suppress(RuntimeError):
            rank = self.hosts.rank
            self._store.set(f"left-{rank}", "")
            if rank > 0:
                return
            others = range(1, self.hosts.num_hosts)
            present = [r for r in others if self._store.check([f"present-{r}"])]
            deadline_s = time.monotonic() + CAUSE_S
            while time.monotonic() < deadline_s:
                if all(self._store.check([f"left-{r}"]) for r in present):
                    return
                time.sleep(POLL_S / 4)


def _opened(hosts: Hosts) -> TCPStore:
    """The store: host 0 serves it, the others wait until it answers."""
    where = f"{hosts.address}:{hosts.port}"
    if hosts.rank > 0:
        _wait_until(
            lambda: socket.create_connection((hosts.address, hosts.port), timeout=POLL_S).close(),
            hosts.timeout_s,
            f"host 0 does not answer at {where} (--rendezvous)",
        )
    try:
        return TCPStore(
            hosts.address,
            hosts.port,
            is_master=hosts.rank == 0,
            timeout=_ANSWER,
            wait_for_workers=False,
        )
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise HeterpsError(f"--rendezvous {where}: {reason}") from None


def _wait_until(attempt: Callable[[], None], timeout_s: float, otherwise: str) -> None:
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            attempt()
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise HeterpsError(f"{otherwise} after {timeout_s:g} s: {error}") from None
            time.sleep(POLL_S)
        else:
            return
