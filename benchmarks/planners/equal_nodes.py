"""Planners on clusters of several equal nodes: simulated step time, and distance to the bound.

    python benchmarks/planners/equal_nodes.py
    python benchmarks/planners/equal_nodes.py --quick --json equal_nodes.json
    python benchmarks/planners/equal_nodes.py --planners exact,auto

Inside the nodes links are fast, between them slow, so which devices of a kind are chosen decides.
Every search gets the same evaluations; `auto` and `exact` none but their own limits.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem

EVALUATIONS, SECONDS = 10_000, 30.0
PLANNERS = ("exact", "auto", "ppo", "unlearned-beam", "genetic", "annealing", "greedy")


class Case(NamedTuple):
    """A model on nodes: (how many of them, (devices, type) of each).

    Attributes:
        between: Bytes per second between two nodes.
        batch: Of one step.
    """

    model: str
    nodes: tuple[tuple[int, tuple[tuple[int, str], ...]], ...]
    between: float = 3.1e9
    batch: int = 128
    schedule: str = "1f1b"

    @property
    def name(self) -> str:
        """Model, schedule and nodes in a line."""
        nodes = (
            f"{count} x " + " & ".join(f"{size} {kind}" for size, kind in devices)
            for count, devices in self.nodes
        )
        return f"{self.model} {self.schedule} on {' + '.join(nodes)}"


CASES = (
    Case("gpt2", ((2, ((8, "H100-80G"),)), (4, ((8, "A10G"),)))),
    Case("bert-large", ((3, ((4, "A100-40G"),)), (3, ((4, "V100-16G"),)))),
    Case("llama-7b", ((3, ((4, "A100-80G"),)), (3, ((4, "V100-32G"),))), 12.5e9),
    Case("resnet-152", ((4, ((4, "T4"),)), (2, ((2, "V100-16G"),))), 1.25e9, schedule="gpipe"),
    Case("vit-large", ((3, ((2, "A100-40G"), (2, "T4"))),)),
    Case("resnet-50", ((4, ((2, "L4"),)),), 1.25e9),
    Case("ctr", ((2, ((4, "A100-40G"),)), (2, ((4, "T4"),))), 25e9),
    Case("llama-7b", ((4, ((8, "A100-40G"),)), (4, ((8, "V100-32G"),))), 12.5e9, 256),
    Case(
        "llama-70b",
        tuple(
            (count, ((8, kind),))
            for count, kind in (
                (8, "H100-80G"), (12, "A100-80G"), (12, "A100-40G"), (16, "V100-32G"), (8, "A10G"),
                (8, "L4"),
            )
        ),
        12.5e9,
        batch=512,
    ),
)  # fmt: skip
QUICK = CASES[1::4]


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", planners="names, by commas", only="index of one problem")
    names = options.planners.split(",") if options.planners else PLANNERS
    cases: tuple[Case, ...] = QUICK if options.quick else CASES
    if options.only:
        cases = (CASES[int(options.only)],)
    rows = [_row(case, name) for case in cases for name in names]
    answered = [row for row in rows if row["simulated_ms"] is not None]
    summary = {
        "problems": len(cases),
        **{f"{name} answers": sum(row["planner"] == name for row in answered) for name in names},
        **{
            f"{name} proves": sum(
                row["planner"] == name and row["status"] == "proven" for row in answered
            )
            for name in names
        },
    }
    report("several equal nodes", rows, summary, options)


def problem_of(case: Case) -> Problem:
    """The problem of a case."""
    inside = Link(latency_s=5e-6, bandwidth_bytes_per_s=150e9)
    nodes: list[Node] = []
    for count, devices in case.nodes:
        for _ in range(count):
            number = len(nodes)
            groups = tuple(
                DeviceGroup(name=f"d{number}-{index}", type=kind, count=size)
                for index, (size, kind) in enumerate(devices)
            )
            nodes.append(Node(name=f"n{number}", devices=groups, link=inside))
    between = Link(latency_s=3e-5, bandwidth_bytes_per_s=case.between)
    profile = load_profile(case.model)
    job = Job.from_mapping(
        {
            "dtype": profile.dtype,
            "global_batch_size": case.batch,
            "schedule": case.schedule,
        }
    )
    cluster = Cluster(name="equal", nodes=tuple(nodes), inter_node_link=between)
    return Problem(profile, cluster, job)


def _budget(planner: str) -> Budget | None:
    """Transitions of the exact solver are no evaluations, so `auto` has no limit."""
    return None if planner == "auto" else Budget(EVALUATIONS, cpu_seconds=SECONDS)


def _row(case: Case, planner: str) -> dict[str, Any]:
    problem, start = problem_of(case), time.process_time()
    row: dict[str, Any] = {
        "problem": case.name,
        "classes": len(problem.classes),
        "planner": planner,
        "simulated_ms": None,
    }
    try:
        found = place(problem, planner, budget=_budget(planner))
    except HeterpsError:
        return row
    return row | {
        "simulated_ms": 1000 * found.estimate.step_time_s,
        "closed_form_ms": 1000 * (found.estimate.closed_form_step_time_s or 0.0),
        "bound_ms": 1000 * (found.bound.step_time_s or 0.0),
        "gap_percent": None if found.bound.gap is None else 100 * found.bound.gap,
        "status": found.bound.status,
        "cpu_s": time.process_time() - start,
    }


if __name__ == "__main__":
    main()
