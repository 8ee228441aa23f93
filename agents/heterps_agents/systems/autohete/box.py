"""A box of devices: the model on each of them, or over as few of them as hold it.

The devices are shared out to equally deep pipelines, neighbours together: at depth 1 each device
has the whole model. Micro-batches go round the pipelines. Each stage has its own best ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from heterps_agents.search.uniform_shapes import even_cuts
from heterps_agents.systems.autohete.programme import best_ways, least_bytes
from heterps_agents.systems.autohete.ways import Part, Way, stage_ways
from heterps_envs.problem import Problem


class PlacedPart(NamedTuple):
    """A stage with the best ways of its layers.

    Attributes:
        ways: One for each layer.
        pass_s: Of a micro-batch, forward and backward.
        step_s: Of the optimizer step.
    """

    part: Part
    ways: tuple[Way, ...]
    pass_s: float
    step_s: float


class BoxPlan(NamedTuple):
    """Pipelines of equal depth.

    Attributes:
        pipelines: The stages of each, from the front.
        devices: Names, for each stage.
        seconds: Of a step, without the sums of gradients.
    """

    pipelines: tuple[tuple[PlacedPart, ...], ...]
    devices: tuple[tuple[str, ...], ...]
    seconds: float


def box_plan(problem: Problem, ways: tuple[Way, ...]) -> BoxPlan | None:
    """The least deep pipelines whose stages fit, with the best ways; None where none fit.

    Args:
        problem: What is asked.
        ways: Of which each layer has one.
    """
    names = list(problem.device_named)
    most = min(len(names), problem.profile.num_layers)
    for depth in (each for each in range(1, most + 1) if len(names) % each == 0 or each == most):
        found = _at_depth(problem, names, depth, ways)
        if found is not None:
            return found
    return None


def _at_depth(
    problem: Problem, names: list[str], depth: int, ways: tuple[Way, ...]
) -> BoxPlan | None:
    number = problem.job.num_micro_batches
    num_pipelines = min(len(names) // depth, number)
    cuts = even_cuts(problem, depth)
    devices = [tuple(names[depth * index : depth * (index + 1)]) for index in range(num_pipelines)]
    parts = [
        [
            Part(
                layers=layers,
                kind=problem.class_of[name],
                stages_behind=depth - 1 - stage,
                num_stages=depth,
                num_pipelines=num_pipelines,
                micro_batches=len(range(index, number, num_pipelines)),
            )
            for stage, (layers, name) in enumerate(zip(cuts, own, strict=True))
        ]
        for index, own in enumerate(devices)
    ]
    placed = _placed(problem, {part for chain in parts for part in chain}, ways)
    if placed is None:
        return None
    pipelines = tuple(tuple(placed[part] for part in chain) for chain in parts)
    return BoxPlan(pipelines, tuple(devices), max(map(_seconds, pipelines)))


def _placed(
    problem: Problem, parts: Iterable[Part], ways: tuple[Way, ...]
) -> dict[Part, PlacedPart] | None:
    """The best ways of some stages; None where one of them does not fit."""
    costs = {part: stage_ways(problem, part, ways) for part in parts}
    if any(least_bytes(own.layers) > own.room_bytes for own in costs.values()):
        return None
    placed: dict[Part, PlacedPart] = {}
    for part, own in costs.items():
        found = best_ways(own.layers, own.room_bytes)
        if found is None:
            return None
        rows = np.arange(len(part.layers))
        pass_s, step_s = (float(each[rows, found.ways].sum()) for each in (own.pass_s, own.step_s))
        placed[part] = PlacedPart(part, tuple(ways[way] for way in found.ways), pass_s, step_s)
    return placed


def _seconds(chain: tuple[PlacedPart, ...]) -> float:
    """Filled and emptied once; then the slowest stage decides, and the longest optimizer step."""
    passes = [placed.pass_s for placed in chain]
    rounds = chain[0].part.micro_batches - 1
    return sum(passes) + rounds * max(passes) + max(placed.step_s for placed in chain)
