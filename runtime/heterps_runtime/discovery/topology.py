"""What lies between the GPUs of a host: NVLink with so many links, or ways through PCIe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from heterps_runtime.discovery.gpus import MOST_GPUS, json_object

Pair = tuple[int, int]

# `nvidia-smi topo -m` underlines its head, in files and pipes too.
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU([0-9]{1,4})")
_WAY = re.compile(r"NV[0-9]{1,2}|PIX|PXB|PHB|NODE|SYS|XGMI")
_AMD_PAIR = re.compile(r".*between DRM devices ([0-9]{1,4}) and ([0-9]{1,4})")
_CARD = re.compile(r"GPU ([0-9]{1,4}):")
_LINK = re.compile(r"\s*Link [0-9]{1,2}: ([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s")
AMD_WAYS = {"XGMI": "XGMI", "PCIE": "PHB"}


@dataclass(frozen=True)
class Topology:
    """The ways between GPUs.

    Attributes:
        ways: `NV18`, `XGMI`, or how far through PCIe: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`. By the
            indices of two GPUs, the lower one first; pairs that the tool does not name are missing.
        nvlink_gb_per_s: What one NVLink of a card is said to carry each way; by its index.
    """

    ways: Mapping[Pair, str]
    nvlink_gb_per_s: Mapping[int, float]


def topology_of(sections: Mapping[str, str]) -> Topology:
    """The topology that the script printed.

    Args:
        sections: Of the script.
    """
    ways = nvidia_ways(sections.get("nvidia-topology", ""))
    return Topology(
        ways or amd_ways(sections.get("amd-topology", "")),
        nvlink_speeds(sections.get("nvidia-nvlink", "")),
    )


def nvidia_ways(text: str) -> dict[Pair, str]:
    """Of `nvidia-smi topo -m`.

    Args:
        text: A matrix: a head of names, then a row for each GPU, network card, ...
    """
    columns: list[int] = []
    found: dict[Pair, str] = {}
    for line in _COLOURS.sub("", text).splitlines():
        words = line.split()
        if not words or not _GPU.fullmatch(words[0]):
            continue
        if not columns:
            columns = _head(words)
            continue
        row = int(words[0][3:])
        for column, way in zip(columns, words[1:], strict=False):
            if column != row and _WAY.fullmatch(way) and way != "NV0":
                found.setdefault((min(row, column), max(row, column)), way)
    return found


def _head(words: list[str]) -> list[int]:
    """GPUs stand first in the head; network cards and affinities after them."""
    columns = []
    for word in words[:MOST_GPUS]:
        match = _GPU.fullmatch(word)
        if match is None:
            break
        columns.append(int(match[1]))
    return columns


def nvlink_speeds(text: str) -> dict[int, float]:
    """Of `nvidia-smi nvlink --status`: the slowest active link of each card.

    Args:
        text: A line for each card, and under it one for each link.
    """
    found: dict[int, float] = {}
    card: int | None = None
    for line in text.splitlines():
        head, link = _CARD.match(line), _LINK.fullmatch(line.rstrip())
        if head is not None:
            card = int(head[1])
        elif link is not None and card is not None and float(link[1]) > 0:
            found[card] = min(found.get(card, float(link[1])), float(link[1]))
    return found


def amd_ways(text: str) -> dict[Pair, str]:
    """Of `rocm-smi --showtopotype --json`.

    Args:
        text: JSON: a sentence for each pair of cards, and the kind of its link.
    """
    found: dict[Pair, str] = {}
    for part in json_object(text).values():
        for sentence, kind in part.items() if isinstance(part, dict) else ():
            pair, way = _AMD_PAIR.fullmatch(str(sentence)), AMD_WAYS.get(str(kind))
            if pair is not None and way is not None:
                first, second = sorted((int(pair[1]), int(pair[2])))
                if first != second:
                    found.setdefault((first, second), way)
    return found
