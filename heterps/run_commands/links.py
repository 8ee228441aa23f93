"""`heterps profile --links`: links and host times of this machine, as a cluster file."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from heterps.reports.console import answer, print_json, remarks, seconds_text
from heterps.reports.run_progress import shown_progress
from heterps.run_commands.profile import HOST_TYPE
from heterps_configs.documents.cluster import (
    Cluster,
    Collective,
    DeviceGroup,
    HostTimes,
    Link,
    Node,
)
from heterps_configs.documents.job import Optimizer
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster
from heterps_configs.outputs import DOCUMENT_SUFFIXES, try_outputs
from heterps_runtime.process.cores import usable_cores

if TYPE_CHECKING:
    from heterps_runtime.profiling.link_profiler import MeasuredHost, Together

MOST_PROCESSES = 4


def run_links(
    cluster: str | None, *, output: Path | None, num_processes: int | None, as_json: bool
) -> None:
    """Measures, writes the cluster file, prints what was fitted."""
    try_outputs({"--output": (output, DOCUMENT_SUFFIXES)})
    document = None if cluster is None else load_cluster(cluster)
    node = None if document is None else node_of_this_machine(document, cluster or "")
    count = num_processes or _usual_count(node)
    from heterps_runtime.profiling.host_profiler import measure_host_times
    from heterps_runtime.profiling.link_profiler import measure_host

    with shown_progress(f"links of {count} processes") as show:
        measured = measure_host(count, progress=show)
    link, reverse_link = measured.node_links()
    together = measured.slowdown_together()
    with shown_progress("host times") as show:
        steps_together = measured.optimizer_slowdown_together()
        host = measure_host_times(link, together, steps_together, progress=show)
    if document is None or node is None:
        result = new_cluster(count, link, host, reverse_link)
        node = result.nodes[0]
    else:
        result = with_measured(document, node, link, host, reverse_link)
    collectives = [found.collective for found in measured.collectives]
    result = with_collectives(result, node.name, collectives)
    try:
        if output is not None:
            result.to_file(output)
            remarks.print(f"cluster written to {output}")
    finally:
        if as_json:
            _print_json(measured, result)
        else:
            _print(measured, host, count)


def _print_json(measured: MeasuredHost, result: Cluster) -> None:
    links = [
        {
            "source": entry.source,
            "destination": entry.destination,
            **entry.link.model_dump(),
            "residual": entry.residual,
            "spread": entry.spread,
            "seconds": {str(size): entry.seconds[size] for size in sorted(entry.seconds)},
        }
        for entry in measured.links
    ]
    print_json(
        {
            "cluster": result.model_dump(mode="json"),
            "links": links,
            "collectives": [
                {**found.collective.model_dump(), "residuals": found.residuals}
                for found in measured.collectives
            ],
            "together": {name: asdict(found) for name, found in measured.together.items()},
            "steps_together": {
                name: asdict(found) for name, found in measured.steps_together.items()
            },
        }
    )


def _print(measured: MeasuredHost, host: HostTimes, count: int) -> None:
    link, reverse_link = measured.node_links()
    answer.print(_table(measured))
    answer.print(_collectives_table(measured))
    if reverse_link is None:
        answer.print(f"link        {_link_text(link)} between any two processes")
    else:
        answer.print(f"link        {_link_text(link)} to a later process")
        answer.print(f"            {_link_text(reverse_link)} to an earlier one")
    answer.print(
        f"host        {seconds_text(host.action_s)} for each action, "
        f"{seconds_text(host.send_s)} for each message sent, "
        f"{seconds_text(host.receive_s)} for each received, "
        f"{seconds_text(host.step_s)} for each step"
    )
    answer.print(
        f"together    {measured.slowdown_together()[-1]:.3f} times slower while all {count} compute"
    )
    answer.print(f"            {_factors_text(measured.together)}")
    answer.print(f"            optimizer steps: {_factors_text(measured.steps_together)}")


def _factors_text(together: Mapping[str, Together] | Mapping[Optimizer, Together]) -> str:
    return ", ".join(
        f"{name} {found.factors[-1]:.3f} (spread {found.spreads[-1]:.3f})"
        for name, found in together.items()
    )


def _link_text(link: Link) -> str:
    return f"{seconds_text(link.latency_s)} + bytes / {link.bandwidth_bytes_per_s / 1e9:.3g} GB/s"


def _usual_count(node: Node | None) -> int:
    """As many as the node has devices, else as the machine has usable cores; 2 to 4."""
    groups = () if node is None else node.devices
    wanted = sum(group.count for group in groups) or usable_cores()
    return min(max(wanted, 2), MOST_PROCESSES)


def node_of_this_machine(cluster: Cluster, reference: str) -> Node:
    """The node that is measured: the only one, or the one named like this machine.

    Raises:
        HeterpsError: Several nodes, and none has the name of this machine.
    """
    if len(cluster.nodes) == 1:
        return cluster.nodes[0]
    name = platform.node()
    for node in cluster.nodes:
        if node.name == name:
            return node
    names = ", ".join(node.name for node in cluster.nodes)
    raise HeterpsError(
        f"{reference}: --links measures this machine, {name!r}, and no node has that name; "
        f"nodes: {names}"
    )


def with_measured(
    cluster: Cluster, node: Node, link: Link, host: HostTimes, reverse_link: Link | None = None
) -> Cluster:
    """The cluster with one node's measured links and host times; all else as it was."""
    filled = node.changed(link=link, reverse_link=reverse_link, host=host)
    nodes = tuple(filled if entry.name == node.name else entry for entry in cluster.nodes)
    return cluster.changed(nodes=nodes)


def with_collectives(cluster: Cluster, node: str, measured: Sequence[Collective]) -> Cluster:
    """The cluster with what was measured of a node's collectives in place of what it had."""
    nodes = tuple(
        entry.changed(collectives=tuple(measured)) if entry.name == node else entry
        for entry in cluster.nodes
    )
    return cluster.changed(nodes=nodes)


def new_cluster(
    num_processes: int, link: Link, host: HostTimes, reverse_link: Link | None = None
) -> Cluster:
    """This machine as one node: a CPU device for each process, with its share of the memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // num_processes
    group = DeviceGroup(
        name="process", type=HOST_TYPE, count=num_processes, memory_bytes=memory_bytes
    )
    date = datetime.date.today().isoformat()
    return Cluster(
        name="this-machine",
        description=f"Processes of this machine, links and host times measured {date}",
        nodes=(
            Node(
                name="this-machine",
                devices=(group,),
                link=link,
                reverse_link=reverse_link,
                host=host,
            ),
        ),
    )


def _table(measured: MeasuredHost) -> Table:
    table = Table(title="links between processes: median one-way times, and their fit")
    for name in ("from", "to", "latency", "bandwidth", "mean error of the fit"):
        table.add_column(name, justify="right")
    for entry in sorted(measured.links, key=lambda link: (link.source, link.destination)):
        table.add_row(
            f"process-{entry.source}",
            f"process-{entry.destination}",
            seconds_text(entry.link.latency_s),
            f"{entry.link.bandwidth_bytes_per_s / 1e9:.3g} GB/s",
            f"{100 * entry.residual:.1f} %",
        )
    return table


def _collectives_table(measured: MeasuredHost) -> Table:
    table = Table(title="collectives: fit to medians of even and uneven parts")
    names = ("collective", "processes", "latency", "bandwidth", "mean error, even", "uneven")
    for name in names:
        table.add_column(name, justify="left" if name == "collective" else "right")
    for entry in measured.collectives:
        found, errors = entry.collective, entry.residuals
        table.add_row(
            found.kind,
            str(found.devices),
            seconds_text(found.latency_s),
            f"{found.bandwidth_bytes_per_s / 1e9:.3g} GB/s",
            f"{100 * errors['even']:.1f} %",
            f"{100 * errors['uneven']:.1f} %" if "uneven" in errors else "",
        )
    return table
