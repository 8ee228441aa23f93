"""Frames: what goes over a connection between hosts, sealed so that no byte of it can be forged.

A frame is the length of its payload (4 bytes), a tag (32 bytes), and the payload. The tag is the
HMAC-SHA256 of number, length and payload under the key of its direction. The number counts the
frames of that direction and is not sent: a frame that is lost, repeated, or in another place does
not check. An empty payload ends a direction: a connection that ends without it was broken.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable

MAX_PAYLOAD_BYTES = 1 << 16
_LENGTH = struct.Struct(">I")
_NUMBERED = struct.Struct(">QI")
TAG_BYTES = hashlib.sha256().digest_size
HEADER_BYTES = _LENGTH.size + TAG_BYTES


class BrokenConnectionError(ConnectionError):
    """A connection ended without an end, or carried what its other side did not send."""


class Sealer:
    """Makes the frames of one direction.

    Args:
        key: Of this direction, of this connection alone.
    """

    def __init__(self, key: bytes) -> None:
        self._key, self._number = key, 0

    def seal(self, payload: bytes) -> bytes:
        """The next frame."""
        assert len(payload) <= MAX_PAYLOAD_BYTES
        tag = _tag(self._key, self._number, payload)
        self._number += 1
        return _LENGTH.pack(len(payload)) + tag + payload


class Opener:
    """Reads the frames of one direction.

    Args:
        key: Of this direction.
        receive: Returns exactly so many bytes.
    """

    def __init__(self, key: bytes, receive: Callable[[int], bytes]) -> None:
        self._key, self._receive, self._number = key, receive, 0

    def open(self) -> bytes:
        """The payload of the next frame; empty for the end.

        Raises:
            BrokenConnectionError: It is not the frame that was sent next.
        """
        header = self._receive(HEADER_BYTES)
        (length,) = _LENGTH.unpack_from(header)
        if length > MAX_PAYLOAD_BYTES:
            raise BrokenConnectionError(f"a frame of {length} bytes")
        payload = self._receive(length) if length else b""
        expected = _tag(self._key, self._number, payload)
        if not hmac.compare_digest(header[_LENGTH.size :], expected):
            raise BrokenConnectionError("a frame that was changed on its way")
        self._number += 1
        return payload


def _tag(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, _NUMBERED.pack(number, len(payload)) + payload, hashlib.sha256)
