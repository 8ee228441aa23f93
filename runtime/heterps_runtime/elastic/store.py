"""What supervisor and workers of an elastic run tell one another through the supervisor's store.

A *notice* says what happens next: a generation begins, or the run ends. Notices are numbered; a
newer one supersedes all before it. Workers write a heartbeat each; the ranks of a generation meet
under a prefix of their own, so that no key of a broken generation can be taken for a new one.

What is read is believed only as far as it goes: a notice that does not validate, or a number that
is none, is left alone with a remark until something better takes its place.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from pydantic import PositiveFloat, ValidationError
from torch.distributed import (  # type: ignore[attr-defined]
    PrefixStore,
    Store,
    TCPStore,
)

from heterps_configs.documents.base import Document
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.transport.lost_ranks import LostRankError, talking

HOST = "127.0.0.1"
_NEWEST = "newest"
# Ranks that have met connect in milliseconds; on a busy host in a fraction of a second. Where one
# of them goes meanwhile, gloo tries so many times, and nothing can interrupt it.
CONNECT_S, CONNECT_TRIES = 1.0, 5
# How long a request to the store may take; its server lives as long as the supervisor.
REQUEST_TIMEOUT = timedelta(seconds=30)
# A standby waits as long as the run takes; the end of the supervisor ends its connection.
_FOREVER = timedelta(days=365)
# Between two looks while ranks meet. (A wait with a short limit would fill the log with warnings.)
_LOOK_AGAIN_S = 0.002
# Between two looks at what did not validate.
_LOOK_AT_STRANGE_S = 0.05
_NUMBER = re.compile(rb"-?[0-9]{1,9}")
_BEAT = re.compile(rb"[0-9.]{1,40} [ -~]{0,200}")

Remark = Callable[[str], None]


class Notice(Document):
    """What happens next.

    Attributes:
        number: Of the notice, and of the generation that it announces.
        broken_below: Generations of smaller numbers are broken, and are left at once; others end at
            their next step boundary.
        connect_s: How long one try of its ranks to connect may take.
        specification: Of the new generation, whose ranks are its devices; None for the end.
    """

    number: int
    broken_below: int = 0
    connect_s: PositiveFloat = CONNECT_S
    specification: RunSpecification | None = None


class SupersededError(LostRankError):
    """A newer notice has come while ranks were meeting."""


def serve() -> TCPStore:
    """The store of a run, in the supervisor's process, on a port that the system chooses.

    Its socket is the loopback's: left to itself a TCPStore listens on all addresses.
    """
    listener = socket.create_server((HOST, 0))
    store = TCPStore(
        HOST,
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        timeout=REQUEST_TIMEOUT,
        master_listen_fd=listener.detach(),
    )
    store.set(_NEWEST, "-1")
    return store


def connect(port: int) -> TCPStore:
    """One connection to the store; threads do not share connections."""
    with talking():
        return TCPStore(HOST, port, is_master=False, timeout=REQUEST_TIMEOUT)


def publish(store: Store, notice: Notice) -> None:
    """Hands out a notice; numbers follow one another."""
    store.set(_notice_key(notice.number), notice.model_dump_json())
    store.set(_NEWEST, str(notice.number))
    store.set(_head_key(notice.number), str(notice.broken_below))


def newest_number(store: Store) -> int:
    """Of the newest notice; -1 before the first, and where something else stands there."""
    number = _number(store.get(_NEWEST))
    return number if number is not None and store.check([_notice_key(number)]) else -1


def wait_for_notice(
    store: Store,
    after: int,
    on_remark: Remark = lambda remark: None,
    check: Callable[[Notice], None] = lambda notice: None,
) -> Notice:
    """The newest notice after number `after`, as soon as there is one.

    Args:
        store: A connection.
        after: Number of the one before.
        on_remark: Told, once each, of notices that are dropped.
        check: Raises HeterpsError for a notice that is dropped as well.
    """
    with talking():
        store.wait([_notice_key(after + 1)], _FOREVER)
    said: set[str] = set()
    while True:
        with talking():
            number = max(newest_number(store), after + 1)
            content = store.get(_notice_key(number))
        try:
            notice = Notice.model_validate_json(content)
            if notice.number != number:
                raise HeterpsError(f"it is number {notice.number}")
            check(notice)
        except (ValidationError, HeterpsError) as error:
            reason = str(error).partition("\n")[0][:200]
            if reason not in said:
                on_remark(f"notice {number} of the run's store is dropped ({reason})")
            said.add(reason)
            time.sleep(_LOOK_AT_STRANGE_S)
        else:
            return notice


def wait_for_head(store: Store, number: int, on_remark: Remark = lambda remark: None) -> int:
    """`broken_below` of a notice, as soon as it is published; the rest of it may be long."""
    with talking():
        store.wait([_head_key(number)], _FOREVER)
    is_said = False
    while True:
        with talking():
            found = _number(store.get(_head_key(number)))
        if found is not None:
            return found
        if not is_said:
            on_remark(f"the head of notice {number} is no number; dropped")
        is_said = True
        time.sleep(_LOOK_AT_STRANGE_S)


def _number(content: bytes) -> int | None:
    return int(content) if _NUMBER.fullmatch(content) else None


def meet(store: Store, notice: Notice, device: str) -> None:
    """Returns when all ranks of a generation have come here.

    Raises:
        SupersededError: A newer notice has come first.
    """
    assert notice.specification is not None
    prefix = f"arrived-{notice.number}-"
    keys = [prefix + name for name in notice.specification.devices]
    with talking():
        store.set(prefix + device, "1")
        while not store.check(keys):
            time.sleep(_LOOK_AGAIN_S)
            if newest_number(store) > notice.number:
                raise SupersededError(f"generation {notice.number} has been superseded")


def generation_store(store: Store, number: int) -> Store:
    """Where the process groups of a generation find one another."""
    return PrefixStore(f"generation-{number}", store)


def beat(store: Store, device: str, progress: str) -> None:
    """Says that a process is alive, and how far it is: generation, what it does, and counts."""
    with talking():
        store.set(_beat_key(device), f"{time.monotonic()} {progress}")


def allow_beats(store: Store, devices: Iterable[str]) -> None:
    """Prepares the keys, so that they can be read before the first heartbeat."""
    for device in devices:
        store.set(_beat_key(device), "")


def read_beats(store: Store, devices: Iterable[str]) -> Mapping[str, str]:
    """The newest heartbeat of each device; empty before its first one, and for what is none."""
    names = list(devices)
    values = store.multi_get([_beat_key(name) for name in names]) if names else []
    return {
        name: value.decode() if _BEAT.fullmatch(value) else ""
        for name, value in zip(names, values, strict=True)
    }


def _notice_key(number: int) -> str:
    return f"notice-{number}"


def _head_key(number: int) -> str:
    return f"head-{number}"


def _beat_key(device: str) -> str:
    return f"beat-{device}"
