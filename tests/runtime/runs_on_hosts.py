"""A plan for two hosts, and `heterps run` on each of them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from tests.runtime.networks import SECRET, Network, start
from tests.runtime.small_runs import chain_of, problem_of


def plan_file(folder: Path, **options: Any) -> Path:
    """A plan of three stages on two nodes of one and of two devices, with its model and cluster.

    Args:
        folder: Where the files are put.
        options: Of `problem_of`.
    """
    problem = problem_of("sequential", **options)
    link = Link(latency_s=2e-3, bandwidth_bytes_per_s=1e6)
    (node,) = problem.cluster.nodes

    def part(name: str, devices: tuple[DeviceGroup, ...]) -> Node:
        return Node(name=name, devices=devices, link=link)

    cluster = Cluster(
        name=problem.cluster.name,
        device_types=problem.cluster.device_types,
        nodes=(part("one", node.devices[:1]), part("two", node.devices[1:])),
        inter_node_link=link,
    )
    cluster.to_file(folder / "cluster.yaml")
    problem.profile.to_file(folder / "model.yaml")
    references = {"model_reference": "model.yaml", "cluster_reference": "cluster.yaml"}
    chain_of(problem, 3, 6).changed(**references).to_file(folder / "plan.yaml")
    return folder / "plan.yaml"


def start_run(
    hosts: Network, plan: Path, rank: int, port: int, *options: str, secret: str = SECRET
) -> subprocess.Popen[str]:
    """Starts `heterps run` on one of two hosts, which share a run directory beside the plan."""
    command = [
        "-m", "heterps", "run", str(plan), "--nodes", "2", "--node-rank", str(rank),
        "--rendezvous", f"{hosts.hosts[0].address}:{port}", "--trust-code",
        "--run-directory", str(plan.parent / "run"), *options,
    ]  # fmt: skip
    return start(hosts.hosts[rank], *command, secret=secret)
