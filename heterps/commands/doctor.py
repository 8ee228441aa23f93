"""`heterps doctor`: what of this machine heterps can use, what is missing, and what that costs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import typer
from rich.table import Table

from heterps import __version__
from heterps.reports.console import answer, print_json, remarks
from heterps_configs.units import bytes_text

Verdict = Literal["ok", "note", "broken"]
# What an optional package is for.
EXTRAS = {"hf": "models of Hugging Face configs (`pip install heterps[hf]`)"}
LEAST_FREE_BYTES = 2 * 2**30
# The variable of gloo.
INTERFACE = "GLOO_SOCKET_IFNAME"


class Finding(NamedTuple):
    """One thing that was looked at.

    Attributes:
        what: Its name.
        verdict: `note` is for what works, and could be better.
        text: What was found, and what to do.
    """

    what: str
    verdict: Verdict
    text: str


def run_doctor(*, as_json: bool) -> None:
    """Prints what was found.

    Raises:
        Exit: With code 1: something that is needed does not work.
    """
    with remarks.status("looking at this machine"):
        found = [finding for check in CHECKS for finding in _tried(check)]
    if as_json:
        print_json([finding._asdict() for finding in found])
    else:
        table = Table(box=None, show_header=False)
        for finding in found:
            table.add_row(*finding)
        answer.print(table)
    if any(finding.verdict == "broken" for finding in found):
        raise typer.Exit(1)


def _tried(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a check finds; where it fails itself, that is what it found."""
    try:
        yield from check()
    except Exception as error:
        name = check.__name__.strip("_").replace("_", " ")
        yield Finding(name, "broken", f"{type(error).__name__}: {error}")


def _versions() -> Iterator[Finding]:
    try:
        yield Finding("heterps", "ok", metadata.version("heterps"))
    except metadata.PackageNotFoundError:
        yield Finding("heterps", "note", f"{__version__}, from its source tree: not installed")
    python = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("python", "ok", f"{python} ({sys.executable})")


def _packages() -> Iterator[Finding]:
    """Every requirement of the package: there, and in its range."""
    from packaging.requirements import Requirement

    try:
        requirements = metadata.requires("heterps") or ()
    except metadata.PackageNotFoundError:
        yield Finding("packages", "note", "not looked at: only an installed package says its needs")
        return
    wrong = list[str]()
    for text in requirements:
        requirement = Requirement(text)
        extra = next((name for name in EXTRAS if _is_of(requirement, name)), None)
        if extra is None and not _is_of(requirement, ""):
            continue  # of development alone
        problem = _problem(requirement)
        if problem and extra:
            yield Finding(requirement.name, "note", f"{problem}; it is for {EXTRAS[extra]}")
        elif problem:
            wrong.append(f"{requirement.name}: {problem}")
    needed = "all are there, in their ranges"
    yield Finding("packages", "broken" if wrong else "ok", "; ".join(wrong) or needed)


def _is_of(requirement: Any, extra: str) -> bool:
    marker = requirement.marker
    without = marker is None or marker.evaluate({"extra": ""})
    return without if not extra else not without and marker.evaluate({"extra": extra})


def _problem(requirement: Any) -> str:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return "is not installed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"is {version}; needed: {requirement.specifier}"


def _torch() -> Iterator[Finding]:
    import torch
    import torch.distributed as dist

    yield Finding("torch", "ok", torch.__version__)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    names = [torch.cuda.get_device_name(index) for index in range(count)]
    nccl = "with nccl" if count and dist.is_nccl_available() else "without nccl"
    none = "none: runs compute on the CPU, or on emulated devices"
    yield Finding("CUDA devices", "ok", f"{', '.join(names)}; {nccl}" if names else none)


def _processes() -> Iterator[Finding]:
    """A sum over a gloo group, as ranks make it."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        yield Finding("gloo", "broken", "this torch has none: no plan can be run")
        return
    with _gloo_on_loopback():
        store = torch._C._distributed_c10d.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    yield Finding("gloo", "ok", "works on the loopback")


@contextmanager
def _gloo_on_loopback() -> Iterator[None]:
    """Where a user names no interface; what runs later in this process chooses its own."""
    if INTERFACE in os.environ:
        yield
        return
    os.environ[INTERFACE] = "lo" if sys.platform == "linux" else "lo0"
    try:
        yield
    finally:
        del os.environ[INTERFACE]


def _machine() -> Iterator[Finding]:
    from heterps_runtime.process.cores import usable_cores
    from heterps_runtime.specification.machine import available_memory_bytes

    cores = usable_cores()
    text = f"{cores} cores, {bytes_text(available_memory_bytes())} of memory available "
    text += "(`heterps discover -o cluster.yaml` writes a cluster file of it)"
    is_few = cores < 2
    more = "; emulated devices are in one another's way on one core" if is_few else ""
    yield Finding("machine", "note" if is_few else "ok", text + more)
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    verdict: Verdict = "ok" if free >= LEAST_FREE_BYTES else "note"
    yield Finding("temporary files", verdict, f"{bytes_text(free)} free in {folder}")


def _kernels() -> Iterator[Finding]:
    """Whether the longest of the compiled kernels is kept."""
    from heterps_agents.exact import front

    sweep: Any = front._sweep
    path = sweep.stats.cache_path
    folder = Path("" if path is None else path)
    if path is not None and any(folder.glob("front._sweep-*.nbi")):
        yield Finding("kernels", "ok", f"compiled, kept in {folder}")
        return
    yield Finding(
        "kernels", "note", "not compiled: the first command takes a minute; `heterps compile`"
    )


CHECKS = (_versions, _packages, _torch, _processes, _machine, _kernels)
