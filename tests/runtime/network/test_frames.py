"""Frames: whatever is done to them on their way ends the connection."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_runtime.network.frames import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    BrokenConnectionError,
    Opener,
    Sealer,
)

KEY = bytes(range(32))
PAYLOADS = st.lists(st.binary(min_size=1, max_size=60), min_size=1, max_size=6)


def _opener(data: bytes, key: bytes = KEY) -> Opener:
    stream = io.BytesIO(data)

    def receive(count: int) -> bytes:
        found = stream.read(count)
        if len(found) < count:
            raise BrokenConnectionError("the connection broke")
        return found

    return Opener(key, receive)


def _sealed(payloads: list[bytes]) -> list[bytes]:
    sealer = Sealer(KEY)
    return [sealer.seal(payload) for payload in payloads]


def _opened_until_broken(data: bytes, key: bytes = KEY) -> list[bytes]:
    """What came through before the connection ended, which it must."""
    opener, found = _opener(data, key), []
    while True:
        try:
            found.append(opener.open())
        except BrokenConnectionError:
            return found


@given(PAYLOADS)
def test_what_was_sent_comes_in_order_and_ends(payloads: list[bytes]) -> None:
    opener = _opener(b"".join(_sealed([*payloads, b""])))
    assert [opener.open() for _ in payloads] == payloads
    assert opener.open() == b""


@given(PAYLOADS, st.data())
def test_a_flipped_bit_ends_the_connection(payloads: list[bytes], data: st.DataObject) -> None:
    frames = _sealed(payloads)
    changed = bytearray(b"".join(frames))
    place = data.draw(st.integers(0, 8 * len(changed) - 1))
    changed[place // 8] ^= 1 << place % 8
    ends = [sum(map(len, frames[: i + 1])) for i in range(len(frames))]
    num_before = sum(end <= place // 8 for end in ends)
    assert _opened_until_broken(bytes(changed)) == payloads[:num_before]


@given(PAYLOADS, st.data())
def test_a_frame_that_comes_again_ends_the_connection(
    payloads: list[bytes], data: st.DataObject
) -> None:
    frames = _sealed(payloads)
    again = data.draw(st.integers(0, len(frames) - 1))
    place = data.draw(st.integers(again + 1, len(frames)))
    played = [*frames[:place], frames[again], *frames[place:]]
    assert _opened_until_broken(b"".join(played)) == payloads[:place]


@given(PAYLOADS.filter(lambda payloads: len(payloads) > 1), st.data())
def test_frames_in_another_order_or_with_a_gap_end_the_connection(
    payloads: list[bytes], data: st.DataObject
) -> None:
    frames = _sealed(payloads)
    numbers = list(range(len(frames)))
    order = data.draw(st.permutations(numbers).filter(lambda order: order != numbers))
    num_right = next(i for i in numbers if order[i] != i)
    moved = b"".join(frames[i] for i in order)
    assert _opened_until_broken(moved) == payloads[:num_right]
    without = frames[:num_right] + frames[num_right + 1 :]
    assert _opened_until_broken(b"".join(without)) == payloads[:num_right]


@given(PAYLOADS, st.data())
def test_a_connection_that_breaks_off_is_no_end(payloads: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(_sealed([*payloads, b""]))
    length = data.draw(st.integers(0, len(whole) - 1))
    found = _opened_until_broken(whole[:length])
    assert found == payloads[: len(found)]


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_nothing_comes_out_of_garbage_nor_under_another_key(garbage: bytes, key: bytes) -> None:
    assert _opened_until_broken(garbage) == []
    if key != KEY:
        assert _opened_until_broken(Sealer(key).seal(b"hello")) == []


def test_a_length_that_nobody_sends_is_refused_before_anything_is_read() -> None:
    asked: list[int] = []

    def receive(count: int) -> bytes:
        asked.append(count)
        return (MAX_PAYLOAD_BYTES + 1).to_bytes(4, "big").ljust(count, b"\0")

    with pytest.raises(BrokenConnectionError, match="65537 bytes"):
        Opener(KEY, receive).open()
    assert asked == [HEADER_BYTES]
