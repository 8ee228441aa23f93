"""The handshake: only two sides that know the same secret get through, and each time anew."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_runtime.network.connection import Connection
from heterps_runtime.network.handshake import (
    GREETING,
    Keys,
    NotHeterpsError,
    WrongSecretError,
    call,
    greet_caller,
)

SECRET = b"sixteen bytes or more"


def _shaken(
    caller: bytes,
    called: bytes,
    to_called: Callable[[bytes], bytes] = lambda data: data,
    to_caller: Callable[[bytes], bytes] = lambda data: data,
) -> tuple[Keys | Exception, Keys | Exception]:
    """What caller and called get; on their ways, messages may be changed."""
    ends = socket.socketpair()
    results: list[Keys | Exception] = [Keys(b"", b"")] * 2

    def play(number: int) -> None:
        own = ends[number]
        own.settimeout(5)
        change = to_caller if number else to_called

        def receive(count: int) -> bytes:
            data = own.recv(count, socket.MSG_WAITALL)
            if len(data) < count:
                raise ConnectionError("broken")
            return data

        part, secret = (greet_caller, called) if number else (call, caller)
        try:
            results[number] = part(lambda data: own.sendall(change(data)), receive, secret)
        except OSError as error:
            results[number] = error
        own.shutdown(socket.SHUT_WR)

    other = threading.Thread(target=play, args=(1,))
    other.start()
    play(0)
    other.join()
    for own in ends:
        own.close()
    return results[0], results[1]


def test_two_sides_of_one_secret_get_keys_that_fit_and_never_the_same_ones() -> None:
    caller, called = _shaken(SECRET, SECRET)
    assert isinstance(caller, Keys)
    assert isinstance(called, Keys)
    assert caller == called[::-1]
    assert caller.sending != caller.receiving
    assert _shaken(SECRET, SECRET)[0] != caller


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=16, max_size=64))
def test_with_another_secret_both_sides_hear_that(other: bytes) -> None:
    if other != SECRET:
        for error in _shaken(SECRET, other):
            assert isinstance(error, WrongSecretError)


def _flipped(place: int) -> Callable[[bytes], bytes]:
    """Flips a bit of what is sent, counted over all messages."""
    sent = 0

    def flip(data: bytes) -> bytes:
        nonlocal sent
        own, changed = place - 8 * sent, bytearray(data)
        if 0 <= own < 8 * len(data):
            changed[own // 8] ^= 1 << own % 8
        sent += len(data)
        return bytes(changed)

    return flip


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8 * 64 - 1), st.integers(0, 8 * 73 - 1), st.booleans())
def test_a_flipped_bit_lets_nobody_through(up: int, down: int, is_up: bool) -> None:
    change = {"to_called": _flipped(up)} if is_up else {"to_caller": _flipped(down)}
    caller, called = _shaken(SECRET, SECRET, **change)
    assert isinstance(caller, OSError), "who called finds out in every case"
    if is_up or down < 8 * 40:
        assert isinstance(called, OSError)


def test_a_handshake_that_was_overheard_cannot_be_played_again() -> None:
    heard: list[bytes] = []

    def keep(data: bytes) -> bytes:
        heard.append(data)
        return data

    _shaken(SECRET, SECRET, to_called=keep)
    _, called = _shaken(b"of no importance", SECRET, to_called=lambda data: heard[0])
    assert isinstance(called, WrongSecretError)


def test_who_has_not_proved_itself_hears_nothing_that_depends_on_the_secret() -> None:
    heard: list[bytes] = []

    def keep(data: bytes) -> bytes:
        heard.append(data)
        return data

    _shaken(b"a guess of a stranger", SECRET, to_caller=keep)
    greeting, verdict = heard
    assert greeting[: len(GREETING)] == GREETING
    assert verdict == bytes(33)


def test_something_else_that_answers_is_told_from_a_wrong_secret() -> None:
    with pytest.raises(NotHeterpsError):
        call(lambda data: None, lambda count: b"SSH-2.0-OpenSSH "[:count], SECRET)


def test_bytes_that_are_put_into_an_open_connection_end_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    made: list[Connection] = []
    thread = threading.Thread(target=lambda: made.append(Connection.called(other, SECRET)))
    thread.start()
    caller = Connection.calling(own, SECRET)
    thread.join()
    caller.send(b"x" * 200_000)
    received = b""
    while len(received) < 200_000:
        received += made[0].receive()
    own.sendall(b"an attacker's bytes, more than a header has")
    with pytest.raises(ConnectionError, match=r"a frame"):
        made[0].receive()
    caller.release()
    made[0].release()
