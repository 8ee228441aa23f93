"""The launchers of a run on several hosts: they agree, watch one another, and collect results.

They meet at the gate of host 0, and share what stands on its board. Nothing else is shared: each
host has its own run directory. When one host fails, its message reaches all others, which end their
workers and raise the same error.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.network.dial import REMARK_EVERY_S
from heterps_runtime.network.gate import Gate
from heterps_runtime.network.host_board import ERROR, Board, DistantBoard, ServedBoard
from heterps_runtime.network.tunnel import Tunnel
from heterps_runtime.run.rank_errors import LostConnectionError
from heterps_runtime.specification.hosts import Hosts

# How long a host that only lost its connections waits to hear of the cause.
CAUSE_S = 5.0
_LOOK_S = 0.2


class HostGroup:
    """One host's part in a run on several, as a context manager.

    Leaving it with an error ends the run on all hosts with that error.

    Args:
        hosts: Who they are.
        on_message: Receives remarks, from other threads as well: who is waited for.

    Attributes:
        hosts: The same.

    Raises:
        HeterpsError: On entering: host 0 cannot be reached or has another secret, or its port is
            taken.
    """

    def __init__(self, hosts: Hosts, on_message: Callable[[str], None] = lambda text: None) -> None:
        self.hosts, self._on_message = hosts, on_message
        self._has_failed = False
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        """Opens the gate, or goes there."""
        hosts = self.hosts
        with ExitStack() as stack:
            self._gate: Gate | None = None
            self._board: Board
            if hosts.rank == 0:
                self._gate = Gate(hosts.host_0, self._on_message)
                self._board = ServedBoard(self._gate)
                stack.callback(self._board.close)
                # Now it may be asked for.
                stack.enter_context(self._gate)
            else:
                self._board = DistantBoard(
                    hosts.host_0, hosts.rank, hosts.timeout_s, self._on_message
                )
                stack.callback(self._board.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tells the others of an error; raises theirs where the own one is a consequence."""
        cause = None
        if error is not None and not self._has_failed:
            if isinstance(error, LostConnectionError):
                self._board.wait(lambda: self._cause() is not None, CAUSE_S)
                cause = self._cause()
            self._board.put(ERROR, cause or f"host {self.hosts.rank}{_in_words(error)}")
        if self.hosts.rank == 0:
            if error is not None:
                # Those that are still on their way hear it, too, as long as they are waited for.
                left_s = self._began_s + self.hosts.timeout_s - time.monotonic()
                self._board.wait(self._have_all_come, min(CAUSE_S, max(left_s, 0.0)))
            # They hear the end of it first.
            self._board.wait(lambda: not self._board.present, CAUSE_S)
        self._stack.close()
        if cause is not None:
            raise HeterpsError(cause) from None

    def _have_all_come(self) -> bool:
        seen = {*self._board.present, *self._board.lost}
        return len(seen) >= self.hosts.num_hosts - 1

    def agree(self, facts: Mapping[str, str]) -> None:
        """Waits for all hosts, and makes sure that they were started for the same run.

        Args:
            facts: What must be equal on all hosts, by the name that an error shows.

        Raises:
            HeterpsError: Something differs, or a host did not come.
        """
        rank = self.hosts.rank
        if rank == 0:
            self._board.put("facts", json.dumps(dict(facts)))
            for other in range(1, self.hosts.num_hosts):
                self._wait_for(
                    f"ready-{other}",
                    f"host {other} has not come",
                    f"waiting for host {other} of {self.hosts.num_hosts} at {self.hosts.host_0}",
                )
            return
        self._wait_for("facts", "host 0 has sent nothing", "waiting for host 0 to begin")
        first = json.loads(self._text("facts"))
        names = [name for name in {**first, **facts} if first.get(name) != facts.get(name)]
        if names:
            shown = "; ".join(
                f"{name}: {facts.get(name, '-')} here, {first.get(name, '-')} on host 0"
                for name in names
            )
            self._fail(f"host {rank} was started for another run than host 0: {shown}")
        self._board.put(f"ready-{rank}", "")

    def share(self, text: str | None) -> str:
        """Host 0's text, on all hosts."""
        if self.hosts.rank == 0:
            assert text is not None
            self._board.put("shared", text)
            return text
        self._wait_for("shared", "host 0 has sent nothing", "waiting for the other hosts")
        return self._text("shared")

    def open_service(self, name: str, port: int) -> None:
        """Host 0: the others may reach a port of its loopback from here on."""
        assert self._gate is not None
        self._gate.forward(name, port)

    def port_of(self, service: str) -> int:
        """Another host: the port of its loopback that leads to a service of host 0."""
        return self._stack.enter_context(Tunnel(self.hosts.host_0, service)).port

    def poll(self) -> None:
        """Looks whether all others are well; to be called again and again.

        Raises:
            HeterpsError: A host has failed, or has gone.
        """
        cause = self._cause()
        if cause is not None:
            self._fail(cause)

    def collect(self, directory: Path, num_ranks: int) -> None:
        """Brings the results of all ranks into the run directory of host 0.

        Raises:
            HeterpsError: A host has failed.
        """
        if self.hosts.rank > 0:
            for path in directory.glob("result-*.json"):
                self._board.put(path.name, path.read_text())
            self._wait_for("collected", "host 0 does not collect results")
            return
        for rank in range(num_ranks):
            path = directory / f"result-{rank}.json"
            if not path.exists():
                self._wait_for(path.name, f"there is no result of rank {rank}")
                write_text(path, self._text(path.name))
        self._board.put("collected", "")

    def _text(self, key: str) -> str:
        text = self._board.get(key)
        assert text is not None
        return text

    def _wait_for(self, key: str, otherwise: str, remark: str = "") -> None:
        """Returns when a host has put up the text; raises where one fails instead, or time is over.

        Args:
            key: Of the text.
            otherwise: What is wrong where it does not come.
            remark: Said while it does not come; empty for nothing.
        """
        began_s, said_s = time.monotonic(), None
        while self._board.get(key) is None:
            self.poll()
            now_s = time.monotonic()
            if now_s > began_s + self.hosts.timeout_s:
                self._fail(f"{otherwise}, after {self.hosts.timeout_s:g} s")
            if remark and (said_s is None or now_s - said_s >= REMARK_EVERY_S):
                said_s = now_s
                self._on_message(f"{remark} ({now_s - began_s:.0f} s)")
            self._board.wait(
                lambda: self._board.get(key) is not None or self._cause() is not None, _LOOK_S
            )

    def _cause(self) -> str | None:
        """The first error of any host, or the first host that has gone."""
        error = self._board.get(ERROR)
        if error is not None:
            return error
        for rank, why in self._board.lost.items():
            if rank == 0:
                return f"host 0 ({self.hosts.host_0}) has gone{why and ': ' + why}"
            # A host that leaves by itself has said what it has to say.
            if why:
                return f"host {rank} has gone: {why}"
        return None

    def _fail(self, message: str) -> None:
        self._has_failed = True
        self._board.put(ERROR, message)
        raise HeterpsError(message)


def _in_words(error: BaseException) -> str:
    """What the others hear of an error, behind the name of the host."""
    if isinstance(error, HeterpsError):
        return f": {error}"
    if isinstance(error, KeyboardInterrupt):
        return " was interrupted"
    return f": {type(error).__name__}: {error}"
