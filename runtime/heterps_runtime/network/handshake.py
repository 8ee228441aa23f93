"""The handshake of two hosts: each proves to the other that it knows the secret, and tells nobody.

1. The host that was called sends a greeting and a nonce.
2. The caller answers with a nonce of its own and the HMAC of both, under the secret.
3. The one called checks it, and answers with a verdict and its own HMAC of both.

The caller proves itself first: who only connects learns nothing that a secret could be guessed by.
Nonces of both sides make every handshake another one, so nothing can be played back; the keys of
the connection, one for each direction, follow from the secret and both nonces.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple

from heterps_runtime.network.frames import TAG_BYTES

GREETING = b"HETERPS1"
NONCE_BYTES = 32
ACCEPTED, REFUSED = b"\x01", b"\x00"
Send = Callable[[bytes], None]
# Returns exactly so many bytes.
Receive = Callable[[int], bytes]


class Keys(NamedTuple):
    """The keys of one connection, as one side sees them."""

    sending: bytes
    receiving: bytes


class WrongSecretError(ConnectionError):
    """The other side knows another secret."""


class NotHeterpsError(ConnectionError):
    """The other side speaks something else."""


def greet_caller(send: Send, receive: Receive, secret: bytes) -> Keys:
    """The part of the side that was called.

    Raises:
        WrongSecretError: The caller does not know the secret.
        OSError: The connection has ended.
    """
    own = secrets.token_bytes(NONCE_BYTES)
    send(GREETING + own)
    answer = receive(NONCE_BYTES + TAG_BYTES)
    nonces = own + answer[:NONCE_BYTES]
    if not hmac.compare_digest(answer[NONCE_BYTES:], _tag(secret, b"caller", nonces)):
        send(REFUSED + bytes(TAG_BYTES))
        raise WrongSecretError("the caller does not know the secret")
    send(ACCEPTED + _tag(secret, b"called", nonces))
    from_caller, to_caller = _session_keys(secret, nonces)
    return Keys(to_caller, from_caller)


def call(send: Send, receive: Receive, secret: bytes) -> Keys:
    """The caller's part.

    Raises:
        NotHeterpsError: Something else answers.
        WrongSecretError: The other side refuses, or does not know the secret itself.
        OSError: The connection has ended.
    """
    greeting = receive(len(GREETING))
    if greeting != GREETING:
        raise NotHeterpsError("another greeting")
    nonces = receive(NONCE_BYTES)
    own = secrets.token_bytes(NONCE_BYTES)
    nonces += own
    send(own + _tag(secret, b"caller", nonces))
    answer = receive(len(ACCEPTED) + TAG_BYTES)
    is_accepted = answer[:1] == ACCEPTED
    if not is_accepted or not hmac.compare_digest(answer[1:], _tag(secret, b"called", nonces)):
        raise WrongSecretError("the secrets differ")
    from_caller, to_caller = _session_keys(secret, nonces)
    return Keys(from_caller, to_caller)


def _session_keys(secret: bytes, nonces: bytes) -> tuple[bytes, bytes]:
    return _tag(secret, b"key from caller", nonces), _tag(secret, b"key to caller", nonces)


def _tag(secret: bytes, purpose: bytes, nonces: bytes) -> bytes:
    """Purposes differ, so that no tag can be used for another; nonces have one length."""
    return hmac.digest(secret, purpose + b"\x00" + nonces, hashlib.sha256)
