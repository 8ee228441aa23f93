"""What a user should know of a discovered cluster: what was assumed, and what to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from heterps_runtime.discovery.devices import KnownCards
from heterps_runtime.discovery.drafts import NodeDraft
from heterps_runtime.discovery.host import Host
from heterps_runtime.discovery.link_kinds import NotedLink


def remarks_on(
    hosts: Sequence[Host],
    cards: KnownCards,
    nodes: Sequence[NodeDraft],
    between: Sequence[NotedLink],
) -> Iterator[str]:
    """One sentence each.

    Args:
        hosts: In the order of the file.
        cards: What their GPUs are.
        nodes: Of the file.
        between: Links between hosts.
    """
    for host in hosts:
        yield from (f"{host.name}: {remark}" for remark in host.remarks)
    yield from _about_devices(hosts)
    for entry in cards.types.values():
        yield (
            f"{entry.card} is none of the catalogue's types ({entry.why}): its peaks, bandwidth "
            f"and price are those of {entry.like.name}, the nearest; fill in type {entry.name}"
        )
    for host, node in zip(hosts, nodes, strict=True):
        if host.gpus and node.link is not None and node.link.is_assumed:
            yield f"{node.name}: its link is a guess: {node.link.note}"
    for note in dict.fromkeys(link.note for link in between if link.is_assumed):
        yield f"a link between hosts is a guess: {note}"
    yield from _about_machines(hosts)


def _about_devices(hosts: Sequence[Host]) -> Iterator[str]:
    without = [host for host in hosts if not host.gpus]
    if without:
        names = ", ".join(host.name for host in without)
        yield (
            f"no GPU on {names}: the file has processes of one thread instead (type host-cpu, "
            "whose speed is a round guess until `heterps profile MODEL --device cpu` has measured)"
        )
    if len({host.processors.model for host in without}) > 1:
        yield "processors without a GPU differ, and count as equally fast until they are measured"
    for host in hosts:
        if len({gpu.name for gpu in host.gpus}) > 1:
            yield (
                f"{host.name}: its GPUs differ, and stand here in the order of nvidia-smi: runs "
                "need CUDA_DEVICE_ORDER=PCI_BUS_ID there"
            )


def _about_machines(hosts: Sequence[Host]) -> Iterator[str]:
    machines = defaultdict(list)
    for host in hosts:
        machines[host.boot].append(host.asked)
    for boot, names in machines.items():
        if boot and len(names) > 1:
            hosts_text = ", ".join(names)
            yield f"{hosts_text} are one machine, or containers of one: it is counted each time"
