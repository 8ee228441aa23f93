"""Turns: the devices of a run in one process, one at a time, each until it has to wait.

Every device is a thread with the stack of its own step, so that its executor waits wherever it
likes: in a receive, inside a backward pass, in the optimizer step. No two of them ever run at once,
and they take turns in a fixed order: a run is the same every time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from heterps_runtime.models.dtypes import as_json
from heterps_runtime.process.memory_ledger import MemoryLedger
from heterps_runtime.stages.deferred_gradients import DeferredGradients
from heterps_runtime.transport.messenger import Direction
from heterps_runtime.transport.typed_messages import decoded

T = TypeVar("T")


class DeadlockError(Exception):
    """Every device that is not done waits for another one."""


class _GivenUpError(BaseException):
    """Ends the step of a device that waits in vain; never leaves this module."""


class _Turn(threading.Thread, Generic[T]):
    """One device's work."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._given_up = False
        self.is_over = False
        self.is_ready: Callable[[], bool] = _always
        self.results: list[T] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """The thread itself."""
        self._go.acquire()
        try:
            if not self._given_up:
                self.results.append(self._work())
        except _GivenUpError:
            pass
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._stopped.release()

    def advance(self) -> None:
        """Lets it run until it waits or is done."""
        self._go.release()
        self._stopped.acquire()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Gives the turn away; called by the thread itself."""
        ledger, MemoryLedger.active = MemoryLedger.active, None
        # A device may wait in the middle of a pass, for a sum over its group.
        collected, DeferredGradients.collected = DeferredGradients.collected, None
        numbers = torch.get_rng_state()
        self.is_ready = is_ready
        self._stopped.release()
        self._go.acquire()
        self.is_ready = _always  # what it waited for would keep its buffer alive
        torch.set_rng_state(numbers)
        MemoryLedger.active, DeferredGradients.collected = ledger, collected
        if self._given_up:
            raise _GivenUpError

    def give_up(self) -> None:
        """Ends it where it waits."""
        self._given_up = True
        if not self.is_over:
            self.advance()


def _always() -> bool:
    return True


def take_turns(work: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """Runs the work of every device to its end.

    Returns:
        What each of them returned.

    Raises:
        DeadlockError: They wait for one another.
    """
    turns = [_Turn(name, own) for name, own in work.items()]
    for turn in turns:
        turn.start()
    try:
        while not all(turn.is_over for turn in turns):
            if not sum(_advance(turn) for turn in turns):
                raise DeadlockError
    finally:
        for turn in turns:
            turn.give_up()
            turn.join()
    return {turn.name: turn.results[0] for turn in turns}


def _advance(turn: _Turn[T]) -> bool:
    """Lets a device run while it can; could it?"""
    has_moved = False
    while not turn.is_over and turn.is_ready():
        turn.advance()
        has_moved = True
    if turn.error is not None:
        raise turn.error
    return has_moved


def _wait_until(is_ready: Callable[[], bool]) -> None:
    turn = threading.current_thread()
    assert isinstance(turn, _Turn), "only a device's own step waits"
    turn.wait_until(is_ready)


class _Address(NamedTuple):
    source: int
    destination: int
    direction: Direction
    tag: int


class _SumAddress(NamedTuple):
    """The n-th sum over some ranks in this step.

    Attributes:
        is_largest: The largest numbers are wanted, not sums.
    """

    ranks: tuple[int, ...]
    number: int
    is_largest: bool = False


class LetterBox:
    """What is on its way between the devices of a run."""

    def __init__(self, num_devices: int) -> None:
        self.gathered: list[list[bytes]] = [[] for _ in range(num_devices)]
        self.letters: dict[_Address, Tensor] = {}
        self._parts: dict[_SumAddress, dict[int, Tensor]] = {}
        self.done: set[_SumAddress] = set()

    def add(self, address: _SumAddress, rank: int, part: Tensor) -> None:
        """Takes one rank's part of a sum."""
        parts = self._parts.setdefault(address, {})
        assert rank in address.ranks
        assert rank not in parts
        parts[rank] = part

    def is_added_up(self, address: _SumAddress) -> bool:
        """Whether a sum is done: when all parts are there, it is made, in the order of the ranks.

        Called where no device has the turn: what a sum takes is not counted as its memory.
        """
        if address not in self.done and len(self._parts[address]) == len(address.ranks):
            by_rank = self._parts.pop(address)
            parts = [by_rank[rank] for rank in address.ranks]
            stacked = torch.stack(parts)
            total = stacked.amax(dim=0) if address.is_largest else stacked.sum(dim=0)
            for part in parts:
                part.copy_(total)
            self.done.add(address)
        return address in self.done

    def start_step(self) -> None:
        """Forgets the sums of the step before, of which none may be open."""
        assert not self.letters
        assert not self._parts
        self.done.clear()


class LocalMessenger:
    """One device's messages and sums by a letter box."""

    def __init__(self, rank: int, box: LetterBox) -> None:
        self._rank, self._box = rank, box
        self._num_sums: dict[tuple[int, ...], int] = {}

    def start_step(self) -> None:
        """Counts sums anew."""
        self._num_sums = {}

    def receive(self, buffer: Tensor, source: int, direction: Direction, tag: int) -> _Letter:
        """Asks for a message."""
        return _Letter(self._box, _Address(source, self._rank, direction, tag), buffer)

    def send(self, buffer: Tensor, destination: int, direction: Direction, tag: int) -> _Sent:
        """Puts a message into the box."""
        address = _Address(self._rank, destination, direction, tag)
        assert address not in self._box.letters
        self._box.letters[address] = buffer.detach()
        return _Sent(buffer)

    def start_sum(self, flat: Tensor, ranks: tuple[int, ...], *, is_largest: bool = False) -> _Sum:
        """Hands in a part; all ranks call it in one order."""
        number = self._num_sums[ranks] = self._num_sums.get(ranks, 0) + 1
        address = _SumAddress(ranks, number, is_largest)
        self._box.add(address, self._rank, flat)
        return _Sum(self._box, address)

    def gather(self, flat: Tensor, ranks: tuple[int, ...]) -> Sequence[Tensor]:
        """A sum of what is zero but for one rank each."""
        gathered = flat.new_zeros((len(ranks), len(flat)))
        gathered[ranks.index(self._rank)] = flat
        self.start_sum(gathered, ranks).wait()
        return list(gathered)

    def latest_s(self, time_s: float, ranks: tuple[int, ...]) -> float:
        """There is no emulated time here."""
        raise AssertionError


class LocalGroupSums:
    """Sums of one device over its tensor-parallel group, in the middle of its passes."""

    def __init__(self, messenger: LocalMessenger, ranks: tuple[int, ...]) -> None:
        self._messenger, self._ranks = messenger, ranks

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the ranks' tensors."""
        return self._reduced(tensor, is_largest=False)

    def max(self, tensor: Tensor) -> Tensor:
        """The largest of the ranks' numbers, one by one."""
        return self._reduced(tensor, is_largest=True)

    def _reduced(self, tensor: Tensor, *, is_largest: bool) -> Tensor:
        part = tensor.detach().clone()
        self._messenger.start_sum(part, self._ranks, is_largest=is_largest).wait()
        return part


class LocalGatherer:
    """What all devices ask of one another."""

    def __init__(self, rank: int, box: LetterBox) -> None:
        self.rank, self._box = rank, box

    def gather(self, value: T, kind: type[T]) -> list[T]:
        """One value of each device, in the order of the ranks."""
        gathered = self._box.gathered
        number = len(gathered[self.rank])
        gathered[self.rank].append(as_json(value))
        _wait_until(lambda: all(len(values) > number for values in gathered))
        return [decoded(values[number], kind, rank) for rank, values in enumerate(gathered)]

    def groups(self, owners: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], Any]:
        """There are no groups."""
        return {}


class _Sent:
    """What is done already; like a real one, it keeps what was sent until it is dropped."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer = buffer

    def wait(self) -> None:
        """There is nothing to wait for."""

    def is_completed(self) -> bool:
        return True


class _Letter:
    """A message that is waited for."""

    def __init__(self, box: LetterBox, address: _Address, buffer: Tensor) -> None:
        self._box, self._address, self._buffer = box, address, buffer

    def wait(self) -> None:
        """Takes it out of the box."""
        if not self.is_completed():
            _wait_until(self.is_completed)
        self._buffer.copy_(self._box.letters.pop(self._address))

    def is_completed(self) -> bool:
        return self._address in self._box.letters


class _Sum:
    """A sum that is waited for."""

    def __init__(self, box: LetterBox, address: _SumAddress) -> None:
        self._box, self._address = box, address

    def wait(self) -> None:
        """Waits for the parts of all ranks."""
        _wait_until(lambda: self._box.is_added_up(self._address))

    def is_completed(self) -> bool:
        return self._address in self._box.done


def start_step(box: LetterBox, messengers: Sequence[LocalMessenger]) -> None:
    """Begins a step of all devices."""
    box.start_step()
    for messenger in messengers:
        messenger.start_step()
