"""What a problem of the benchmark of strategies is: a model, a batch and nodes of devices."""

from __future__ import annotations

from typing import Literal, NamedTuple

from heterps_configs.documents.cluster import Link

Inside = Literal["nvlink", "pcie"]
Between = Literal["25g", "100g", "infiniband"]

# Each way, as data sheets say; of an NVLink by what it connects.
_NVLINK_BYTES_PER_S = {
    "H100-80G": 450e9, "A100-80G": 300e9, "A100-40G": 300e9, "V100-32G": 150e9, "V100-16G": 150e9,
}  # fmt: skip
_PCIE = Link(latency_s=2e-5, bandwidth_bytes_per_s=12e9)
BETWEEN: dict[Between, Link] = {
    "25g": Link(latency_s=5e-5, bandwidth_bytes_per_s=25e9 / 8),
    "100g": Link(latency_s=3e-5, bandwidth_bytes_per_s=100e9 / 8),
    "infiniband": Link(latency_s=1.5e-5, bandwidth_bytes_per_s=400e9 / 8),
}


class Nodes(NamedTuple):
    """Equal nodes of equal devices."""

    number: int
    size: int
    kind: str
    inside: Inside = "nvlink"

    @property
    def link(self) -> Link:
        """Between two devices of a node."""
        if self.inside == "pcie":
            return _PCIE
        return Link(latency_s=1e-5, bandwidth_bytes_per_s=_NVLINK_BYTES_PER_S[self.kind])


class Case(NamedTuple):
    """A model, a batch and where it trains."""

    model: str
    batch: int
    nodes: tuple[Nodes, ...]
    between: Between

    @property
    def is_mixed(self) -> bool:
        """Whether there are several types of devices."""
        return len({each.kind for each in self.nodes}) > 1

    @property
    def num_devices(self) -> int:
        """Of all nodes."""
        return sum(each.number * each.size for each in self.nodes)

    @property
    def name(self) -> str:
        """All of it in a line."""
        nodes = " + ".join(f"{n.number}x{n.size} {n.kind} {n.inside}" for n in self.nodes)
        return f"{self.model} batch {self.batch} on {nodes}, {self.between}"


H100, A100, A40G, V100, V16 = "H100-80G", "A100-80G", "A100-40G", "V100-32G", "V100-16G"
