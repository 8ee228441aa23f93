"""One end of a link that takes its time: a TUN device whose packets reach another one later.

    python -m benchmarks.runtime.delayed_link ADDRESS OWN_SOCKET OTHER_SOCKET DELAY_S

Runs in a network namespace of its own, as what is root there. Packets go through Unix sockets,
which know no network namespaces.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque

NAME, MTU = "far0", 60_000
# Of linux/if_tun.h: take this name, IP packets, nothing before them.
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
# Packets that wait at an end; of a link that is busy for longer they are lost, as elsewhere.
QUEUE = 10_000
# Packets that are read at once before those that are due are sent on.
BATCH = 64


def main() -> None:
    """Carries packets until it is ended."""
    address, own, other, delay_s = sys.argv[1:]
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", NAME.encode(), IFF_TUN | IFF_NO_PI))
    for words in (
        f"addr add {address}/24 dev {NAME}",
        f"link set {NAME} mtu {MTU} txqueuelen {QUEUE} up",
    ):
        subprocess.run(["ip", *words.split()], check=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as cable:
        cable.bind(own)
        cable.setblocking(False)
        print("ready", flush=True)
        _carry(device, cable, other, float(delay_s))


def _carry(device: int, cable: socket.socket, other: str, delay_s: float) -> None:
    waiting: deque[tuple[float, bytes]] = deque()
    while True:
        wait_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        select.select([device, cable.fileno()], [], [], wait_s)
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                os.write(device, cable.recv(1 << 16))
        with contextlib.suppress(BlockingIOError):
            for _ in range(BATCH):
                waiting.append((time.monotonic() + delay_s, os.read(device, 1 << 16)))
        while waiting and waiting[0][0] <= time.monotonic():
            try:
                cable.sendto(waiting[0][1], other)
            except BlockingIOError:
                break
            except OSError:  # the other end is not there yet, or no longer: it is lost
                pass
            waiting.popleft()


if __name__ == "__main__":
    main()
