"""Which sockets the processes of a command listen on, as the system lists them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

_LISTENS = "0A"


class Listener(NamedTuple):
    """A listening socket.

    Attributes:
        pid: Of the process.
        address: Where it listens.
        inode: Which socket it is; ports are taken again, and processes share sockets.
    """

    pid: int
    address: str
    port: int
    inode: int

    @property
    def is_loopback(self) -> bool:
        """Whether no other host reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def processes_below(pid: int) -> set[int]:
    """A process and all that it started, directly or not."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            # Behind the name, which may hold anything: state, then the parent.
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def listeners(pid: int) -> set[Listener]:
    """Those of a process and of all below it."""
    return listeners_of(processes_below(pid))


def listeners_of(pids: Iterable[int]) -> set[Listener]:
    """Those of processes, without what they have started."""
    found: set[Listener] = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it ended meanwhile
            own = set(_open_files(pid))
            found |= {
                Listener(pid, address, port, inode)
                for address, port, inode in _listening(f"/proc/{pid}")
                if f"socket:[{inode}]" in own
            }
    return found


def _open_files(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield os.readlink(path)


def still_open(seen: Iterable[Listener]) -> set[Listener]:
    """Those of `seen` that listen now, whoever holds them; of this network namespace."""
    open_now = {inode for _, _, inode in _listening("/proc/self")}
    return {each for each in seen if each.inode in open_now}


def listeners_until(
    process: subprocess.Popen[str], is_over: Callable[[], bool], limit_s: float
) -> set[Listener]:
    """All that were seen until something is true, the process has ended, or the time is over."""
    found: set[Listener] = set()
    deadline_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < deadline_s:
        found |= listeners(process.pid)
        if is_over():
            break
        time.sleep(0.1)
    return found


def _listening(process: str) -> set[tuple[str, int, int]]:
    """Address, port and inode of all listening sockets of a process's network namespace."""
    rows = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"{process}/net/{kind}").read_text().splitlines()[1:]
    ]
    return {(*_address(row[1]), int(row[9])) for row in rows if row[3] == _LISTENS}


def _address(text: str) -> tuple[str, int]:
    """Address and port, as /proc/net/tcp writes them: words of 32 bits in the host's order."""
    words, _, port = text.partition(":")
    packed = b"".join(
        struct.pack("=I", int(words[start : start + 8], 16)) for start in range(0, len(words), 8)
    )
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)
