"""Processors and memory of a host, less what its container and its affinity forbid."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from heterps_configs.documents.numbers import MOST_MEMORY_BYTES
from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.sections import plain, whole

_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,15}) kB")
_FIELD = re.compile(r"([a-z ]+?)\s*:\s*(.*)")
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")
_MOST_PROCESSORS = 2**14
_DEEPEST = 20


@dataclass(frozen=True)
class Processors:
    """What may compute on a host.

    Attributes:
        model: Its name; may be empty.
        sockets: Of the host.
        cores: Of the host, whatever of them may be used.
        usable_cores: That the affinity of processes leaves.
        quota_cores: What the control group gives in processor seconds each second; None: all.
        memory_bytes: Of the host.
        limit_bytes: What the control group leaves of it; None: all.
    """

    model: str
    sockets: int
    cores: int
    usable_cores: int
    quota_cores: float | None
    memory_bytes: int
    limit_bytes: int | None

    @property
    def num_processes(self) -> int:
        """Processes of one thread that do not share a core."""
        quota = self.usable_cores if self.quota_cores is None else int(self.quota_cores)
        return max(1, min(self.usable_cores, quota))

    @property
    def usable_bytes(self) -> int:
        """Memory of all processes together."""
        return self.memory_bytes if self.limit_bytes is None else self.limit_bytes


def processors_of(sections: Mapping[str, str], host: str) -> Processors:
    """Processors and memory.

    Args:
        sections: What the script printed.
        host: What messages call it.

    Raises:
        HeterpsError: It does not say how much memory it has, as all Linux systems do.
    """
    total = _TOTAL.search(sections.get("memory", ""))
    memory_bytes = 1024 * int(total[1]) if total else 0
    if not 0 < memory_bytes <= MOST_MEMORY_BYTES:
        raise HeterpsError(
            f"{host}: does not say how much memory it has (/proc/meminfo): only Linux is described"
        )
    known = _lscpu(sections.get("lscpu", ""))
    places = _places(sections.get("processors", ""))
    cores = len(set(places.values())) or whole(known.get("CPU(s)")) or 1
    limits = list(_limits(sections.get("limits", "")))
    memory_limits = [value for name, value in limits if name == "memory"]
    quotas = [value for name, value in limits if name == "cores"]
    return Processors(
        model=plain(_model(sections.get("processors", "")) or known.get("Model name", "")),
        sockets=len({socket for socket, _ in places.values()}) or 1,
        cores=cores,
        usable_cores=_usable(places, sections.get("affinity", ""), cores),
        quota_cores=min(quotas, default=None),
        memory_bytes=memory_bytes,
        limit_bytes=min((int(v) for v in memory_limits if v < memory_bytes), default=None),
    )


def _lscpu(text: str) -> dict[str, str]:
    """Fields of `lscpu -J`, those within others too; empty where it is no such answer."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return dict(_fields(data.get("lscpu") if isinstance(data, dict) else None, _DEEPEST))


def _fields(entries: object, depth: int) -> Iterator[tuple[str, str]]:
    for entry in entries if isinstance(entries, list) and depth else ():
        if isinstance(entry, dict):
            yield str(entry.get("field")).removesuffix(":"), str(entry.get("data"))
            yield from _fields(entry.get("children"), depth - 1)


def _model(text: str) -> str:
    names = (_FIELD.fullmatch(line) for line in text.splitlines())
    return next((found[2] for found in names if found and found[1] == "model name"), "")


def _places(text: str) -> dict[int, tuple[int, int]]:
    """Socket and core of each processor of /proc/cpuinfo; two of one core are hyper-threads.

    Where it does not say, as on ARM, each processor is a core of the first socket.
    """
    found: dict[int, tuple[int, int]] = {}
    processor: int | None = None
    for line in text.splitlines():
        field = _FIELD.fullmatch(line.replace("\t", " "))
        if field is None or not re.fullmatch("[0-9]{1,5}", field[2]):
            continue
        number = int(field[2])
        if field[1] == "processor":
            processor = number if len(found) < _MOST_PROCESSORS else None
            if processor is not None:
                # Below all cores that are named: none of them is it.
                found[processor] = (0, -1 - processor)
        elif processor is not None and field[1] == "physical id":
            found[processor] = (number, found[processor][1])
        elif processor is not None and field[1] == "core id":
            found[processor] = (found[processor][0], number)
    return found


def _usable(places: Mapping[int, tuple[int, int]], text: str, cores: int) -> int:
    """Cores that the affinity names; all where it does not say."""
    _, _, ranges = text.partition(":")
    allowed: set[int] = set()
    for part in ranges.strip().split(","):
        found = _RANGE.fullmatch(part)
        if found is not None:
            first = int(found[1])
            last = min(int(found[2] or first), _MOST_PROCESSORS)
            allowed.update(range(first, last + 1))
    named = {place for processor, place in places.items() if processor in allowed}
    return min(len(named), cores) or (min(len(allowed), cores) if not places else 0) or cores


def _limits(text: str) -> Iterator[tuple[str, float]]:
    """Limits of control groups of both versions: bytes as `memory`, processors as `cores`."""
    quota: int | None = None
    for line in text.splitlines():
        name, *values = line.split()[:3] or [""]
        numbers = [whole(value) for value in values]
        if name in ("memory.max", "memory.limit_in_bytes") and numbers and numbers[0]:
            yield "memory", float(numbers[0])
        elif name == "cpu.max" and len(numbers) == 2 and numbers[0] and numbers[1]:
            yield "cores", numbers[0] / numbers[1]
        elif name == "cpu.cfs_quota_us" and numbers:
            quota = numbers[0]
        elif name == "cpu.cfs_period_us" and numbers and numbers[0] and quota:
            yield "cores", quota / numbers[0]
            quota = None
