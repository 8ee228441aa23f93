"""What somebody tries who reaches a run; a process of its own, in any network namespace.

    python -m benchmarks.trust.intruder connect PORT,PORT ADDRESS ...
    python -m benchmarks.trust.intruder store PORT MARKER SPECIFICATION
    python -m benchmarks.trust.intruder message FILE RANK MARKER

It prints how many of its tries reached what they should not.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

WAIT_S = 1.0


class Runs:
    """A pickle that makes a file where it is read."""

    def __init__(self, marker: str) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (self._marker, os.O_CREAT)


def connect(ports: str, *addresses: str) -> int:
    """Connections to ports that are nobody else's business."""
    count = 0
    for address in addresses:
        for port in ports.split(","):
            try:
                socket.create_connection((address, int(port)), timeout=WAIT_S).close()
                count += 1
            except OSError:
                continue
    return count


def store(port: str, marker: str, specification: str) -> int:
    """Writes into the store of an elastic run, as only a process of its own host can.

    What comes of it, the run itself shows.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    own: Any = TCPStore("127.0.0.1", int(port), is_master=False, timeout=timedelta(seconds=10))
    hostile = pickle.dumps(Runs(marker))
    content = json.loads(Path(specification).read_text())
    for device in content["devices"]:
        own.set(f"beat-{device}", hostile)
    for garbage in (hostile, b"{", b"\xff", b'{"number": 1, "specification": {}}', b"9" * 5000):
        for key in ("notice-1", "newest", "head-1"):
            own.set(key, garbage)
    # Well-formed, and with code of its own: the generation is left for it.
    content["generation"] = 1
    content["profile"]["source"]["factory"] = "evilmod:build"
    notice = {"number": 1, "broken_below": 1, "specification": content}
    own.set("notice-1", json.dumps(notice))
    own.set("newest", "1")
    own.set("head-1", "1")
    return 0


def message(file: str, rank: str, marker: str) -> int:
    """A rank that sends a pickle (rank 1), and one that asks for a number (rank 0)."""
    import torch
    import torch.distributed as dist

    from heterps_runtime.transport.typed_messages import MessageError, gather_messages

    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=int(rank), world_size=2,
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    if rank == "0":
        try:
            gather_messages(1, int, None)
        except MessageError as error:
            print(error, file=sys.stderr)
            return 0
        return 1
    hostile = torch.frombuffer(bytearray(pickle.dumps(Runs(marker))), dtype=torch.uint8)
    dist.all_gather(list(torch.empty(2, 1, dtype=torch.int64)), torch.tensor([len(hostile)]))
    dist.all_gather(list(torch.empty(2, len(hostile), dtype=torch.uint8)), hostile)
    return 0


if __name__ == "__main__":
    tries: dict[str, Callable[..., int]] = {"connect": connect, "store": store, "message": message}
    print(tries[sys.argv[1]](*sys.argv[2:]))
