"""Hosts of a test: network namespaces that a cable joins, or the loopback where those are refused.

The first is host 0; its address is that of the rendezvous. The third is a stranger's.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from heterps_runtime.network.secret import VARIABLE

SECRET = "a secret of these tests, thirty-two bytes long"
_HOLDER = "sleep 600"
# Of proc_net(5).
_LISTENING = "0A"


class Host(NamedTuple):
    """One host of a test.

    Attributes:
        prefix: Of a command that is to run there.
        address: Its own.
    """

    prefix: tuple[str, ...] = ()
    address: str = "127.0.0.1"


class Network(NamedTuple):
    """Hosts that reach one another.

    Attributes:
        are_apart: Each has a network namespace of its own.
    """

    hosts: tuple[Host, Host]
    stranger: Host
    are_apart: bool


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Two hosts and a stranger, as long as the context lasts."""
    if not _may_make_namespaces():
        yield Network((Host(), Host()), Host(), are_apart=False)
        return
    holders: list[subprocess.Popen[bytes]] = []
    try:
        first = _holder(holders, ())
        second, third = (_holder(holders, first) for _ in range(2))
        pids = [holder.pid for holder in holders]
        _run(first, "ip link set lo up")
        addresses = ["10.77.0.1"]
        for number, other in enumerate((second, third), start=1):
            near, far = f"10.77.{number - 1}.1", f"10.77.{number - 1}.2"
            _run(first, f"ip link add v{number} type veth peer name v0 netns {pids[number]}")
            _run(first, f"ip addr add {near}/24 dev v{number}")
            _run(first, f"ip link set v{number} up")
            for command in ("link set lo up", f"addr add {far}/24 dev v0", "link set v0 up"):
                _run(other, f"ip {command}")
            addresses.append(far)
        _run(third, "ip route add 10.77.0.0/24 via 10.77.1.1")
        hosts = [Host(prefix, address) for prefix, address in zip(
            (first, second, third), addresses, strict=True)]  # fmt: skip
        yield Network((hosts[0], hosts[1]), hosts[2], are_apart=True)
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def cut_cable(hosts: Network) -> None:
    """From now on nothing reaches the second host, and nobody is told."""
    _run(hosts.hosts[1].prefix, "ip link set v0 down")


def listening_addresses(host: Host) -> set[str]:
    """IPv4 addresses that something listens on, on a host with a namespace of its own."""
    command = [*host.prefix, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in found.splitlines()]
    return {
        str(ipaddress.ip_address(bytes.fromhex(row[1].partition(":")[0])[::-1]))
        for row in rows
        if row[3] == _LISTENING
    }


def start(host: Host, *arguments: str, secret: str | None = SECRET) -> subprocess.Popen[str]:
    """Starts `python ARGUMENTS` on a host, in a session of its own.

    Args:
        host: Where.
        arguments: Of Python.
        secret: In its environment; None for none.
    """
    left_out = (VARIABLE, "GLOO_SOCKET_IFNAME")  # where ranks meet is what the run finds
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    if secret is not None:
        environment[VARIABLE] = secret
    return subprocess.Popen(
        [*host.prefix, sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def ends(
    processes: Sequence[subprocess.Popen[str]], limit_s: float = 120.0
) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each; none is left behind."""
    try:
        texts = [process.communicate(timeout=limit_s) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        (process.returncode, output, errors.replace("\n", " "))
        for process, (output, errors) in zip(processes, texts, strict=True)
    ]


@functools.cache
def _may_make_namespaces() -> bool:
    """Whether this machine lets us."""
    if not all(shutil.which(name) for name in ("unshare", "nsenter", "ip")):
        return False
    command = "ip link add v1 type veth peer name v2"
    made = subprocess.run(["unshare", "-Urn", *command.split()], capture_output=True, check=False)
    return made.returncode == 0


def _holder(holders: list[subprocess.Popen[bytes]], inside: tuple[str, ...]) -> tuple[str, ...]:
    """Starts the process that keeps a namespace; returns the prefix of commands in there."""
    kind = "-n" if inside else "-Urn"
    before = Path("/proc/self/ns/net").readlink()
    holders.append(subprocess.Popen([*inside, "unshare", kind, *_HOLDER.split()]))
    pid = holders[-1].pid
    deadline_s = time.monotonic() + 10
    # nsenter and unshare become the holder one after the other, each in another namespace.
    while time.monotonic() < deadline_s:
        with contextlib.suppress(OSError):
            is_holding = Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
            if is_holding and Path(f"/proc/{pid}/ns/net").readlink() != before:
                break
        time.sleep(0.005)
    return ("nsenter", "-t", str(pid), "-U", "-n", "--preserve-credentials")


def _run(prefix: tuple[str, ...], command: str) -> None:
    subprocess.run([*prefix, *command.split()], check=True)
