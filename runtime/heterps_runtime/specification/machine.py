"""Whether this machine can run its part of a plan: the GPUs that are named, and memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import DeviceChoice
from heterps_configs.errors import HeterpsError
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.specification.devices import torch_devices

# Of a rank beside its tensors: what it does not share with the process that it was forked from.
_PROCESS_BYTES = 150 * 10**6
# More names tell nobody anything.
_MOST_NAMES = 4


def check_machine(
    problem: Problem, plan: Plan, devices: Sequence[str], choice: DeviceChoice
) -> None:
    """Refuses what would not run here, before any process starts.

    Args:
        problem: Of the plan.
        plan: What is to run.
        devices: Names of those that this machine starts.
        choice: Where the user wants ranks to compute.

    Raises:
        HeterpsError: The plan names real GPUs and there are none or fewer, and the user has not
            asked for the CPU; or what computes on the CPU needs more memory than is available.
    """
    wanted = dict(zip(devices, torch_devices(problem.cluster, devices, choice), strict=True))
    on_gpus = [name for name, place in wanted.items() if place != "cpu"]
    num_found = torch.cuda.device_count() if on_gpus and torch.cuda.is_available() else 0
    needed_bytes = _needed_bytes(problem, plan, devices)
    there_bytes = available_memory_bytes()
    memory = f"{bytes_text(needed_bytes)} of memory, of which {bytes_text(there_bytes)} are "
    memory += "available here"
    num_wanted = 1 + max((int(wanted[name].partition(":")[2]) for name in on_gpus), default=-1)
    if choice == "auto" and num_found < num_wanted:
        raise HeterpsError(
            f"the plan names {_described(problem, on_gpus)}, and this machine has "
            f"{num_found or 'no'} CUDA device{'s' if num_found > 1 else ''}: run it where they "
            f"are; or with --device cpu, which takes {memory}, and has no times of theirs; or "
            "place the model on emulated devices (`heterps copy local-emulated` writes some)"
        )
    if num_wanted == 0 and needed_bytes > there_bytes:
        raise HeterpsError(
            f"on the CPU the {len(devices)} devices of the plan take {memory}: run it where there "
            "is more, on several hosts (--nodes), or place a smaller model or micro-batch"
        )


def available_memory_bytes() -> int:
    """What processes can still take, swap and the limit of a container included."""
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
        return min([found["MemAvailable"] + found["SwapFree"], *_container_bytes()])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container_bytes() -> list[int]:
    """What the control group leaves, in its second and its first version; caches give way."""
    left, root = [], Path("/sys/fs/cgroup")
    for folder, limit, used in (
        (root, "memory.max", "anon"),
        (root / "memory", "memory.limit_in_bytes", "total_rss"),
    ):
        with suppress(OSError, ValueError, KeyError):  # no such group, or "max": no limit
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            left.append(int((folder / limit).read_text()) - int(stat[used]))
    return left


def _needed_bytes(problem: Problem, plan: Plan, devices: Sequence[str]) -> int:
    memory_bytes = estimate(problem, plan).memory_bytes
    return sum(memory_bytes.get(name, 0) + _PROCESS_BYTES for name in devices)


def _described(problem: Problem, names: Sequence[str]) -> str:
    """Such as `16 H100-80G (h100-0, h100-1, ...)`."""
    counts = Counter(problem.device_named[name].type.name for name in names)
    shown = [*names[:_MOST_NAMES], *(["..."] if len(names) > _MOST_NAMES else [])]
    kinds = " and ".join(f"{count} {kind}" for kind, count in counts.items())
    return f"{kinds} ({', '.join(shown)})"
