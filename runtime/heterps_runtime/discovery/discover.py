"""The whole way: ask hosts, read their answers, write a cluster file that the loader takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import shipped_device_types
from heterps_configs.documents.yaml_files import parse_yaml
from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.asking import TIME_LIMIT_S, Answer, ask
from heterps_runtime.discovery.assumptions import remarks_on
from heterps_runtime.discovery.devices import (
    DeviceNames,
    KnownCards,
    gpu_groups,
    known_cards,
    process_group,
    processors_text,
    socket_group,
)
from heterps_runtime.discovery.drafts import ClusterDraft, NodeDraft
from heterps_runtime.discovery.host import Host, host_of
from heterps_runtime.discovery.host_names import THIS_MACHINE, check_host_names
from heterps_runtime.discovery.node_links import link_within, links_between
from heterps_runtime.discovery.written import cluster_text

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Discovery:
    """What was found.

    Attributes:
        text: The cluster file, with comments.
        cluster: The same, loaded.
        hosts: In the order of the nodes.
        draft: With where numbers come from.
    """

    text: str
    cluster: Cluster
    hosts: tuple[Host, ...]
    draft: ClusterDraft


def discover(
    hosts: Sequence[str] = (THIS_MACHINE,),
    name: str | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> Discovery:
    """Asks hosts what they have.

    Args:
        hosts: `localhost` is this machine; all others are asked over ssh.
        name: Of the cluster; by default that of the host, or `discovered`.
        time_limit_s: For each host.

    Raises:
        HeterpsError: A host does not answer, or with what cannot be read.
    """
    check_host_names(hosts)
    _check_cluster_name(name)
    return described(ask(hosts, time_limit_s), name)


def described(answers: Sequence[Answer], name: str | None = None) -> Discovery:
    """What hosts answered, as a cluster.

    Args:
        answers: What the script printed on each.
        name: Of the cluster.

    Raises:
        HeterpsError: An answer cannot be read.
    """
    _check_cluster_name(name)
    hosts = _with_own_names([host_of(answer) for answer in answers])
    draft = _draft(hosts, name)
    text = cluster_text(draft)
    source = "what was discovered"
    cluster = Cluster.from_mapping(parse_yaml(text, source), source)
    return Discovery(text, cluster, hosts, draft)


def _check_cluster_name(name: str | None) -> None:
    """Before hosts are asked: a name that no document takes."""
    if name is not None and (len(name) > _LONGEST_NAME or not name.isprintable()):
        raise HeterpsError(
            f"name {name[:_LONGEST_NAME]!a}: expected one line of at most {_LONGEST_NAME} "
            "characters"
        )


def _with_own_names(hosts: Sequence[Host]) -> tuple[Host, ...]:
    """As they call themselves; as the user does, where two call themselves the same."""
    if len({host.name for host in hosts}) == len(hosts):
        return tuple(hosts)
    return tuple(replace(host, name=host.asked) for host in hosts)


def _draft(hosts: tuple[Host, ...], name: str | None) -> ClusterDraft:
    cards = known_cards(hosts, shipped_device_types())
    names = DeviceNames()
    nodes, remarks = list[NodeDraft](), list[str]()
    for host in hosts:
        link, about = link_within(host)
        prefix = f"{host.name}-" if len(hosts) > 1 else ""
        groups = tuple(
            gpu_groups(host, cards, names, prefix)
            if host.gpus
            else [process_group(host, names, prefix)]
        )
        spare = socket_group(host, names, prefix) if host.gpus else None
        nodes.append(NodeDraft(host.name, groups, link, tuple(_notes(host)), spare))
        remarks += about
    between, overrides = links_between(hosts)
    all_between = [link for link in (between, *overrides.values()) if link is not None]
    return ClusterDraft(
        name=name or (hosts[0].name if len(hosts) == 1 else "discovered"),
        description=_description(hosts, cards),
        types=tuple(cards.types.values()),
        nodes=tuple(nodes),
        between=between,
        overrides=overrides,
        remarks=(*remarks, *remarks_on(hosts, cards, nodes, all_between)),
    )


def _description(hosts: Sequence[Host], cards: KnownCards) -> str:
    counts: dict[str, int] = {}
    for host in hosts:
        for gpu in host.gpus:
            type_name = cards.type_name(gpu)
            counts[type_name] = counts.get(type_name, 0) + 1
        if not host.gpus:
            what = "processes of one thread"
            counts[what] = counts.get(what, 0) + host.processors.num_processes
    parts = [f"{count} {what}" for what, count in counts.items()]
    where = "one host" if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"{' and '.join(parts)} on {where}, as discovered"


def _notes(host: Host) -> Iterator[str]:
    yield processors_text(host.processors)
    for entry in host.interfaces:
        speed = "no speed reported" if entry.gbit_per_s is None else f"{entry.gbit_per_s:g} Gbit/s"
        yield f"{entry.name}: {entry.kind}, {speed}"
    if not host.interfaces:
        yield "no network interface with a device is up"
