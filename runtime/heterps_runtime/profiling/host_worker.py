"""One process of `heterps profile --links`: messages and collectives, computing side by side.

Rank 0 writes `links.json`. The processes are of one host: they share the monotonic clock, so a
message is timed one way, from the sender's stamp to the moment in which the receiver has it.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import nn

from heterps_configs.documents.job import Optimizer
from heterps_configs.documents.yaml_files import write_text
from heterps_runtime.process.allocator import keep_freed_memory
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.profiling.collectives import measured_collectives, num_groups
from heterps_runtime.run.worker import report_error, watch_parents
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import talking

RESULT_FILE = "links.json"
MESSAGE_BYTES = (4, 4096, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216)
# Messages of each size and direction; the first ones set up the connection.
NUM_MESSAGES, NUM_WARM_UPS = 24, 4
# Rounds of phases in which one process computes alone, or some do at once, and how long a phase is:
# so short that whatever else changes on the machine changes for both kinds of phases.
NUM_ROUNDS, PHASE_S = 12, 0.15
NUM_WARM_UP_CALLS = 3
# Parameters of an optimizer step: with gradient and state 16 bytes each, 128 MiB, more than caches
# hold; tensors of the size of a layer's.
NUM_TENSORS, TENSOR_SHAPE = 8, (1024, 1024)
# Layers of a pass, as many as a stage may have: one alone would stay in the caches that processes
# share, and suffer more from company than a stage does.
NUM_LAYERS = 6

Call = Callable[[], object]
# Called with what is measured next.
Begin = Callable[[str], None]


def main(arguments: list[str]) -> int:
    """Measures, and leaves the results in a directory.

    Args:
        arguments: The directory, how many rounds processes compute side by side, the seconds of a
            phase, and how many messages of each size there are.

    Returns:
        The exit code.
    """
    directory, num_rounds, phase_s = Path(arguments[0]), int(arguments[1]), float(arguments[2])
    num_messages = int(arguments[3])
    rank = int(os.environ.get("RANK", "0"))
    watch_parents()
    torch.set_num_threads(1)
    keep_freed_memory()
    keep_compiler_out()
    try:
        communicator = Communicator()
        layers, optimizers = _layers_to_run(), _steps_to_take()
        world = communicator.world_size
        kinds = len(layers) + len(optimizers)
        begin = _told(rank, world * (world - 1) + num_groups(world) + kinds)
        links = _links(communicator, num_messages, begin)
        collectives = [found._asdict() for found in measured_collectives(communicator, begin)]
        together = _each_together(communicator, layers, num_rounds, phase_s, begin)
        steps = _each_together(communicator, optimizers, num_rounds, phase_s, begin)
        if rank == 0:
            result = {
                "links": links,
                "collectives": collectives,
                "together": together,
                "steps_together": steps,
            }
            write_text(directory / RESULT_FILE, json.dumps(result))
        communicator.close()
    except BaseException as error:
        report_error(directory, str(rank), "", error)
        return 1
    return 0


def _told(rank: int, total: int) -> Begin:
    """Rank 0 tells the launcher what it begins, and how much is done of how much."""
    done = itertools.count()

    def begin(text: str) -> None:
        line = {"done": next(done), "total": total, "text": text}
        if rank == 0:
            print(json.dumps(line), flush=True)

    return begin


class _Link(NamedTuple):
    """Seconds of messages from one rank to another, by size."""

    source: int
    destination: int
    seconds: dict[int, list[float]]


def _links(communicator: Communicator, num_messages: int, begin: Begin) -> list[dict[str, Any]]:
    """For each ordered pair of ranks, seconds of messages by size."""
    own: list[_Link] = []
    for source in range(communicator.world_size):
        for destination in range(communicator.world_size):
            if source != destination:
                begin(f"messages from process {source} to {destination}")
                communicator.barrier()
                with talking():
                    seconds = _one_way(communicator.rank, source, destination, num_messages)
                if communicator.rank == destination:
                    own.append(_Link(source, destination, seconds))
    gathered = communicator.gather(own, list[_Link])
    return [entry._asdict() for entries in gathered for entry in entries]


def _one_way(rank: int, source: int, destination: int, num_messages: int) -> dict[int, list[float]]:
    """Seconds by message size, on the receiver; nothing on the other ranks.

    The receiver asks for the message before the sender sends it, as a pipeline does.
    """
    order = [size for size in MESSAGE_BYTES for _ in range(num_messages)]
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


def _each_together(
    communicator: Communicator,
    kinds: Mapping[str, Callable[[], Call]],
    num_rounds: int,
    phase_s: float,
    begin: Begin,
) -> dict[str, list[list[float]]]:
    """The ratios of each kind, by its name."""
    found = {}
    for name, build in kinds.items():
        begin(f"{name} side by side")
        found[name] = _together(communicator, build, num_rounds, phase_s)
    return found


def _together(
    communicator: Communicator,
    build: Callable[[], Call],
    num_rounds: int,
    phase_s: float,
) -> list[list[float]]:
    """How much slower processes compute side by side, against alone in the same round.

    Each round has layers of its own: how much two processes disturb each other also depends on
    where in memory their numbers happen to lie.

    Args:
        communicator: The processes.
        build: Makes what is called.
        num_rounds: Each with phases of every kind.
        phase_s: Seconds of a phase.

    Returns:
        For k = 2 .. all of them, one ratio for each round: the mean over the k processes.
    """
    rank, world_size = communicator.rank, communicator.world_size
    # Who computes in a phase: one process alone, then the first 2, the first 3, ...
    alone = [range(number, number + 1) for number in range(world_size)]
    phases = alone + [range(count) for count in range(2, world_size + 1)]
    ratios = []
    for number in range(num_rounds):
        work = build()
        for _ in range(NUM_WARM_UP_CALLS):
            work()
        # Every other round backwards: a steady drift then cancels out.
        seconds = {}
        for phase in phases if number % 2 == 0 else reversed(phases):
            communicator.barrier()
            seconds[phase] = _seconds_of_a_call(work, phase_s) if rank in phase else 0.0
        own = [seconds[phase] / seconds[alone[rank]] for phase in phases[world_size:]]
        rows = communicator.gather_numbers(*own)
        ratios.append(
            [
                statistics.mean(row[count - 2] for row in rows[:count])
                for count in range(2, world_size + 1)
            ]
        )
    return [list(column) for column in zip(*ratios, strict=True)]


def _seconds_of_a_call(work: Call, phase_s: float) -> float:
    """Median over one phase, without its first call: that one follows a wait."""
    samples: list[float] = []
    work()
    end_s = time.perf_counter() + phase_s
    while not samples or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        work()
        samples.append(time.perf_counter() - began_s)
    return statistics.median(samples)


def _layers_to_run() -> dict[str, Callable[[], Call]]:
    """What models are made of: builds a forward and backward pass through a few layers."""

    def pass_of(layer: Callable[[], nn.Module], *shape: int) -> Call:
        values, layers = torch.randn(shape), nn.Sequential(*(layer() for _ in range(NUM_LAYERS)))

        def once() -> None:
            layers(values.clone().requires_grad_()).sum().backward()

        return once

    def block() -> nn.Module:
        return nn.TransformerEncoderLayer(
            256, nhead=4, dim_feedforward=1024, dropout=0.0, batch_first=True, norm_first=True
        )

    def convolutions() -> nn.Module:
        first, last = nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 32, 3, padding=1)
        return nn.Sequential(first, nn.BatchNorm2d(64), nn.ReLU(), last)

    def linear() -> nn.Module:
        return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU())

    return {
        "transformer blocks": lambda: pass_of(block, 2, 32, 256),
        "convolutions": lambda: pass_of(convolutions, 2, 32, 32, 32),
        # Few samples and many weights.
        "linear layers": lambda: pass_of(linear, 32, 1024),
    }


def _steps_to_take() -> dict[str, Callable[[], Call]]:
    """Optimizer steps over parameters that no cache holds, by the name that a job calls them."""

    def step_of(name: Optimizer) -> Call:
        parameters = [nn.Parameter(torch.randn(TENSOR_SHAPE)) for _ in range(NUM_TENSORS)]
        for parameter in parameters:
            parameter.grad = torch.randn(TENSOR_SHAPE)
        optimizer = build_optimizer(name, parameters)
        assert optimizer is not None
        return optimizer.step

    return {name: partial(step_of, name) for name in get_args(Optimizer)}
