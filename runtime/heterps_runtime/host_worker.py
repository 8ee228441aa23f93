"""One process of `heterps profile --links`: messages between ranks, computing side by side.

    torchrun --standalone --nproc-per-node 2 -m heterps_runtime.host_worker DIRECTORY

Rank 0 writes `links.json`. The processes are of one host: they share the monotonic clock, so a
message is timed one way, from the sender's stamp to the moment in which the receiver has it.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from heterps_configs.document import write_text
from heterps_runtime.allocator import keep_freed_memory
from heterps_runtime.communication import Communicator
from heterps_runtime.worker import report_error, watch_parents

RESULT_FILE = "links.json"
MESSAGE_BYTES = (4, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
# Messages of each size and direction; the first ones set up the connection.
NUM_MESSAGES, NUM_WARM_UPS = 24, 4
# Seconds for which each number of processes computes at once.
TOGETHER_S = 1.0


def main(arguments: list[str]) -> int:
    """Measures, and leaves the results in the directory; the exit code."""
    directory = Path(arguments[0])
    rank = int(os.environ.get("RANK", "0"))
    watch_parents()
    torch.set_num_threads(1)
    keep_freed_memory()
    try:
        communicator = Communicator()
        links = _links(communicator)
        slowdowns = {name: _together(communicator, work) for name, work in _layers_to_run().items()}
        if rank == 0:
            result = {"links": links, "slowdowns": slowdowns}
            write_text(directory / RESULT_FILE, json.dumps(result))
        communicator.close()
    except BaseException as error:
        report_error(directory, str(rank), "", error)
        return 1
    return 0


def _links(communicator: Communicator) -> list[dict[str, Any]]:
    """For each ordered pair of ranks, seconds of messages by size."""
    own = []
    for source in range(communicator.world_size):
        for destination in range(communicator.world_size):
            if source != destination:
                communicator.barrier()
                seconds = _one_way(communicator.rank, source, destination)
                if communicator.rank == destination:
                    own.append({"source": source, "destination": destination, "seconds": seconds})
    return [entry for entries in communicator.gather(own) for entry in entries]


def _one_way(rank: int, source: int, destination: int) -> dict[int, list[float]]:
    """Seconds by message size, on the receiver; nothing on the other ranks.

    The receiver asks for the message before the sender sends it, as a pipeline does.
    """
    order = [size for size in MESSAGE_BYTES for _ in range(NUM_MESSAGES)]
    random.Random(source * 64 + destination).shuffle(order)
    order = [MESSAGE_BYTES[0]] * NUM_WARM_UPS + order
    found: dict[int, list[float]] = {}
    ready, stamp = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    for number, size in enumerate(order):
        message = torch.zeros(size // 4)
        if rank == source:
            dist.recv(ready, destination)
            stamp[0] = time.perf_counter()
            dist.send(message, destination)
            dist.send(stamp, destination)
        elif rank == destination:
            work = dist.irecv(message, source)
            assert work is not None
            dist.send(ready, source)
            work.wait()
            arrived_s = time.perf_counter()
            dist.recv(stamp, source)
            if number >= NUM_WARM_UPS:
                found.setdefault(size, []).append(arrived_s - float(stamp))
    return found


def _together(communicator: Communicator, work: Callable[[], object]) -> list[float]:
    """How much slower one process computes while k do, for k = 1 .. all of them."""
    for _ in range(3):
        work()
    alone_s, factors = 0.0, []
    for count in range(1, communicator.world_size + 1):
        communicator.barrier()
        seconds = _timed(work) if communicator.rank < count else 0.0
        rows = communicator.gather_numbers(seconds)
        median_s = statistics.median(row[0] for row in rows[:count])
        alone_s = alone_s or median_s
        factors.append(median_s / alone_s)
    return factors


def _timed(work: Callable[[], object]) -> float:
    """Median seconds of one call."""
    samples, end_s = [], time.perf_counter() + TOGETHER_S
    while time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began_s)
    return statistics.median(samples)


def _layers_to_run() -> dict[str, Callable[[], object]]:
    """A forward and backward pass of a compute-bound and of a memory-bound layer."""
    dense = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))
    norm = nn.LayerNorm(512)
    tokens, wide = torch.randn(256, 256), torch.randn(2048, 512)

    def run(layer: Callable[[Tensor], Tensor], values: Tensor) -> Callable[[], object]:
        def once() -> None:
            entry = values.clone().requires_grad_()
            layer(entry).sum().backward()  # type: ignore[no-untyped-call]

        return once

    return {
        "compute-bound": run(dense, tokens),
        "memory-bound": run(lambda x: F.gelu(norm(x)) + x, wide),
    }


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
