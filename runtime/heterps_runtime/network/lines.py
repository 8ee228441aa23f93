"""Conversations over a connection: JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from heterps_runtime.network.connection import Connection
from heterps_runtime.network.frames import BrokenConnectionError

# Of one line: specifications of large models are tens of megabytes.
MAX_LINE_BYTES = 1 << 30


class Lines:
    """JSON objects in both directions. Any thread may send, one receives.

    Args:
        connection: Carries nothing else from here on.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._rest: list[bytes] = []

    def send(self, content: Mapping[str, Any]) -> None:
        """Sends one object.

        Raises:
            OSError: The connection has ended.
        """
        self.connection.send(json.dumps(dict(content)).encode() + b"\n")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All objects until the other side ends the conversation.

        Raises:
            OSError: The connection was broken.
        """
        num_bytes = 0
        while data := self.connection.receive():
            first, *others = data.split(b"\n")
            self._rest.append(first)
            num_bytes += len(first)
            for part in others:
                yield _parsed(b"".join(self._rest))
                self._rest, num_bytes = [part], len(part)
            if num_bytes > MAX_LINE_BYTES:
                raise BrokenConnectionError("a line without an end")


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError:
        raise BrokenConnectionError("a line that is no JSON") from None
    if not isinstance(content, dict):
        raise BrokenConnectionError("a line that is no object")
    return content
