"""What the sections share: their options, the problem of one GPU, and plans on it."""

from __future__ import annotations

import argparse
import json
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.shared.common import machine, parse_options
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, shipped_device_types
from heterps_configs.documents.job import Job, Optimizer, Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.discovery.card_types import match_card
from heterps_runtime.profiling.profiler import Conditions, measure

CPU_TYPE = "cpu-socket"
# Of one machine: host memory carries what passes between its processes.
LINK = Link(latency_s=5e-5, bandwidth_bytes_per_s=5e9)

Rows = list[dict[str, Any]]


def run_section(description: str, sections: Sequence[Callable[[argparse.Namespace], Rows]]) -> None:
    """Runs the parts of a section one after another; one that fails is a row, too."""
    options = parse_options(
        description, device="cuda:0 or cpu", cases="some cases of it, with commas between"
    )
    options.cases = options.cases.split(",") if options.cases else None
    options.device = options.device or "cuda:0"
    rows: Rows = []
    for part in sections:
        try:
            found = part(options)
        except Exception as error:
            traceback.print_exc()
            found = [{"what": part.__name__, "failed": f"{type(error).__name__}: {error}"}]
        for row in found:
            print(json.dumps(row), flush=True)
        rows += found
        if options.json:
            content = {"rows": rows, **machine(), "torch": torch.__version__, "card": card(options)}
            options.json.write_text(json.dumps(content, indent=1) + "\n")


def is_wanted(case: str, options: argparse.Namespace) -> bool:
    """Whether a case is among those that were asked for: all, unless some are named."""
    return options.cases is None or case in options.cases


def card(options: argparse.Namespace) -> str:
    """Name of what is measured."""
    if options.device == "cpu":
        return "none"
    return torch.cuda.get_device_name(torch.device(options.device))


def device_type(options: argparse.Namespace) -> DeviceType:
    """The catalogue's row of the card; without one that of an H100."""
    types = shipped_device_types()
    if options.device == "cpu":
        return types["H100-80G"]
    memory_bytes = torch.cuda.get_device_properties(torch.device(options.device)).total_memory
    return match_card(card(options), memory_bytes, types).type


def problem_of(
    profile: ModelProfile,
    types: Sequence[str],
    *,
    schedule: Schedule = "1f1b",
    micro_batch_size: int = 4,
    num_micro_batches: int = 8,
    dtype: Dtype = "float32",
    optimizer: Optimizer = "adamw",
) -> Problem:
    """A model on devices d0, d1, ..., each the only one of its node.

    GPUs of different nodes are all the first one of their host: so several processes share a GPU.
    """
    nodes = tuple(
        Node(name=f"node-{i}", devices=(DeviceGroup(name=f"d{i}", type=name),), link=LINK)
        for i, name in enumerate(types)
    )
    job = Job(
        global_batch_size=micro_batch_size * num_micro_batches,
        micro_batch_size=micro_batch_size,
        dtype=dtype,
        optimizer=optimizer,
        schedule=schedule,
    )
    cluster = Cluster(
        name="one-machine", nodes=nodes, inter_node_link=LINK if len(nodes) > 1 else None
    )
    return Problem(profile=profile, cluster=cluster, job=job)


def chain_of(
    problem: Problem, devices: Sequence[str], cuts: Sequence[int] = (), **options: Any
) -> Plan:
    """Stages one after another on some devices, which may come again.

    Args:
        problem: What is placed.
        devices: One for each stage.
        cuts: First layer of each stage but the first; by default equal counts of layers.
        options: Fields of all stages; a function is called with the stage's layers.
    """
    count, layers = len(devices), problem.profile.num_layers
    bounds = [0, *(cuts or [layers * i // count for i in range(1, count)]), layers]
    stages = []
    for i, device in enumerate(devices):
        own = range(bounds[i], bounds[i + 1])
        fields = {name: value(own) for name, value in options.items()}
        stages.append(
            Stage(name=f"s{i}", first_layer=own[0], last_layer=own[-1], devices=(device,), **fields)
        )
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages),
        pipelines=(
            Pipeline(
                stages=tuple(stage.name for stage in stages),
                micro_batches=tuple(range(problem.job.num_micro_batches)),
            ),
        ),
        planner="by hand",
    )


def measured(
    profile: ModelProfile, options: argparse.Namespace, sizes: Sequence[int], dtype: Dtype
) -> ModelProfile:
    """The profile with the times of this machine's GPU, from few rounds."""
    conditions = Conditions(
        dtype=dtype, device=options.device, repeats=3 if options.quick else 7, layer_limit_s=1.0
    )
    return measure(profile, device_type(options).name, sizes, conditions)
