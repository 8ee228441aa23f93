"""Where ranks compute, and which backend carries what between them.

A device of kind `gpu` that is not emulated computes on a CUDA device of its host, where there is
one; all others compute on the CPU.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.run_settings import DeviceChoice
from heterps_configs.errors import HeterpsError
from heterps_runtime.specification.hosts import machine_identity

CPU = torch.device("cpu")
Backend = Literal["gloo", "nccl"]


class Place(NamedTuple):
    """Where a rank computes.

    Attributes:
        machine: Its identity; equal for hosts that share a machine.
        device: `cpu` or `cuda:N`.
    """

    machine: str
    device: str


def torch_devices(
    cluster: Cluster, names: Sequence[str], choice: DeviceChoice = "auto"
) -> tuple[str, ...]:
    """Where devices of a cluster should compute: `cuda:i` for the i-th real GPU of its node."""
    if choice == "cpu":
        return ("cpu",) * len(names)
    found: dict[str, str] = {}
    gpus: Counter[str] = Counter()
    for device in cluster.devices:
        is_gpu = device.type.kind == "gpu" and device.type.emulation is None
        found[device.name] = f"cuda:{gpus[device.node]}" if is_gpu else "cpu"
        gpus[device.node] += is_gpu
    return tuple(found[name] for name in names)


def check_choice(choice: DeviceChoice, wanted: Sequence[str]) -> None:
    """Refuses CUDA where all would compute on the CPU.

    Args:
        choice: The user's.
        wanted: Where the ranks should compute.

    Raises:
        HeterpsError: None of them is a real GPU, or this host has no CUDA device.
    """
    if choice != "cuda":
        return
    if all(device == "cpu" for device in wanted):
        raise HeterpsError("device cuda: no device of the plan is a real GPU; allowed: auto, cpu")
    if not torch.cuda.is_available():
        raise HeterpsError("device cuda: torch finds no CUDA device here; allowed: auto, cpu")


def available_device(wanted: str) -> torch.device:
    """The wanted device, made the current one; the CPU where this host has no CUDA device at all.

    Raises:
        HeterpsError: The host has CUDA devices, but fewer.
    """
    device = torch.device(wanted)
    if device.type != "cuda" or not torch.cuda.is_available():
        return CPU
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise HeterpsError(
            f"{wanted}: this host has {count} CUDA device(s); the plan's cluster has more GPUs in "
            "this node"
        )
    # Each message that is under way occupies a queue of the device; in too few of them the passes
    # would stand after receives that wait for other ranks. Read when the device is first used.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    torch.cuda.set_device(device)
    return device


def remarks_of_missing(wanted: Mapping[str, str], places: Sequence[Place]) -> list[str]:
    """What a user should know where GPUs are computed on CPUs.

    Args:
        wanted: Torch device by device of the plan, in the order of ranks.
        places: Where the ranks compute.
    """
    replaced = [
        name
        for (name, device), place in zip(wanted.items(), places, strict=True)
        if device != place.device
    ]
    if not replaced:
        return []
    return [
        f"no CUDA device here for {', '.join(replaced)}: computing on the CPU; "
        "no times of the plan's hardware"
    ]


def own_place(device: torch.device) -> Place:
    """The place of this process."""
    return Place(machine_identity(), str(device))


def backend_of(ranks: Iterable[int], places: Sequence[Place]) -> Backend:
    """What carries messages among some ranks: nccl where each has a GPU of its own, else gloo."""
    own = [places[rank] for rank in ranks]
    on_gpus = all(place.device.startswith("cuda") for place in own)
    return "nccl" if on_gpus and len(set(own)) == len(own) and len(own) > 1 else "gloo"


def to_device(
    batches: Mapping[int, tuple[dict[str, Tensor], Tensor]], device: torch.device
) -> dict[int, tuple[dict[str, Tensor], Tensor]]:
    """Inputs and targets where they are computed."""
    return {
        index: (
            {name: tensor.to(device, non_blocking=True) for name, tensor in inputs.items()},
            target.to(device, non_blocking=True),
        )
        for index, (inputs, target) in batches.items()
    }
