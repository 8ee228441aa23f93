"""GPUs from what `nvidia-smi` and `rocm-smi` print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from heterps_configs.documents.cluster_problems import MAX_GROUP_SIZE
from heterps_configs.documents.numbers import MOST_MEMORY_BYTES
from heterps_runtime.discovery.sections import plain, whole

_FIELDS = ("index", "name", "memory", "uuid", "generation", "lanes", "mig")
_NUM_ESSENTIAL = 3
_AMD_CARD = re.compile(r"card([0-9]{1,4})")
_AMD_NAMES = ("card series", "product name", "card model")
_LONGEST_UUID = 80
MOST_GPUS = 256
assert MOST_GPUS <= MAX_GROUP_SIZE


@dataclass(frozen=True)
class Gpu:
    """One card.

    Attributes:
        index: As its tool counts.
        name: As its tool calls it.
        memory_bytes: All of it; None: the tool does not say.
        pcie_generation: The fastest of card and host; None: not said.
        pcie_lanes: The same.
        has_instances: It is divided (MIG).
    """

    index: int
    name: str
    memory_bytes: int | None
    uuid: str = ""
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    has_instances: bool = False


@dataclass(frozen=True)
class FoundGpus:
    """The cards of a host, and what its user should know of them."""

    gpus: tuple[Gpu, ...] = ()
    remarks: tuple[str, ...] = ()


def gpus_of(sections: Mapping[str, str]) -> FoundGpus:
    """The cards that programs on the host see.

    Args:
        sections: What the script printed.
    """
    if "nvidia" in sections:
        found = nvidia_gpus(sections["nvidia"])
        if found.gpus:
            return only_visible(found, sections.get("visible", ""))
        if "amd" not in sections:
            return found
    if "amd" in sections:
        return amd_gpus(sections["amd"])
    num_devices = len(sections.get("nvidia-devices", "").split())
    remark = (
        f"{num_devices} NVIDIA devices are in /dev, and no nvidia-smi, which would describe them"
    )
    return FoundGpus(remarks=(remark,) if num_devices else ())


def nvidia_gpus(text: str) -> FoundGpus:
    """Of `nvidia-smi --query-gpu=... --format=csv,noheader,nounits`.

    Args:
        text: A line for each card. What is none is a message of the driver.
    """
    gpus: dict[int, Gpu] = {}
    others: list[str] = []
    for line in text.splitlines():
        gpu = _nvidia_gpu(line)
        if gpu is not None and len(gpus) < MOST_GPUS:
            gpus.setdefault(gpu.index, gpu)
        elif line.strip() and "No devices were found" not in line:
            others.append(plain(line))
    remarks = [f"nvidia-smi says: {others[0]}"] if others else []
    remarks += [
        f"GPU {gpu.index} is divided into instances (MIG), which are not described: the file has "
        "the whole card"
        for gpu in gpus.values()
        if gpu.has_instances
    ]
    return FoundGpus(tuple(gpus[index] for index in sorted(gpus)), tuple(remarks))


def _nvidia_gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    if len(parts) not in (_NUM_ESSENTIAL, len(_FIELDS)) or not re.fullmatch("[0-9]{1,4}", parts[0]):
        return None
    fields = dict(zip(_FIELDS, parts, strict=False))
    name = plain(fields["name"])
    if not name:
        return None
    return Gpu(
        index=int(parts[0]),
        name=name,
        memory_bytes=_memory(whole(fields["memory"]), 2**20),
        uuid=plain(fields.get("uuid", ""))[:_LONGEST_UUID],
        pcie_generation=whole(fields.get("generation")),
        pcie_lanes=whole(fields.get("lanes")),
        has_instances=fields.get("mig") == "Enabled",
    )


def _memory(count: int | None, unit: int) -> int | None:
    """Bytes, where a card can have so many."""
    return count * unit if count is not None and count * unit <= MOST_MEMORY_BYTES else None


def only_visible(found: FoundGpus, text: str) -> FoundGpus:
    """The cards that `CUDA_VISIBLE_DEVICES` names; all where it is not set.

    Args:
        found: All cards.
        text: The variable as the script prints it.
    """
    name, is_set, value = text.partition("=")
    if name != "CUDA_VISIBLE_DEVICES" or not is_set:
        return found
    named = list(_named(found.gpus, [part.strip() for part in value.split(",")]))
    kept = tuple(gpu for gpu in found.gpus if gpu in named)
    remark = (
        f"CUDA_VISIBLE_DEVICES={plain(value)} leaves {len(kept)} of {len(found.gpus)} GPUs: the "
        "file has no others"
    )
    return FoundGpus(kept, (*found.remarks, remark))


def _named(gpus: Sequence[Gpu], names: Sequence[str]) -> Iterator[Gpu]:
    """As CUDA does: up to the first name that no card has."""
    for name in names:
        having = [
            gpu
            for gpu in gpus
            if str(gpu.index) == name or (name.startswith("GPU-") and gpu.uuid.startswith(name))
        ]
        if len(having) != 1:
            return
        yield having[0]


def amd_gpus(text: str) -> FoundGpus:
    """Of `rocm-smi --showproductname --showmeminfo vram --json`.

    Args:
        text: JSON, with warnings in front of it at times.
    """
    data = json_object(text)
    gpus: dict[int, Gpu] = {}
    for key, card in data.items():
        index = _AMD_CARD.fullmatch(key)
        if index is None or not isinstance(card, dict) or len(gpus) >= MOST_GPUS:
            continue
        fields = {str(name).lower(): str(value) for name, value in card.items()}
        named = (fields.get(field, "N/A") for field in _AMD_NAMES)
        name = plain(next((name for name in named if name != "N/A"), ""))
        memory = _memory(whole(fields.get("vram total memory (b)")), 1)
        gpus.setdefault(int(index[1]), Gpu(int(index[1]), name or "AMD GPU", memory))
    remarks = () if gpus or not text.strip() else (f"rocm-smi says: {plain(text)}",)
    return FoundGpus(tuple(gpus[index] for index in sorted(gpus)), remarks)


def json_object(text: str) -> dict[str, object]:
    """The JSON object in a text; empty where there is none."""
    try:
        data = json.loads(text[text.find("{") :])
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
