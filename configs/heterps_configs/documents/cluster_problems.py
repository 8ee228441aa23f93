"""What can be wrong between the fields of a cluster; works on plain data with broken fields too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.link_kinds import shipped_link_kinds, unknown_link_kind
from heterps_configs.errors import UnknownNameError
from heterps_configs.problems import repeated

# Far above any node; a slip such as a byte count must not build a list of that many names.
MAX_GROUP_SIZE = 4096
MAX_DEVICES = 4096


def group_device_names(name: str, count: int) -> list[str]:
    """Names of the `count` devices of a group: `name` alone, or `name-0`, `name-1`, ..."""
    return [name] if count == 1 else [f"{name}-{index}" for index in range(count)]


def cluster_problems(data: Mapping[str, Any]) -> Iterator[str]:
    """One line for each name that stands twice or that nothing has, and for a missing link.

    Args:
        data: A cluster as plain data. What is malformed is passed over: the schema reports it.
    """
    nodes = _entries(data, "nodes")
    own_types = _names(data, "device_types")
    node_names = _names(data, "nodes")
    groups = [
        (f"nodes.{i}.devices.{j}", group)
        for i, node in nodes
        for j, group in _entries(node, "devices")
    ]
    yield from repeated("device_types", "name", own_types)
    yield from repeated("nodes", "name", node_names)
    for index, entry in _entries(data, "device_types"):
        yield from _unknown_links(f"device_types.{index}.links", entry.get("links"))
    num_devices = sum(_size(group) for _, group in groups)
    if num_devices > MAX_DEVICES:
        yield f"nodes: {num_devices} devices; a cluster has at most {MAX_DEVICES}"
        return
    yield from _repeated_devices(groups)
    yield from _unknown_types(groups, own_types)
    if len(nodes) > 1 and data.get("inter_node_link") is None:
        yield "inter_node_link: is needed, because there are several nodes"
    for index, node in nodes:
        if node.get("link") is None and sum(_size(g) for _, g in _entries(node, "devices")) > 1:
            yield f"nodes.{index}.link: is needed, because the node has several devices"
    for index, override in _entries(data, "link_overrides"):
        yield from _override_problems(f"link_overrides.{index}.between", override, node_names)


def _unknown_links(path: str, kinds: Any) -> Iterator[str]:
    for index, kind in enumerate(kinds if isinstance(kinds, list | tuple) else ()):
        if isinstance(kind, str) and kind not in shipped_link_kinds():
            yield f"{path}.{index}: {unknown_link_kind(kind)}"


def _repeated_devices(groups: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    owner: dict[str, str] = {}
    for path, group in groups:
        name, count = group.get("name"), _size(group)
        if not isinstance(name, str) or count == 0:
            continue
        taken = [device for device in group_device_names(name, count) if device in owner]
        if taken:
            yield f"{path}.name: the device name {taken[0]!r} is taken by {owner[taken[0]]}"
        owner.update(dict.fromkeys(group_device_names(name, count), path))


def _size(group: Mapping[str, Any]) -> int:
    """How many devices a group has; 0 where it does not say properly."""
    count = group.get("count", 1)
    is_proper = isinstance(count, int | float) and 1 <= count <= MAX_GROUP_SIZE
    return int(count) if is_proper and not isinstance(count, bool) else 0


def _unknown_types(
    groups: Iterable[tuple[str, Mapping[str, Any]]], own_types: list[str | None]
) -> Iterator[str]:
    for path, group in groups:
        name = group.get("type")
        if isinstance(name, str) and name not in own_types:
            try:
                device_type_named(name, also_known=filter(None, own_types))
            except UnknownNameError as error:
                yield f"{path}.type: {error}"


def _override_problems(
    path: str, override: Mapping[str, Any], node_names: list[str | None]
) -> Iterator[str]:
    between = override.get("between")
    entries = between if isinstance(between, list | tuple) else ()
    named = [name for name in entries if isinstance(name, str)]
    for name in dict.fromkeys(named):
        if name not in node_names:
            yield f"{path}: {UnknownNameError('node', name, filter(None, node_names))}"
    if len(named) == 2 and named[0] == named[1]:
        yield f"{path}: must name two different nodes"


def _names(data: Mapping[str, Any], field: str) -> list[str | None]:
    """The name of each entry of a list, None where it has no proper one."""
    value = data.get(field)
    entries = value if isinstance(value, list | tuple) else ()
    names = (entry.get("name") if isinstance(entry, Mapping) else None for entry in entries)
    return [name if isinstance(name, str) else None for name in names]


def _entries(data: Mapping[str, Any], field: str) -> list[tuple[int, Mapping[str, Any]]]:
    """The well-formed entries of a list, with their indices."""
    value = data.get(field)
    if not isinstance(value, list | tuple):
        return []
    return [(index, entry) for index, entry in enumerate(value) if isinstance(entry, Mapping)]
