"""What kinds of links carry: one table, and where its numbers come from.

Latencies are the order of one message of NCCL, of TCP or of gloo, as in the shipped clusters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["nvlink", "xgmi", "pcie", "infiniband", "ethernet", "processes"]


@dataclass(frozen=True)
class LinkKind:
    """One row.

    Attributes:
        bandwidth_bytes_per_s: Of one unit, each way.
        unit: What is counted.
        source: What the file says of the number.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    unit: str
    source: str


KINDS: dict[Kind, LinkKind] = {
    "nvlink": LinkKind(1e-5, 25e9, "link", "25 GB/s a link each way (data sheets)"),
    "xgmi": LinkKind(
        1e-5, 50e9, "link", "one Infinity Fabric link of 50 GB/s each way, as nothing says how many"
    ),
    "pcie": LinkKind(2e-5, 0.8 * 1e9, "lane of PCIe 3", "0.8 of the lanes' rate, each way"),
    "infiniband": LinkKind(1.5e-5, 0.125e9, "Gbit/s", "the line rate of one port"),
    "ethernet": LinkKind(5e-5, 0.125e9, "Gbit/s", "the line rate"),
    "processes": LinkKind(
        2e-4, 1e9, "pair", "about what gloo takes between processes over the loopback"
    ),
}
# Where nobody says more.
ASSUMED_GBIT_PER_S = 10.0
ASSUMED_PCIE_GENERATION, ASSUMED_PCIE_LANES = 3, 16
# Of one NVLink each way, in GB/s: what tools report, which is the rate on the wire; the payload of
# data sheets; and the name of the kind.
_NVLINKS = (
    (53.125, 50.0, "nvlink5"),
    (26.562, 25.0, "nvlink4"),
    (25.781, 25.0, "nvlink2"),
    (25.0, 25.0, "nvlink3"),
    (19.375, 20.0, "nvlink1"),
    (14.062, 14.0625, "nvlink3-bridge"),
)
_NEAR = 0.02
_INFINIBAND = {56: "fdr", 100: "edr", 200: "hdr", 400: "ndr", 800: "xdr"}
_LAST_GENERATION, _MOST_LANES = 7, 32


@dataclass(frozen=True)
class NotedLink:
    """A link, and how its numbers came about.

    Attributes:
        is_assumed: Nobody reported what it is.
    """

    latency_s: float
    bandwidth_bytes_per_s: float
    note: str
    is_assumed: bool = False


def nvlink(num_links: int, reported_gb_per_s: float | None) -> NotedLink:
    """Some NVLinks between two cards, or to the switch.

    Args:
        num_links: As `NV18` says.
        reported_gb_per_s: Of one of them, by `nvidia-smi nvlink --status`; None: not said.
    """
    row = KINDS["nvlink"]
    if reported_gb_per_s is None:
        note = f"nvlink, NV{num_links}: {row.source}, of which nvidia-smi said nothing"
        return NotedLink(row.latency_s, num_links * row.bandwidth_bytes_per_s, note, True)
    reported, payload, kind = min(_NVLINKS, key=lambda known: abs(known[0] - reported_gb_per_s))
    if abs(reported_gb_per_s / reported - 1) > _NEAR:
        payload, kind = reported_gb_per_s, "nvlink"
    note = (
        f"{kind}, NV{num_links} by nvidia-smi topo: {payload:g} GB/s a link each way (nvidia-smi "
        f"nvlink reports {reported_gb_per_s:g})"
    )
    return NotedLink(row.latency_s, num_links * payload * 1e9, note)


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """What copies reach one way: each generation doubles a lane's rate."""
    rate = KINDS["pcie"].bandwidth_bytes_per_s
    return rate * min(lanes, _MOST_LANES) * 2.0 ** (min(generation, _LAST_GENERATION) - 3)


def pcie(generation: int | None, lanes: int | None, way: str) -> NotedLink:
    """A way through PCIe.

    Args:
        generation: Of the slower card; None: not said.
        lanes: The same.
        way: As `nvidia-smi topo` calls it; empty: not said.
    """
    row = KINDS["pcie"]
    is_assumed = generation is None or lanes is None
    generation = generation or ASSUMED_PCIE_GENERATION
    lanes = lanes or ASSUMED_PCIE_LANES
    by = "assumed" if is_assumed else "by nvidia-smi"
    note = f"pcie{generation}, x{lanes} ({by}{', ' + way if way else ''}): {row.source}"
    return NotedLink(row.latency_s, pcie_bytes_per_s(generation, lanes), note, is_assumed)


def xgmi() -> NotedLink:
    """Infinity Fabric between two cards of AMD."""
    row = KINDS["xgmi"]
    return NotedLink(
        row.latency_s, row.bandwidth_bytes_per_s, f"infinity-fabric: {row.source}", True
    )


def processes() -> NotedLink:
    """Messages between two processes of a host."""
    row = KINDS["processes"]
    note = f"{row.source} (assumed)"
    return NotedLink(row.latency_s, row.bandwidth_bytes_per_s, note, True)


def network(kind: Literal["infiniband", "ethernet"], gbit_per_s: float | None) -> NotedLink:
    """From host to host.

    Args:
        kind: Of the interfaces at both ends.
        gbit_per_s: Of the slower one; None: not said.
    """
    row = KINDS[kind]
    rate = gbit_per_s or ASSUMED_GBIT_PER_S
    name = f"{kind}-{rate:g}"
    if kind == "infiniband" and rate in _INFINIBAND:
        name = f"{kind}-{_INFINIBAND[int(rate)]}"
    how = "assumed: no speed is reported" if gbit_per_s is None else row.source
    return NotedLink(
        row.latency_s,
        rate * row.bandwidth_bytes_per_s,
        f"{name}, {rate:g} Gbit/s ({how})",
        gbit_per_s is None,
    )
