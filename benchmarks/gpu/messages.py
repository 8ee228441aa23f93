"""Section `messages`: nccl with one rank, two ranks on one GPU, messages through host memory.

    python -m benchmarks.gpu.messages

With one GPU nccl can be set up by one rank only; what two ranks on one GPU get is told. Two
processes that share a GPU talk through pinned host memory and gloo (`DeviceMessenger`).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.cases import Rows, run_section
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.device_messenger import DeviceMessenger

SIZES = (2**10, 2**20, 2**24)
LIMIT_S = 40.0


def nccl_alone(options: argparse.Namespace) -> Rows:
    """One rank: set-up, sums, an abort while one is under way, and the end."""
    return _in_processes(_nccl, 1, options)


def nccl_of_two(options: argparse.Namespace) -> Rows:
    """Two ranks on the one GPU."""
    return _in_processes(_nccl, 2, options)


def through_the_host(options: argparse.Namespace) -> Rows:
    """There and back between two processes."""
    return _in_processes(_staged, 2, options)


def _in_processes(target: Any, count: int, options: argparse.Namespace) -> Rows:
    context = multiprocessing.get_context("spawn")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pipes = [context.Pipe() for _ in range(count)]
    processes = [
        context.Process(target=_joined, args=(target, rank, count, port, options.device, pipe[1]))
        for rank, pipe in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    rows: Rows = []
    for rank, (process, (own, _)) in enumerate(zip(processes, pipes, strict=True)):
        process.join(LIMIT_S)
        if own.poll():
            rows += [{"ranks": count, "rank": rank, **row} for row in own.recv()]
        else:
            rows.append({"ranks": count, "rank": rank, "failed": f"exit code {process.exitcode}"})
        process.kill()
    return rows


def _joined(target: Any, rank: int, count: int, port: int, device: str, answer: Connection) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    try:
        found = target(rank, torch.device(device))
    except Exception as error:
        found = [{"what": target.__name__, "failed": f"{type(error).__name__}: {error}"[:800]}]
    answer.send(found)


def _nccl(rank: int, device: torch.device) -> Rows:
    torch.cuda.set_device(device)
    rows: Rows = []
    began_s = time.perf_counter()
    communicator = Communicator(device)
    rows.append({"what": "gloo set-up", "s": time.perf_counter() - began_s})
    ranks = range(communicator.world_size)
    began_s = time.perf_counter()
    group = communicator.channel(("test",), list(ranks))
    rows.append({"what": "nccl set-up", "s": time.perf_counter() - began_s})
    for size in SIZES:
        tensor = torch.ones(size // 4, device=device)
        seconds = []
        for _ in range(20):
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            dist.all_reduce(tensor, group=group)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began_s)
        rows.append({"what": f"nccl sum of {size} bytes", "s": statistics.median(seconds)})
    work = dist.all_reduce(torch.ones(2**26, device=device), group=group, async_op=True)
    began_s = time.perf_counter()
    group._get_backend(device).abort()
    rows.append({"what": "abort under way", "s": time.perf_counter() - began_s})
    del work
    began_s = time.perf_counter()
    communicator.sever()
    rows.append({"what": "destroy", "s": time.perf_counter() - began_s})
    return rows


def _staged(rank: int, device: torch.device) -> Rows:
    if device.type == "cuda":
        torch.cuda.set_device(device)
    communicator = Communicator(device, connect_timeout=timedelta(seconds=20))
    messenger = DeviceMessenger(communicator, {})
    rows: Rows = []
    for size in SIZES:
        tensor, seconds = torch.ones(size // 4, device=device), []
        for number in range(25):
            communicator.barrier()
            began_s = time.perf_counter()
            if rank == 0:
                messenger.send(tensor, 1, "forward", number).wait()
                messenger.receive(tensor, 1, "backward", number).wait()
            else:
                messenger.receive(tensor, 0, "forward", number).wait()
                messenger.send(tensor, 0, "backward", number).wait()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began_s)
        rows.append({"what": f"there and back, {size} bytes", "s": statistics.median(seconds[5:])})
    flat = torch.full((2**20,), float(rank + 1), device=device)
    began_s = time.perf_counter()
    messenger.start_sum(flat, (0, 1)).wait()
    rows.append(
        {
            "what": "sum of 4 MiB",
            "s": time.perf_counter() - began_s,
            "is_right": float(flat[5]) == 3,
        }
    )
    communicator.close()
    return rows


if __name__ == "__main__":
    run_section(__doc__ or "", [nccl_alone, nccl_of_two, through_the_host])
