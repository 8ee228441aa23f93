"""A pipeline over hosts that are far from each other: measured steps beside simulated ones.

    python benchmarks/runtime/far_hosts.py
    python benchmarks/runtime/far_hosts.py --quick --json far_hosts.json

Two network namespaces of this machine, with a link between them that delivers every packet later
(`benchmarks.runtime.delayed_link`); a stage of the shipped perceptron on each, 64 micro-batches of
16 samples, messages of 64 KiB. Layers are measured on this machine first; the two stages run on
cores of it, side by side. The first stage holds what 1F1B's rule says, or more: a stage whose
gradients come back late waits for them.

Linux, and namespaces that may be made (as root, or where users may make their own).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report
from heterps.planning.problems import load_problem
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Strategy
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.runtime.networks import Host, Network, free_port, network, start
from tests.runtime.runs_on_hosts import start_run

DELAYS_S, QUICK_DELAYS_S = (0.01, 0.04), (0.04,)
# Micro-batches in flight of the first stage, of which the rule says two.
HELD = (2, 4, 16, 48)
MICRO_BATCHES, SAMPLES = 64, 16
# The last layer of the first stage.
CUT = 6
STEPS, LIMIT_S = 8, 180.0
CORE = "cpu-core"
BANDWIDTH_BYTES_PER_S = 1e9
ADDRESSES = "10.78.0.1", "10.78.0.2"


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _profile(folder)
        for delay_s in QUICK_DELAYS_S if options.quick else DELAYS_S:
            problem = _problem(folder, delay_s)
            with _far(folder, delay_s) as hosts:
                rows += [_row(problem, folder, hosts, delay_s, held) for held in HELD]
    summary = {f"{row['one way ms']} ms, {row['in flight']} in flight": row["over"] for row in rows}
    report("Hosts far from each other", rows, summary, options)


def _profile(folder: Path) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "heterps", "profile", "perceptron", "--device", "cpu",
            "--device-type", CORE, "--micro-batch", str(SAMPLES),
            "-o", str(folder / "model.yaml"),
        ],
        check=True, capture_output=True, timeout=LIMIT_S,
    )  # fmt: skip


def _problem(folder: Path, delay_s: float) -> Problem:
    """The model on two hosts of a core each, so far apart; its cluster becomes a file, too."""
    nodes = tuple(
        Node(name=f"host{number}", devices=(DeviceGroup(name=f"core{number}", type=CORE),))
        for number in range(2)
    )
    link = Link(latency_s=delay_s, bandwidth_bytes_per_s=BANDWIDTH_BYTES_PER_S)
    Cluster(name="far", nodes=nodes, inter_node_link=link).to_file(folder / "cluster.yaml")
    return load_problem(
        folder / "model.yaml",
        folder / "cluster.yaml",
        strategy=Strategy(),
        global_batch_size=MICRO_BATCHES * SAMPLES,
        micro_batch_size=SAMPLES,
    )


def _row(
    problem: Problem, folder: Path, hosts: Network, delay_s: float, held: int
) -> dict[str, Any]:
    stages = PlacedStage(0, CUT, 0), PlacedStage(CUT + 1, problem.profile.num_layers - 1, 0)
    plan = bind(problem, stages, planner="by hand", seed=0)
    first, *others = plan.stages
    plan = plan.changed(stages=(first.changed(in_flight=held), *others))
    simulated_s = estimate(problem, plan).step_time_s
    references = {"model_reference": "model.yaml", "cluster_reference": "cluster.yaml"}
    plan.changed(**references).to_file(folder / "plan.yaml")
    measured_s = _measured_s(folder / "plan.yaml", hosts)
    return {
        "one way ms": round(1e3 * delay_s),
        "in flight": held,
        "simulated ms": round(1e3 * simulated_s),
        "measured ms": round(1e3 * measured_s),
        "over": round(measured_s / simulated_s, 3),
    }


def _measured_s(plan: Path, hosts: Network) -> float:
    """Median step of a run, the first ones left out."""
    port = free_port()
    running = [
        start_run(hosts, plan, rank, port, "--steps", str(STEPS), "--json") for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=LIMIT_S) for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise SystemExit(f"a run failed: {texts[0][1]}{texts[1][1]}")
    return float(json.loads(texts[0][0])["measured_step_time_s"])


@contextlib.contextmanager
def _far(folder: Path, delay_s: float) -> Iterator[Network]:
    """Two hosts whose packets to each other come so much later."""
    with network() as near, contextlib.ExitStack() as stack:
        if not near.are_apart:
            raise SystemExit("this needs Linux where network namespaces may be made")
        sockets = [str(folder / f"cable{number}") for number in range(2)]
        for number, host in enumerate(near.hosts):
            own, other = sockets[number], sockets[1 - number]
            end = start(
                host, "-m", "benchmarks.runtime.delayed_link", ADDRESSES[number], own, other,
                str(delay_s),
            )  # fmt: skip
            stack.callback(_end, end, own)
            assert end.stdout is not None
            if end.stdout.readline() != "ready\n":
                end.kill()
                raise SystemExit(f"no link: {end.communicate()[1]}")
        hosts = [Host(host.prefix, own) for host, own in zip(near.hosts, ADDRESSES, strict=True)]
        yield Network((hosts[0], hosts[1]), near.stranger, are_apart=True)


def _end(process: subprocess.Popen[str], own: str) -> None:
    process.kill()
    process.communicate()
    Path(own).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
