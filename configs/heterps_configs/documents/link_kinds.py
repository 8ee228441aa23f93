"""Kinds of links, such as `nvlink4`: what a message takes on them, and the shipped table."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType

from pydantic import Field

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import (
    MOST_BYTES,
    BytesPerSecond,
    Latency,
    Name,
    Whole,
)
from heterps_configs.documents.yaml_files import parse_yaml, read_text


class MeasuredBandwidth(Document):
    """What somebody measured with messages of one size: their bytes over their seconds."""

    message_bytes: Whole = Field(gt=0, le=MOST_BYTES)
    bandwidth_bytes_per_s: BytesPerSecond


class LinkKind(Document):
    """One kind: from one device to another a message of n bytes takes `latency_s + n / bandwidth`.

    Attributes:
        latency_s: Of a fit: what reproduces small messages, a slow start of the large ones too.
        bandwidth_bytes_per_s: One way, between one pair of devices.
        nominal_bandwidth_bytes_per_s: One way, as the standard or the data sheet has it.
        measured: What the two numbers are the fit to; empty where they follow from a rule.
        source: Who measured that, or the rule.
    """

    name: Name
    description: str
    latency_s: Latency
    bandwidth_bytes_per_s: BytesPerSecond
    nominal_bandwidth_bytes_per_s: BytesPerSecond | None = None
    measured: tuple[MeasuredBandwidth, ...] = ()
    source: str

    def bandwidth_at(self, message_bytes: float) -> float:
        """Bytes per second of a message, its latency included."""
        return message_bytes / (self.latency_s + message_bytes / self.bandwidth_bytes_per_s)

    def fit_error(self) -> float | None:
        """By which share its bandwidth is off at worst, over `measured`; None without those."""
        errors = [
            abs(self.bandwidth_at(each.message_bytes) / each.bandwidth_bytes_per_s - 1)
            for each in self.measured
        ]
        return max(errors, default=None)


class LinkKinds(Document):
    """A file of kinds of links."""

    description: str = ""
    link_kinds: tuple[LinkKind, ...] = Field(min_length=1)


@lru_cache(maxsize=1)
def shipped_link_kinds() -> Mapping[str, LinkKind]:
    """All shipped kinds of links by name (read once, and only where one is named)."""
    file = files("heterps_configs") / "links" / "links.yaml"
    kinds = LinkKinds.from_mapping(parse_yaml(read_text(file, file.name), file.name), file.name)
    return MappingProxyType({kind.name: kind for kind in kinds.link_kinds})


def unknown_link_kind(name: str, *others: str) -> str:
    """What is said of a kind that nobody knows; `others` may stand there too."""
    return f"unknown kind of link {name!r}; known: {', '.join([*others, *shipped_link_kinds()])}"
