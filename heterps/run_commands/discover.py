"""`heterps discover`: the cluster file of this machine, or of hosts over ssh."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.reports.console import answer, print_json, remarks, seconds_text
from heterps_configs.documents.cluster import Device, Link
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_configs.outputs import try_outputs
from heterps_configs.units import bytes_text

if TYPE_CHECKING:
    from heterps_runtime.discovery.discover import Discovery
    from heterps_runtime.discovery.host import Host

SUFFIXES = (".yaml", ".yml")


def run_discover(
    *,
    output: Path | None,
    hosts: str | None,
    hosts_file: Path | None,
    time_limit_s: float,
    name: str | None,
    replaces: bool,
    as_json: bool,
) -> None:
    """Asks the hosts, writes or prints the file, and says what was found and assumed."""
    from heterps_runtime.discovery.discover import discover
    from heterps_runtime.discovery.host_names import host_names

    try_outputs({"--output": (output, SUFFIXES)})
    if output is not None and output.exists() and not replaces:
        raise HeterpsError(f"--output {output}: exists already; --force replaces it")
    asked = host_names(hosts, hosts_file)
    with remarks.status(f"asking {asked[0] if len(asked) == 1 else f'{len(asked)} hosts'}"):
        found = discover(asked, name, time_limit_s)
    if output is not None:
        write_text(output, found.text)
    if as_json:
        print_json(
            {
                "cluster": found.cluster.model_dump(mode="json"),
                "hosts": [_host_data(host) for host in found.hosts],
                "remarks": list(found.draft.remarks),
            }
        )
        return
    if output is None:
        answer.file.write(found.text)
    summary = remarks if output is None else answer
    for line in _summary(found, output):
        summary.print(line, soft_wrap=True)


def _host_data(host: Host) -> dict[str, object]:
    data = asdict(host)
    ways = host.topology.ways.items()
    data["topology"] = {f"{first}-{second}": way for (first, second), way in ways}
    return data


def _summary(found: Discovery, output: Path | None) -> Iterator[str]:
    for node, draft in zip(found.cluster.nodes, found.draft.nodes, strict=True):
        devices = [device for device in found.cluster.devices if device.node == node.name]
        counts = Counter((device.type.name, device.memory_bytes) for device in devices)
        groups = ", ".join(
            f"{count} x {kind} of {bytes_text(memory)}" for (kind, memory), count in counts.items()
        )
        yield f"host        {node.name}: {groups}"
        yield f"            {draft.notes[0]}"
        if node.link is not None and draft.link is not None:
            yield f"link        {_link_text(node.link)}; {draft.link.note}"
    between, noted = found.cluster.inter_node_link, found.draft.between
    if between is not None and noted is not None:
        yield f"between     {_link_text(between)}; {noted.note}"
    for override in found.cluster.link_overrides:
        yield f"            {_link_text(override.link)} from {' to '.join(override.between)}"
    for remark in found.draft.remarks:
        yield f"note        {remark}"
    if output is not None:
        yield f"cluster written to {output}"
        yield from _next_commands(found, output)


def _link_text(link: Link) -> str:
    return f"{seconds_text(link.latency_s)} + bytes / {link.bandwidth_bytes_per_s / 1e9:.4g} GB/s"


def _next_commands(found: Discovery, output: Path) -> Iterator[str]:
    """What measures instead of assuming; links of GPUs are not among it."""
    file = shlex.quote(str(output))
    gpu_types = sorted({device.type.name for device in found.cluster.devices if _is_gpu(device)})
    where = " (on each host)" if len(found.hosts) > 1 else ""
    if any(not host.gpus for host in found.hosts):
        yield f"next        heterps profile --links -c {file} -o {file}{where}"
        yield "            measures links and host times; comments of the file are lost"
    for name in gpu_types:
        times = f"--device cuda:0 --device-type {name} -o {name}.yaml"
        yield f"next        heterps profile gpt2 {times}"
    if gpu_types:
        yield "            measures layers; --links measures processes on the CPU, not NVLink"
    yield f"then        heterps place gpt2 -c {file}"


def _is_gpu(device: Device) -> bool:
    return device.type.kind == "gpu"
