"""The board of the hosts of a run: texts that they leave for one another, and who is still there.

Each host has a connection to host 0. What host 0 puts up all others see; what another host puts up
host 0 sees, and of errors everybody. A host is lost when its connection breaks, which the system
tells at once, or when it says nothing for a while.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from heterps_runtime.network.connection import SILENCE_S, Connection
from heterps_runtime.network.dial import Host0, dial_patiently
from heterps_runtime.network.gate import Gate, Hello
from heterps_runtime.network.lines import Lines

SERVICE = "board"
ERROR = "error"
BEAT_S = 1.0


@dataclass
class _Peer:
    """Another host, as long as it is connected."""

    lines: Lines
    heard_s: float = field(default_factory=time.monotonic)


class Board:
    """What one host sees. All methods may be called by any thread.

    Attributes:
        lost: Hosts whose connection has ended, and why; "" where they ended it themselves.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._peers: dict[int, _Peer] = {}
        self._changed = threading.Condition(threading.RLock())
        self._is_closed = False
        self.lost: dict[int, str] = {}
        threading.Thread(target=self._beat, daemon=True).start()

    def get(self, key: str) -> str | None:
        """A text, where somebody has put it up."""
        with self._changed:
            return self._texts.get(key)

    def put(self, key: str, text: str) -> None:
        """Puts up a text, for all whom it is for; the first one of a key stays."""
        with self._changed:
            if key in self._texts:
                return
            self._texts[key] = text
            self._changed.notify_all()
            peers = list(self._peers.values())
        _tell({"key": key, "text": text}, peers)

    def wait(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Whether something comes true within a time; looked at whenever the board changes."""
        with self._changed:
            return self._changed.wait_for(is_over, seconds)

    @property
    def present(self) -> list[int]:
        """The hosts that are connected."""
        with self._changed:
            return sorted(self._peers)

    def close(self) -> None:
        """Leaves; the others see that it was meant so."""
        with self._changed:
            self._is_closed = True
            peers = list(self._peers.values())
        for peer in peers:
            peer.lines.connection.close()

    def _converse(self, rank: int, lines: Lines) -> None:
        """Hears another host until its end."""
        with self._changed:
            peer = self._peers[rank] = _Peer(lines)
            texts = dict(self._texts) if rank > 0 else {}
            self._changed.notify_all()
        for key, text in texts.items():
            _tell({"key": key, "text": text}, [peer])
        why = ""
        try:
            for content in lines:
                peer.heard_s = time.monotonic()
                self._take(rank, content)
        except OSError:
            why = "its connection broke"
        with self._changed:
            del self._peers[rank]
            self.lost.setdefault(rank, why)
            self._changed.notify_all()

    def _take(self, rank: int, content: dict[str, Any]) -> None:
        key, text = content.get("key"), content.get("text")
        if not isinstance(key, str) or not isinstance(text, str):
            return  # a sign of life
        with self._changed:
            self._texts.setdefault(key, text)
            self._changed.notify_all()

    def _beat(self) -> None:
        looked_s = time.monotonic()
        while not self._is_closed:
            time.sleep(BEAT_S)
            now_s = time.monotonic()
            with self._changed:
                peers = dict(self._peers)
            for rank, peer in peers.items():
                # Time in which this process was held up itself says nothing of the others.
                peer.heard_s += max(0.0, now_s - looked_s - 2 * BEAT_S)
                _tell({}, [peer])
                if now_s - peer.heard_s > SILENCE_S:
                    self.lost.setdefault(rank, f"it has been silent for {SILENCE_S:g} s")
                    peer.lines.connection.cut()
            looked_s = now_s


def _tell(content: dict[str, Any], peers: Iterable[_Peer]) -> None:
    for peer in peers:
        with contextlib.suppress(OSError):  # its end is noticed where it is heard
            peer.lines.send(content)


class ServedBoard(Board):
    """That of host 0.

    Args:
        gate: Through which the others come.
    """

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        gate.serve(SERVICE, self._hear)

    def _hear(self, connection: Connection, hello: Hello) -> None:
        rank = int(hello["host"])
        with self._changed:
            is_known = rank in self._peers or rank in self.lost
        if not is_known:
            self._converse(rank, Lines(connection))
            return
        text = f"another host of this run was started with --node-rank {rank}"
        Lines(connection).send({"key": ERROR, "text": text})

    def _take(self, rank: int, content: dict[str, Any]) -> None:
        with self._changed:
            is_first_error = content.get("key") == ERROR and self.get(ERROR) is None
            super()._take(rank, content)
            others = [peer for other, peer in self._peers.items() if other != rank]
        if is_first_error:
            _tell(content, others)


class DistantBoard(Board):
    """That of another host.

    Args:
        host_0: Who serves it.
        rank: This host.
        timeout_s: How long to wait for host 0.
        on_message: Receives what is waited for.

    Raises:
        HeterpsError: Host 0 does not come, or has another secret.
    """

    def __init__(
        self, host_0: Host0, rank: int, timeout_s: float, on_message: Callable[[str], None]
    ) -> None:
        hello = {"service": SERVICE, "host": rank}
        connection = dial_patiently(host_0, hello, timeout_s, on_message)
        super().__init__()
        arguments = (0, Lines(connection))
        threading.Thread(target=self._converse, args=arguments, daemon=True).start()
