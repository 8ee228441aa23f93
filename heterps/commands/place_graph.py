"""`heterps place-graph`: layers or operators of a graph onto concrete devices."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from rich.table import Table

from heterps.commands.requests import JobOptions, Limits, told_by_option
from heterps.planning.place_graph import (
    GraphResult,
    load_compiled_code,
    load_graph,
    place_loaded,
)
from heterps.reports.console import (
    answer,
    percent_text,
    print_json,
    remarks,
    say_when_compiling,
    seconds_text,
)
from heterps.reports.folding import MOST_RANGES, folded_names
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.learned.efforts import effort_named
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.outputs import try_outputs
from heterps_configs.units import bytes_text
from heterps_envs.graphs.sources import SourceGraph

# More groups of consecutive nodes than these tell nobody anything.
MOST_GROUPS, LONGEST_NAME = 6, 24


@dataclass(frozen=True)
class GraphRequest:
    """The graph and the devices that a command is about, in the words of its user.

    Attributes:
        graph: With a cluster MODEL; else a file that names its own devices.
        cluster: Shipped name, or cluster file.
        accelerators: How many, where the file does not say.
        job_file: A job document.
        job: What options say of the job.
    """

    graph: str
    cluster: str | None = None
    accelerators: int | None = None
    job_file: str | None = None
    job: JobOptions = field(default_factory=JobOptions)

    def load(self) -> SourceGraph:
        """Reads it; traces a model where that is no file.

        Raises:
            HeterpsError: It is missing or broken, or an option does not fit.
        """
        given = self.job.named()
        with told_by_option(given):
            return load_graph(
                self.graph,
                self.cluster,
                accelerators=self.accelerators,
                job_file=self.job_file,
                **given,
            )


def run_place_graph(
    asked: GraphRequest,
    limits: Limits,
    *,
    policy: str | None,
    effort: str,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Places, prints, and writes the JSON file where one is asked for.

    Args:
        asked: The graph.
        limits: Of the search.
        policy: Name or file of a policy for graphs; None: the shipped one.
        effort: Name of an effort.
        seed: Of everything random.
        output: The JSON file.
        as_json: Print JSON.
    """
    read = {"GRAPH": asked.graph, "--cluster": asked.cluster, "--job": asked.job_file}
    try_outputs({"--output": (output, ())}, read={**read, "--policy": policy})
    # What is misspelt should not wait for a model to be traced.
    effort_named(effort)
    limits.budget()
    learned = None if policy is None else GraphPolicy.load(policy)
    source = asked.load()
    say_when_compiling()
    load_compiled_code(learned)
    result = place_loaded(source, effort, limits.budget(), seed, learned)
    try:
        if output is not None:
            write_text(output, json.dumps(result.to_mapping(), indent=2, allow_nan=False) + "\n")
            remarks.print(f"placement written to {output}")
    finally:
        _print(result, as_json)


def _print(result: GraphResult, as_json: bool) -> None:
    if as_json:
        print_json(result.to_mapping())
        return
    answer.print(devices_table(result))
    for line in graph_lines(result):
        answer.print(line)


def devices_table(result: GraphResult) -> Table:
    """One row for each device: its nodes in groups of consecutive ones, memory, busy share.

    Of more than a few devices without a node, there is one row.
    """
    source = result.source
    table = Table(title=source.name, title_justify="left", box=None)
    for heading in ("device", "nodes", "memory", "busy"):
        table.add_column(heading, justify="left" if heading == "device" else "right", no_wrap=True)
    table.add_column("groups of nodes", overflow="fold")
    counts = np.bincount(result.answer.devices, minlength=len(source.devices))
    idle = [name for name, count in zip(source.devices, counts, strict=True) if count == 0]
    if len(idle) <= MOST_RANGES:
        idle = []
    for index, name in enumerate(source.devices):
        if name in idle:
            continue
        used = bytes_text(float(result.run.memory_bytes[index]))
        limit = bytes_text(float(source.tables.device_memory_bytes[index]))
        table.add_row(
            name,
            str(counts[index]),
            f"{used} of {limit}",
            percent_text(result.busy_s(index) / result.answer.step_time_s),
            _groups_text(result, index),
        )
    if idle:
        table.add_row(folded_names(idle), "0", "", percent_text(0.0), f"{len(idle)} idle")
    return table


def _groups_text(result: GraphResult, device: int) -> str:
    names = [_shortened(name) for name in result.source.nodes]
    groups = list(result.groups(device))
    texts = [
        f"{first} {names[first]}"
        if first == last
        else f"{first}-{last} {names[first]} .. {names[last]}"
        for first, last in groups[:MOST_GROUPS]
    ]
    if len(groups) > MOST_GROUPS:
        more = len(groups) - MOST_GROUPS
        texts.append(f"and {more} group{'s' if more > 1 else ''} more")
    return "; ".join(texts) or "idle"


def _shortened(name: str) -> str:
    """A name without the parameters that some documents write after it."""
    return (
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def graph_lines(result: GraphResult) -> list[str]:
    """Step time, whose it is, and how far the simple rule and annealing alone are from it."""
    found = result.answer
    spent = f"{_evaluations_text(found.evaluations)}, {seconds_text(result.planning_s)}"
    by_annealing = result.found_by == "annealing alone"
    if by_annealing:
        spent = f"{_against(result.search_s, found.step_time_s)}, {spent}"
    return [
        f"step time         {seconds_text(found.step_time_s)} simulated"
        + (": annealing alone found it" if by_annealing else ""),
        f"earliest finish   {_against(found.earliest_s, found.step_time_s)}",
        f"annealing alone   {_against(result.annealing_s, found.step_time_s)}, "
        f"{_evaluations_text(result.annealing_evaluations)}",
        f"search            {spent}",
    ]


def _evaluations_text(count: int) -> str:
    return f"{count:,} evaluation{'s' if count > 1 else ''}"


def _against(other_s: float, step_time_s: float) -> str:
    return f"{seconds_text(other_s)}, {percent_text(other_s / step_time_s - 1, 1, is_change=True)}"
