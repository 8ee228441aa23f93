"""Seconds of collectives from measured bandwidths, and the instructions that are collectives.

Bytes that a rate counts: of an all-reduce, those of the tensor; of a padded all-gather or
reduce-scatter, n times the largest part, to which all others are filled up; of a grouped one (a
broadcast or a reduce for each device), those of the tensor; of an all-to-all, n times a device's
part. So the grouped one wins where n times the largest share is above the ratio of the two rates,
and that is decided for each collective from what was measured, never once for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from heterps_agents.systems.hap.chain import Instruction, State, Term
from heterps_configs.documents.cluster import CollectiveKind, Link

GATHERS: tuple[CollectiveKind, ...] = ("all-gather", "grouped all-gather")
SCATTERS: tuple[CollectiveKind, ...] = ("reduce-scatter", "grouped reduce-scatter")


class Rates(NamedTuple):
    """What collectives over n devices take.

    Attributes:
        devices: n.
        links: Latency and bandwidth of each kind; `all-reduce` is always there.
    """

    devices: int
    links: Mapping[CollectiveKind, Link]

    def term(self, kind: CollectiveKind, num_bytes: float) -> Term:
        """Seconds of a collective on a tensor of so many bytes, by the devices' shares."""
        n, link = self.devices, self.links[kind]
        whole_s = num_bytes / link.bandwidth_bytes_per_s
        if kind in ("all-gather", "reduce-scatter", "all-to-all"):
            return Term((link.latency_s,) * n, (n * whole_s,) * n)
        return Term((link.latency_s + whole_s,) * n, (0.0,) * n)

    def ways_of(self, kinds: tuple[CollectiveKind, ...]) -> list[CollectiveKind]:
        """Those of some kinds whose links are known."""
        return [kind for kind in kinds if kind in self.links]


def uniform_rates(devices: int, link: Link) -> Rates:
    """Where no collective was measured: rings over n devices with one link between any two.

    A ring moves (n - 1) / n of what a rate counts, in n - 1 messages, an all-reduce twice that; one
    broadcast after the other moves all of it.
    """
    n, per_s = devices, link.bandwidth_bytes_per_s
    if n == 1:
        return Rates(1, {"all-reduce": link})
    ring = Link.model_construct(
        latency_s=(n - 1) * link.latency_s, bandwidth_bytes_per_s=per_s * n / (n - 1)
    )
    twice = Link.model_construct(
        latency_s=2 * ring.latency_s, bandwidth_bytes_per_s=ring.bandwidth_bytes_per_s / 2
    )
    one_by_one = Link.model_construct(latency_s=n * link.latency_s, bandwidth_bytes_per_s=per_s)
    links: dict[CollectiveKind, Link] = {
        "all-reduce": twice,
        "all-gather": ring,
        "grouped all-gather": one_by_one,
        "reduce-scatter": ring,
        "grouped reduce-scatter": one_by_one,
        "all-to-all": ring,
    }
    return Rates(n, links)


def conversions(
    layer: int, num_bytes: float, rates: Rates, segment: int, is_border: bool = False
) -> tuple[Instruction, ...]:
    """The collectives that may stand behind a layer; taking a part of what is whole is free.

    What is gathered going forward is scattered going back, and so on, with the same bytes.

    Args:
        layer: Behind which.
        num_bytes: Of its output.
        rates: Of the devices.
        segment: Of the layer.
        is_border: The next layer is of another segment: parts change their size on the way.
    """
    found: list[Instruction] = []

    def add(name: str, before: State, after: State, *terms: Term) -> None:
        found.append(Instruction(name, layer, before, after, segment, terms))

    add("take a part", "whole", "batch")
    add("take a part", "whole", "features")
    both = rates.term("all-reduce", num_bytes)
    add("all-reduce", "partial", "whole", both, both)
    for gather, scatter in _pairs(rates):
        there, back = rates.term(gather, num_bytes), rates.term(scatter, num_bytes)
        add(gather, "batch", "whole", there, back)
        add(gather, "features", "whole", there, back)
        if not is_border:
            add(scatter, "partial", "batch", back, there)
            add(scatter, "partial", "features", back, there)
    if "all-to-all" in rates.links:
        term = rates.term("all-to-all", num_bytes)
        add("all-to-all", "batch", "features", term, term)
        add("all-to-all", "features", "batch", term, term)
        if is_border:
            add("all-to-all", "batch", "batch", term, term)
            add("all-to-all", "features", "features", term, term)
    return tuple(found)


def _pairs(rates: Rates) -> Iterator[tuple[CollectiveKind, CollectiveKind]]:
    for gather in rates.ways_of(GATHERS):
        for scatter in rates.ways_of(SCATTERS):
            yield gather, scatter
