"""What `heterps place-graph` does: read a graph, place it, compare, and describe the result."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from heterps.planning.problems import load_model, make_job
from heterps_agents.graphs.annealing import anneal_graph
from heterps_agents.graphs.planner import GraphAnswer, place_graph
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.interface.planner import Budget
from heterps_configs.arguments import check_seed
from heterps_configs.documents.effort import GraphEffort
from heterps_configs.documents.job import Job
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.dnn_partitioning import parse_dnn_partitioning
from heterps_configs.importers.pipedream import load_pipedream
from heterps_configs.library import load_cluster
from heterps_envs.graphs.simulator import GraphRun, simulate_graph
from heterps_envs.graphs.sources import (
    DEFAULT_BATCH_SIZE,
    SourceGraph,
    graph_of_operators,
    graph_of_profile,
)
from heterps_envs.problem_sets.graphs import draw_graph
from heterps_envs.problem_sets.published_graphs import PIPEDREAM_BACKWARD_SHARE

# Annealing alone is shown with as many evaluations as the answer took, but at least with these.
LEAST_COMPARED_EVALUATIONS = 1000
FoundBy = Literal["search", "annealing alone"]
ONE_SAMPLE = GraphEffort(samples=1, polish_evaluations=1)


@dataclass(frozen=True)
class GraphResult:
    """A placed graph.

    Attributes:
        source: The graph and the names of its parts.
        answer: The best placement that was seen, and what the search took.
        run: Its simulated step.
        search_s: Step time of the search: that of the answer, or annealing alone is shorter.
        annealing_s: Step time of annealing alone, from earliest finish.
        annealing_evaluations: That it was given.
        planning_s: Wall-clock seconds of the search, without the comparison.
    """

    source: SourceGraph
    answer: GraphAnswer
    run: GraphRun
    search_s: float
    annealing_s: float
    annealing_evaluations: int
    planning_s: float

    def __repr__(self) -> str:
        """One line: of graphs with thousands of nodes, too."""
        nodes, devices = len(self.source.nodes), len(self.source.devices)
        return (
            f"GraphResult({self.source.name}: {nodes} nodes on {devices} devices, "
            f"{self.answer.step_time_s:.4g} s a step)"
        )

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps place-graph --json` and of its `--output`."""
        source, answer = self.source, self.answer
        return {
            "graph": source.name,
            "step_time_s": answer.step_time_s,
            "found_by": self.found_by,
            "search_step_time_s": self.search_s,
            "earliest_finish_step_time_s": answer.earliest_s,
            "annealing_step_time_s": self.annealing_s,
            "annealing_evaluations": self.annealing_evaluations,
            "evaluations": answer.evaluations,
            "planning_s": self.planning_s,
            "nodes": [
                {"name": name, "members": list(members), "device": source.devices[device]}
                for name, members, device in zip(
                    source.nodes, source.members, answer.devices.tolist(), strict=True
                )
            ],
            "devices": [
                {
                    "name": name,
                    "memory_bytes": float(self.run.memory_bytes[index]),
                    "memory_limit_bytes": float(source.tables.device_memory_bytes[index]),
                    "busy_s": self.busy_s(index),
                }
                for index, name in enumerate(source.devices)
            ],
        }

    @property
    def found_by(self) -> FoundBy:
        """Whose placement the answer is."""
        return "annealing alone" if self.annealing_s < self.search_s else "search"

    def busy_s(self, device: int) -> float:
        """Seconds that a device computes."""
        here = self.answer.devices == device
        tables = self.source.tables
        return float((tables.forward_s[here, device] + tables.backward_s[here, device]).sum())

    def groups(self, device: int) -> Iterator[tuple[int, int]]:
        """First and last node of each run of consecutive nodes on a device."""
        first = None
        for node, chosen in enumerate([*self.answer.devices.tolist(), -1]):
            if chosen == device and first is None:
                first = node
            elif chosen != device and first is not None:
                yield first, node - 1
                first = None


def load_graph(
    reference: str,
    cluster: str | None,
    *,
    accelerators: int | None = None,
    job_file: str | None = None,
    **job_options: Any,
) -> SourceGraph:
    """The graph that GRAPH stands for.

    Args:
        reference: With a cluster, a model as for `heterps place`. Without one, a file that names
            its own devices: an operator graph, a workload of dnn-partitioning (.json), or a
            profile of PipeDream (.txt).
        cluster: Shipped name or cluster file.
        accelerators: How many; for PipeDream's profiles, which do not say.
        job_file: A job document; only with a cluster.
        job_options: Fields of `Job` that override the file; None means not given.

    Raises:
        HeterpsError: With one clear message.
    """
    given = [name for name, value in job_options.items() if value is not None]
    if cluster is not None:
        if accelerators is not None:
            raise HeterpsError("--accelerators: the cluster says which devices there are")
        profile = load_model(reference)
        size: dict[str, Any] = {} if job_file else {"global_batch_size": DEFAULT_BATCH_SIZE}
        size |= {name: job_options[name] for name in given}
        job = make_job(profile, job_file, **size)
        _warn_of_ignored(job)
        return graph_of_profile(profile, load_cluster(cluster), job)
    if job_file is not None or given:
        raise HeterpsError("a job needs a model and --cluster; an operator graph has its own times")
    path = Path(reference)
    if not path.is_file():
        raise HeterpsError(
            f"{reference}: no such file; a model needs --cluster, an operator graph is a file"
        )
    if path.suffix == ".txt":
        if accelerators is None:
            raise HeterpsError(f"{reference}: PipeDream's profiles need --accelerators")
        graph = load_pipedream(path, accelerators)
        return graph_of_operators(graph, PIPEDREAM_BACKWARD_SHARE)
    if accelerators is not None:
        raise HeterpsError("--accelerators: the file says how many there are")
    data = read_yaml(path)
    if isinstance(data, dict) and "maxFPGAs" in data:
        return graph_of_operators(parse_dnn_partitioning(data, reference))
    return graph_of_operators(OperatorGraph.from_mapping(data, reference))


def _warn_of_ignored(job: Job) -> None:
    """Says which fields of a job do not count."""
    usual = Job(global_batch_size=job.global_batch_size)
    names = (
        "objective", "min_throughput_samples_per_s", "schedule", "overlaps_reduce",
        "unequal_micro_batch_sizes",
    )  # fmt: skip
    ignored = [name for name in names if getattr(job, name) != getattr(usual, name)]
    if ignored:
        warnings.warn(
            f"{', '.join(ignored)} of the job: ignored; a graph is placed for the shortest step, "
            "with its whole batch at once",
            stacklevel=3,
        )


def load_compiled_code(policy: GraphPolicy | None) -> None:
    """Places a tiny graph, so that a limit in seconds does not pay for loading compiled code."""
    place_graph(draw_graph(0, (4, 4), (2, 2)), ONE_SAMPLE, policy=policy)


def place_loaded(
    source: SourceGraph,
    effort: str,
    budget: Budget,
    seed: int,
    policy: GraphPolicy | None = None,
) -> GraphResult:
    """Places a graph, lets annealing alone try the same, and takes the better of the two.

    Args:
        source: The graph.
        effort: Name of an effort.
        budget: What the placement may spend; the comparison comes on top.
        seed: Of samples and annealing.
        policy: By default the shipped one.

    Raises:
        UnknownNameError: There is no such effort.
        HeterpsError: The seed is none.
        InfeasibleError: No placement fits into memory.
    """
    check_seed(seed)
    answer = place_graph(source.tables, effort, budget=budget, seed=seed, policy=policy)
    planning_s, search_s = budget.seconds_used, answer.step_time_s
    evaluations = max(LEAST_COMPARED_EVALUATIONS, answer.evaluations)
    annealing_s = answer.earliest_s
    annealed = anneal_graph(source.tables, Budget(evaluations), seed)
    if annealed is not None:
        annealing_s = simulate_graph(source.tables, annealed).step_time_s
        if annealing_s < search_s:
            # Few evaluations, or seconds: the comparison was given more than the search.
            answer = replace(answer, devices=annealed, step_time_s=annealing_s)
    run = simulate_graph(source.tables, answer.devices)
    return GraphResult(source, answer, run, search_s, annealing_s, evaluations, planning_s)
