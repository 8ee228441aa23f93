"""Devices of one process take turns, in a fixed order, each until it waits; errors get out."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch

from heterps_runtime.execution.local_turns import (
    DeadlockError,
    LetterBox,
    LocalGatherer,
    LocalMessenger,
    take_turns,
)


def test_values_are_gathered_in_the_order_of_the_ranks() -> None:
    box = LetterBox(3)

    def work(rank: int) -> list[str]:
        gatherer = LocalGatherer(rank, box)
        first = gatherer.gather(f"a{rank}", str)
        return first + gatherer.gather(f"b{rank}", str)

    found = take_turns({f"d{rank}": partial(work, rank) for rank in (2, 0, 1)})
    assert set(map(tuple, found.values())) == {("a0", "a1", "a2", "b0", "b1", "b2")}


def test_a_message_is_waited_for() -> None:
    box, seen = LetterBox(2), list[str]()

    def receive() -> float:
        buffer = torch.zeros(2)
        work = LocalMessenger(1, box).receive(buffer, 0, "forward", 7)
        seen.append("asked")
        work.wait()
        seen.append("received")
        return float(buffer.sum())

    def send() -> float:
        seen.append("sent")
        LocalMessenger(0, box).send(torch.tensor([1.0, 2.0]), 1, "forward", 7).wait()
        return 0.0

    assert take_turns({"back": receive, "front": send}) == {"back": 3.0, "front": 0.0}
    assert seen == ["asked", "sent", "received"]


def test_sums_of_equal_ranks_are_told_apart_by_their_order() -> None:
    box = LetterBox(2)

    def work(rank: int) -> list[float]:
        messenger = LocalMessenger(rank, box)
        flats = [torch.tensor([float(10**number + rank)]) for number in (0, 1)]
        works = [messenger.start_sum(flat, (0, 1)) for flat in flats]
        for begun in works:
            begun.wait()
        return [float(flat) for flat in flats]

    found = take_turns({"d0": partial(work, 0), "d1": partial(work, 1)})
    assert found == {"d0": [3.0, 21.0], "d1": [3.0, 21.0]}


def test_devices_that_wait_for_one_another_are_told() -> None:
    box = LetterBox(2)

    def work(rank: int) -> None:
        LocalMessenger(rank, box).receive(torch.zeros(1), 1 - rank, "forward", 0).wait()

    with pytest.raises(DeadlockError):
        take_turns({"d0": partial(work, 0), "d1": partial(work, 1)})


def test_an_error_of_a_device_ends_the_others() -> None:
    box = LetterBox(2)

    def fail() -> None:
        raise ValueError("of this device")

    def wait() -> None:
        LocalMessenger(0, box).receive(torch.zeros(1), 1, "forward", 0).wait()

    with pytest.raises(ValueError, match="of this device"):
        take_turns({"d0": wait, "d1": fail})


def test_what_was_waited_for_is_not_kept_and_what_was_sent_is_until_its_work_goes() -> None:
    box, alive = LetterBox(2), list[bool]()

    def receive() -> None:
        work = LocalMessenger(1, box).receive(torch.zeros(2), 0, "forward", 7)
        seen = weakref.ref(work)
        work.wait()
        del work
        alive.append(seen() is not None)

    def send() -> None:
        buffer = torch.ones(2)
        seen = weakref.ref(buffer)
        work = LocalMessenger(0, box).send(buffer, 1, "forward", 7)
        del buffer
        alive.append(seen() is not None)
        del work
        alive.append(seen() is not None)

    take_turns({"d1": receive, "d0": send})
    assert alive == [True, False, False]
