"""The forty problems: models on 8 to 512 devices, equal and mixed, over fast and slow links.

Two after each other are alike; the first of them is for development, the second is frozen: looked
at only when a version is judged.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from benchmarks.strategy.models import profile_named
from heterps.planning.strategies import OPEN
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_envs.problem import Problem

Inside = Literal["nvlink", "pcie"]
Between = Literal["25g", "100g", "infiniband"]
Part = Literal["development", "frozen"]

# Each way, as data sheets say; of an NVLink by what it connects.
_NVLINK_BYTES_PER_S = {
    "H100-80G": 450e9, "A100-80G": 300e9, "A100-40G": 300e9, "V100-32G": 150e9, "V100-16G": 150e9,
}  # fmt: skip
_PCIE = Link(latency_s=2e-5, bandwidth_bytes_per_s=12e9)
_BETWEEN: dict[Between, Link] = {
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

CASES = (
    # Equal devices.
    Case("7b", 64, (Nodes(1, 8, A100),), "100g"),
    Case("7b", 128, (Nodes(1, 8, H100),), "100g"),
    Case("7b", 128, (Nodes(4, 8, A40G),), "25g"),
    Case("7b", 256, (Nodes(8, 4, V100),), "25g"),
    Case("13b", 128, (Nodes(4, 8, "A10G", "pcie"),), "100g"),
    Case("13b", 128, (Nodes(4, 8, "RTX-4090", "pcie"),), "25g"),
    Case("13b", 256, (Nodes(4, 8, A100),), "100g"),
    Case("13b", 256, (Nodes(8, 8, V100),), "100g"),
    Case("70b", 64, (Nodes(2, 8, H100),), "infiniband"),
    Case("70b", 128, (Nodes(4, 8, A100),), "infiniband"),
    Case("70b", 512, (Nodes(64, 8, H100),), "infiniband"),
    Case("70b", 512, (Nodes(32, 8, A100),), "100g"),
    Case("mixtral", 128, (Nodes(4, 8, H100),), "infiniband"),
    Case("mixtral", 256, (Nodes(8, 8, A100),), "100g"),
    Case("gpt2-xl", 128, (Nodes(2, 4, "T4", "pcie"),), "25g"),
    Case("gpt2-xl", 256, (Nodes(4, 4, V16),), "25g"),
    Case("gpt2-xl", 512, (Nodes(8, 8, A40G),), "100g"),
    Case("vit-h", 512, (Nodes(4, 4, V16, "pcie"),), "25g"),
    Case("vit-h", 256, (Nodes(1, 8, "RTX-4090", "pcie"),), "25g"),
    Case("vit-h", 1024, (Nodes(8, 8, "L4", "pcie"),), "100g"),
    # Mixed ones.
    Case("7b", 64, (Nodes(1, 4, A40G), Nodes(2, 4, V16), Nodes(1, 4, "T4", "pcie")), "25g"),
    Case("7b", 128, (Nodes(1, 8, A40G), Nodes(2, 4, V100), Nodes(1, 8, "T4", "pcie")), "25g"),
    Case("7b", 256, (Nodes(2, 8, A100), Nodes(4, 8, V100)), "100g"),
    Case("7b", 256, (Nodes(2, 8, H100), Nodes(4, 8, "A10G", "pcie")), "100g"),
    Case("13b", 128, (Nodes(1, 8, A100), Nodes(2, 8, A40G)), "25g"),
    Case("13b", 128, (Nodes(1, 8, H100), Nodes(2, 8, V100)), "25g"),
    Case("13b", 256, (Nodes(2, 8, H100), Nodes(2, 8, A100), Nodes(4, 8, V100)), "100g"),
    Case("13b", 256, (Nodes(4, 8, A40G), Nodes(4, 8, "L4", "pcie")), "100g"),
    Case("70b", 128, (Nodes(2, 8, H100), Nodes(4, 8, A100)), "infiniband"),
    Case("70b", 256, (Nodes(4, 8, H100), Nodes(8, 8, A40G)), "100g"),
    Case("70b", 512, (
        Nodes(8, 8, H100), Nodes(12, 8, A100), Nodes(12, 8, A40G), Nodes(16, 8, V100),
        Nodes(8, 8, "A10G", "pcie"), Nodes(8, 8, "L4", "pcie"),
    ), "100g"),
    Case("70b", 512, (Nodes(16, 8, H100), Nodes(16, 8, A100), Nodes(32, 8, V100)), "infiniband"),
    Case("mixtral", 128, (Nodes(2, 8, H100), Nodes(4, 8, A100)), "infiniband"),
    Case("mixtral", 256, (Nodes(4, 8, A100), Nodes(8, 8, A40G)), "100g"),
    Case("gpt2-xl", 128, (Nodes(1, 4, V16), Nodes(1, 4, "T4", "pcie")), "25g"),
    Case("gpt2-xl", 128, (Nodes(1, 4, A40G), Nodes(1, 4, "RTX-3090", "pcie")), "25g"),
    Case("gpt2-xl", 512, (Nodes(2, 8, A100), Nodes(4, 4, V16), Nodes(4, 4, "T4", "pcie")), "100g"),
    Case("vit-h", 256, (Nodes(1, 4, V100), Nodes(1, 8, "T4", "pcie")), "25g"),
    Case("vit-h", 512, (Nodes(1, 8, A40G), Nodes(2, 8, "RTX-3090", "pcie")), "25g"),
    Case("vit-h", 1024, (Nodes(2, 8, A100), Nodes(4, 8, V100), Nodes(4, 8, "L4", "pcie")), "100g"),
)  # fmt: skip
# A look: small ones, of each model but the largest.
QUICK = (0, 14, 18, 20, 34)


def part_of(index: int) -> Part:
    """Which half a case is in."""
    return "frozen" if index % 2 else "development"


def problem_of(case: Case) -> Problem:
    """The problem of a case; planners may choose all that they know."""
    nodes = tuple(
        Node(
            name=f"n{row}-{index}",
            devices=(DeviceGroup(name=f"d{row}-{index}", type=each.kind, count=each.size),),
            link=each.link,
        )
        for row, each in enumerate(case.nodes)
        for index in range(each.number)
    )
    cluster = Cluster(name="strategy", nodes=nodes, inter_node_link=_BETWEEN[case.between])
    job = Job(global_batch_size=case.batch)
    return Problem(profile_named(case.model), cluster, job, strategy=OPEN)
