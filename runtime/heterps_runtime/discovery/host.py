"""What one host has, put together from the sections that it printed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.asking import Answer
from heterps_runtime.discovery.gpus import Gpu, gpus_of
from heterps_runtime.discovery.host_names import THIS_MACHINE
from heterps_runtime.discovery.interfaces import Interface, interfaces_of
from heterps_runtime.discovery.processors import Processors, processors_of
from heterps_runtime.discovery.sections import plain, sections_of
from heterps_runtime.discovery.topology import Topology, topology_of

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: As it calls itself, or else as the user does.
        asked: As the user calls it.
        boot: Equal of containers and names of one machine; may be empty.
        remarks: What its tools say that the user should know.
    """

    name: str
    asked: str
    boot: str
    gpus: tuple[Gpu, ...]
    topology: Topology
    processors: Processors
    interfaces: tuple[Interface, ...]
    remarks: tuple[str, ...]


def host_of(answer: Answer) -> Host:
    """What a host has.

    Args:
        answer: What it printed.

    Raises:
        HeterpsError: The answer is cut off, or is none of a Linux host.
    """
    sections = sections_of(answer.text, answer.host)
    name, _, system = sections.get("host", "").partition("\n")
    if system.strip() not in ("", "Linux"):
        raise HeterpsError(f"{answer.host}: runs {plain(system)}; only Linux is described")
    found = gpus_of(sections)
    return Host(
        name=_node_name(name.strip(), answer.host),
        asked=answer.host,
        boot=plain(sections.get("boot", "")),
        gpus=found.gpus,
        topology=topology_of(sections),
        processors=processors_of(sections, answer.host),
        interfaces=interfaces_of(sections),
        remarks=found.remarks,
    )


def _node_name(name: str, asked: str) -> str:
    if _NODE_NAME.fullmatch(name):
        return name
    return "this-machine" if asked == THIS_MACHINE else asked
