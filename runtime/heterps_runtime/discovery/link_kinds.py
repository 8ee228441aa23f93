"""What links carry, by what a host reports of them: nominal rates times what shipped kinds reach.

The shipped kinds (`heterps list links`) say which share of the nominal rate messages reach, and
their latency; by measurements that others have published, or a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from heterps_configs.documents.link_kinds import shipped_link_kinds

# About what gloo takes between processes over the loopback.
PROCESS_LATENCY_S, PROCESS_BYTES_PER_S = 2e-4, 1e9
# Where nobody says more.
ASSUMED_GBIT_PER_S = 10.0
ASSUMED_PCIE_GENERATION, ASSUMED_PCIE_LANES = 3, 16
NVLINK_BYTES_PER_S = 25e9
XGMI_KIND = "infinity-fabric3"
PCIE3_LANE_BYTES_PER_S = 15.75e9 / 16
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
# The shipped kind whose share others of its family have, up to so many Gbit/s.
_LIKE = {
    "ethernet": ((1, "ethernet-1"), (40, "ethernet-25"), (1e9, "ethernet-200")),
    "infiniband": ((100, "infiniband-edr"), (200, "infiniband-hdr"), (1e9, "infiniband-ndr")),
}
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


def usable(kind: str, nominal_bytes_per_s: float) -> tuple[float, float, str]:
    """Latency and bandwidth of a link like a shipped kind, and a word on where they come from.

    Args:
        kind: Its latency and its share of the nominal rate count.
        nominal_bytes_per_s: Of the link, one way.
    """
    shipped = shipped_link_kinds()[kind]
    assert shipped.nominal_bandwidth_bytes_per_s is not None
    share = shipped.bandwidth_bytes_per_s / shipped.nominal_bandwidth_bytes_per_s
    rate = float(f"{share * nominal_bytes_per_s:.3g}")
    return shipped.latency_s, rate, f"{share:.2f} of it, as {kind} reaches"


def nvlink(num_links: int, reported_gb_per_s: float | None) -> NotedLink:
    """Some NVLinks between two cards, or to the switch.

    Args:
        num_links: As `NV18` says.
        reported_gb_per_s: Of one of them, by `nvidia-smi nvlink --status`; None: not said.
    """
    if reported_gb_per_s is None:
        latency_s, rate, share = usable("nvlink3", num_links * NVLINK_BYTES_PER_S)
        each = f"{NVLINK_BYTES_PER_S / 1e9:g} GB/s a link each way"
        note = f"nvlink, NV{num_links}: {each} (assumed: nvidia-smi said nothing); {share}"
        return NotedLink(latency_s, rate, note, True)
    reported, payload, kind = min(_NVLINKS, key=lambda known: abs(known[0] - reported_gb_per_s))
    if abs(reported_gb_per_s / reported - 1) > _NEAR:
        payload, kind = reported_gb_per_s, "nvlink"
    # (The nominal rate of the pair that measured nvlink2 is not known.)
    like = kind if kind in shipped_link_kinds() and kind != "nvlink2" else "nvlink2-bridge"
    latency_s, rate, share = usable(like, num_links * payload * 1e9)
    note = (
        f"{kind}, NV{num_links} by nvidia-smi topo: {payload:g} GB/s a link each way (nvidia-smi "
        f"nvlink reports {reported_gb_per_s:g}); {share}"
    )
    return NotedLink(latency_s, rate, note)


def pcie_bytes_per_s(generation: int, lanes: int) -> float:
    """Nominal, one way: each generation doubles a lane's rate."""
    doubled = 2.0 ** (min(generation, _LAST_GENERATION) - 3)
    return PCIE3_LANE_BYTES_PER_S * min(lanes, _MOST_LANES) * doubled


def pcie(generation: int | None, lanes: int | None, way: str) -> NotedLink:
    """A way through PCIe.

    Args:
        generation: Of the slower card; None: not said.
        lanes: The same.
        way: As `nvidia-smi topo` calls it; empty: not said.
    """
    is_assumed = generation is None or lanes is None
    generation = generation or ASSUMED_PCIE_GENERATION
    lanes = lanes or ASSUMED_PCIE_LANES
    by = "assumed" if is_assumed else "by nvidia-smi"
    like = f"pcie{min(max(generation, 3), 5)}"
    latency_s, rate, share = usable(like, pcie_bytes_per_s(generation, lanes))
    note = f"pcie{generation}, x{lanes} ({by}{', ' + way if way else ''}): {share}"
    return NotedLink(latency_s, rate, note, is_assumed)


def xgmi() -> NotedLink:
    """Infinity Fabric between two cards of AMD."""
    shipped = shipped_link_kinds()[XGMI_KIND]
    note = f"{XGMI_KIND}: one link, as nothing says how many"
    return NotedLink(shipped.latency_s, shipped.bandwidth_bytes_per_s, note, True)


def processes() -> NotedLink:
    """Messages between two processes of a host."""
    note = "about what gloo takes between processes over the loopback (assumed)"
    return NotedLink(PROCESS_LATENCY_S, PROCESS_BYTES_PER_S, note, True)


def network(kind: Literal["infiniband", "ethernet"], gbit_per_s: float | None) -> NotedLink:
    """From host to host.

    Args:
        kind: Of the interfaces at both ends.
        gbit_per_s: Of the slower one; None: not said.
    """
    rate = gbit_per_s or ASSUMED_GBIT_PER_S
    name = f"{kind}-{rate:g}"
    if kind == "infiniband" and rate in _INFINIBAND:
        name = f"{kind}-{_INFINIBAND[int(rate)]}"
    like = name
    if name not in shipped_link_kinds():
        like = next(found for most, found in _LIKE[kind] if rate <= most)
    latency_s, bandwidth, share = usable(like, rate * 1e9 / 8)
    how = "assumed: no speed is reported; " if gbit_per_s is None else ""
    return NotedLink(
        latency_s, bandwidth, f"{name}, {rate:g} Gbit/s ({how}{share})", gbit_per_s is None
    )
