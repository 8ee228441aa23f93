"""The forty problems, models on 8 to 512 devices, equal and mixed, over fast and slow links; more.

Of the forty, two after each other are alike; the first of them is for development, the second is
frozen: looked at only when a version is judged. Behind them stand the drawn ones (`drawn.py`), a
second part for development.
"""

from __future__ import annotations

from typing import Literal

from benchmarks.strategy.cases import A40G, A100, BETWEEN, H100, V16, V100, Case, Nodes
from benchmarks.strategy.drawn import drawn_cases
from benchmarks.strategy.models import profile_named
from heterps.planning.strategies import OPEN
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.documents.job import Job
from heterps_envs.problem import Problem

Part = Literal["development", "frozen", "drawn"]
PARTS: tuple[Part, ...] = ("development", "frozen", "drawn")

_CHOSEN = (
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
CASES = (*_CHOSEN, *drawn_cases())
# A look: small ones, of each model but the largest.
QUICK = (0, 14, 18, 20, 34)


def part_of(index: int) -> Part:
    """Which part a case is in."""
    if index >= len(_CHOSEN):
        return "drawn"
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
    cluster = Cluster(name="strategy", nodes=nodes, inter_node_link=BETWEEN[case.between])
    job = Job(global_batch_size=case.batch)
    return Problem(profile_named(case.model), cluster, job, strategy=OPEN)
