"""The text of a cluster file: entries of one line, and above each where its numbers come from."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping

from heterps_configs.documents.device import DeviceType
from heterps_runtime.discovery.card_types import USABLE_SHARE
from heterps_runtime.discovery.drafts import ClusterDraft, GroupDraft, NodeDraft, TypeDraft
from heterps_runtime.discovery.link_kinds import NotedLink
from heterps_runtime.discovery.sections import plain

# What YAML takes for something other than a text begins in another way, or is one of these words.
_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "none"}
_LONGEST_COMMENT, _WIDTH = 2000, 100


def cluster_text(draft: ClusterDraft) -> str:
    """The file.

    Args:
        draft: What it says.
    """
    return "\n".join(_lines(draft)) + "\n"


def _lines(draft: ClusterDraft) -> Iterator[str]:
    yield "# Written by `heterps discover`. Beside each number stands where it comes from; what is"
    yield "# assumed says so. Measured numbers replace them: `heterps profile`."
    for remark in draft.remarks:
        yield from _comment_lines(f"Note: {remark}", "")
    yield f"name: {_text(draft.name)}"
    yield f"description: {_text(draft.description)}"
    if draft.types:
        yield "device_types:"
    for entry in draft.types:
        yield from _type_lines(entry)
    yield "nodes:"
    for node in draft.nodes:
        yield from _node_lines(node)
    if draft.between is not None:
        yield from _comment_lines(draft.between.note, "")
        yield f"inter_node_link: {_link(draft.between)}"
    if draft.overrides:
        yield "link_overrides:"
    for (first, second), link in draft.overrides.items():
        names = f"[{_text(first)}, {_text(second)}]"
        yield from _comment_lines(link.note, "  ")
        yield f"  - {{between: {names}, link: {_link(link)}}}"


def _type_lines(entry: TypeDraft) -> Iterator[str]:
    like: DeviceType = entry.like
    assumed = f"# ASSUMED: that of {like.name}; fill in from the data sheet"
    yield from _comment_lines(
        f"{entry.card} is none of the catalogue's types: {entry.why}. What is marked ASSUMED is "
        f"that of {like.name}, the nearest type.",
        "  ",
    )
    yield f"  - name: {_text(entry.name)}"
    if entry.memory_bytes is None:
        yield f"    memory_bytes: {like.memory_bytes}  {assumed}"
    else:
        yield f"    memory_bytes: {entry.memory_bytes}  # {USABLE_SHARE:g} of what the card reports"
    yield "    peak_flops_per_s:"
    for name, peak in like.peak_flops_per_s.items():
        yield f"      {name}: {_number(peak)}  {assumed}"
    bandwidth = _number(like.memory_bandwidth_bytes_per_s)
    yield f"    memory_bandwidth_bytes_per_s: {bandwidth}  {assumed}"
    speed = entry.host_bandwidth_bytes_per_s
    if speed is not None:
        yield f"    host_bandwidth_bytes_per_s: {_number(speed)}  # 0.8 of its PCIe lanes"
    yield f"    price_usd_per_hour: {_number(like.price_usd_per_hour)}  {assumed}"
    source = f"assumed as {like.name}, the nearest known type: {entry.why}"
    yield f"    specification_source: {_text(source)}"


def _node_lines(node: NodeDraft) -> Iterator[str]:
    for note in node.notes:
        yield from _comment_lines(note, "  ")
    yield f"  - name: {_text(node.name)}"
    yield "    devices:"
    for group in node.groups:
        yield from _comment_lines(group.note, "      ")
        yield f"      - {_group(group)}"
    if node.spare is not None:
        yield from _comment_lines(f"{node.spare.note}, if layers shall run there, too:", "      ")
        yield f"      # - {_group(node.spare)}"
    if node.link is not None:
        yield from _comment_lines(node.link.note, "    ")
        yield f"    link: {_link(node.link)}"


def _group(group: GroupDraft) -> str:
    fields = {"name": _text(group.name), "type": _text(group.type)}
    if group.count > 1:
        fields["count"] = str(group.count)
    if group.memory_bytes is not None:
        fields["memory_bytes"] = str(group.memory_bytes)
    return _mapping(fields)


def _link(link: NotedLink) -> str:
    return _mapping(
        {
            "latency_s": f"{link.latency_s:.2e}".replace("e-0", "e-"),
            "bandwidth_bytes_per_s": _number(link.bandwidth_bytes_per_s),
        }
    )


def _mapping(fields: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}"


def _number(value: float) -> str:
    """As people write it: 25.6e+9; the digits that it has, up to nine of them."""
    if value == 0:
        return "0"
    exponent = 12 if value >= 1e12 else 9 if value >= 1e9 else 0
    mantissa = f"{value / 10**exponent:.9g}"
    if "e" in mantissa:
        return f"{value:.9e}"
    whole = mantissa if "." in mantissa else f"{mantissa}.0"
    return f"{whole}e+{exponent}" if exponent else whole


def _text(text: str) -> str:
    """A text as YAML: bare where nothing in it means anything to YAML, else in quotes."""
    is_bare = text[:1].isalpha() and all(
        letter.isascii() and (letter.isalnum() or letter in "._-") for letter in text
    )
    return (
        text if is_bare and text.casefold() not in _WORDS else json.dumps(text, ensure_ascii=False)
    )


def _comment(text: str) -> str:
    return plain(text, _LONGEST_COMMENT)


def _comment_lines(text: str, indent: str) -> Iterator[str]:
    """A comment above an entry, in lines of a readable length."""
    start = f"{indent}# "
    yield from textwrap.wrap(
        _comment(text), _WIDTH, initial_indent=start, subsequent_indent=f"{start}  "
    )
