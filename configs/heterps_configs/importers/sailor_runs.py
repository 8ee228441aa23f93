"""Imports Sailor's measured runs (`validation/*.json`): a plan, and what it took on a cluster."""

from __future__ import annotations

import os
from typing import NamedTuple

from heterps_configs.importers.json_entry import Entry


class SailorGroup(NamedTuple):
    """A tensor-parallel group: GPUs of one node that share every layer of a stage."""

    gpu: str
    tensor_parallel: int
    zone: str


class SailorStage(NamedTuple):
    """Layers `first_layer .. end_layer - 1` on each of the groups, which share the samples."""

    first_layer: int
    end_layer: int
    groups: tuple[SailorGroup, ...]


class SailorPlan(NamedTuple):
    """A pipeline, front to back; every stage has the same number of groups."""

    stages: tuple[SailorStage, ...]
    micro_batch_size: int
    global_batch_size: int


class SailorRun(NamedTuple):
    """One run on a real cluster.

    Attributes:
        measured_s: Seconds of one iteration.
        measured_memory_bytes: Of the fullest GPU.
        measured_reduce_s: Seconds that the first rank spends in the gradient all-reduce, waiting
            for others included; None where the file does not say.
    """

    plan: SailorPlan
    measured_s: float
    measured_memory_bytes: float
    measured_reduce_s: float | None = None


class SailorTraining(NamedTuple):
    """What a training configuration says of the model's attention."""

    num_heads: int
    sequence_length: int


def load_training(path: str | os.PathLike[str]) -> SailorTraining:
    """Reads `training_config_*.json`.

    Raises:
        DocumentError: The file is malformed.
        HeterpsError: The file cannot be read.
    """
    top = Entry.from_json(path)
    return SailorTraining(
        top["heads"].integer(minimum=1), top["sequence_length"].integer(minimum=1)
    )


def load_run(path: str | os.PathLike[str]) -> SailorRun:
    """Reads one measured run.

    Raises:
        DocumentError: The file is malformed, or its stages do not cover the layers in order.
        HeterpsError: The file cannot be read.
    """
    top = Entry.from_json(path)
    pipelines = top["pipeline_list"].entries(length=1)
    plan = SailorPlan(
        _read_stages(pipelines[0]),
        top["mbs"].integer(minimum=1),
        top["gbs"].integer(minimum=1),
    )
    reduce_s = top["red_grads"].number() if top.has("red_grads") else None
    return SailorRun(plan, top["real"].number(above=True), top["max_mem"].number(), reduce_s)


def _read_stages(pipeline: Entry) -> tuple[SailorStage, ...]:
    num_stages = pipeline["num_stages"].integer(minimum=1)
    layers = pipeline["layers_per_stage"].entries(num_stages)
    groups = pipeline["tmp_per_stage"].entries(num_stages)
    degrees = [entry.integer(minimum=1) for entry in pipeline["dp"].entries(num_stages)]
    stages: list[SailorStage] = []
    for numbers, members, degree in zip(layers, groups, degrees, strict=True):
        first = stages[-1].end_layer if stages else 0
        end = first + len(numbers.entries())
        if end == first or [entry.value for entry in numbers.entries()] != list(range(first, end)):
            numbers.fail(f"must be consecutive layers from {first} on")
        stages.append(
            SailorStage(first, end, tuple(_read_group(entry) for entry in members.entries(degree)))
        )
    return tuple(stages)


def _read_group(entry: Entry) -> SailorGroup:
    nodes, degree = entry.entries(length=2)
    (node,) = nodes.entries(length=1)
    gpu, _, zone = node.entries(length=3)
    return SailorGroup(gpu.text(), degree.integer(minimum=1), zone.text())
