"""Tensor-parallel degrees that a problem allows, and what layers take and hold at each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from heterps_envs.arrays import Floats
from heterps_envs.layer_costs.tensor_parallel import split_at
from heterps_envs.options import StageOption, option_tables
from heterps_envs.problem import Problem


class AtDegree(NamedTuple):
    """Layers on one device of a group of some degree: (L, T), for each layer and device class.

    Attributes:
        compute_s: Of a micro-batch, forward and backward, with the sums over the group.
        optimizer_s: Of a step.
        state_bytes: Weights, gradients, optimizer state.
        activation_bytes: Kept of one micro-batch.
        gradient_bytes: What an all-reduce over replicas moves.
        memory_bytes: (T,) of a device, for all these.
    """

    compute_s: Floats
    optimizer_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    gradient_bytes: Floats
    memory_bytes: Floats


def at_degree(problem: Problem, degree: int) -> AtDegree:
    """The layers of a problem on groups of one size, where all activations are kept."""
    options = tuple(StageOption(kind, degree) for kind in range(len(problem.classes)))
    tables = option_tables(problem, options)
    held = tables.stage_options
    return AtDegree(
        tables.compute_s, tables.optimizer_s, held.state_bytes, held.activation_bytes,
        held.gradient_bytes, tables.memory_bytes,
    )  # fmt: skip


def groups_in_order(
    problem: Problem, names: Sequence[str], degree: int
) -> list[tuple[str, ...]] | None:
    """Devices that follow each other as groups; None unless each is of one class on one node."""
    if len(names) % degree:
        return None
    groups = [tuple(names[start : start + degree]) for start in range(0, len(names), degree)]
    for group in groups:
        if len({(problem.device_named[n].node, problem.class_of[n]) for n in group}) > 1:
            return None
    return groups


def degrees_of(problem: Problem, asked: tuple[int, ...]) -> tuple[int, ...]:
    """Degrees of groups that some node has room for, and that split some layer; smallest first.

    Args:
        problem: The problem.
        asked: Those that are allowed; empty: all powers of two.
    """
    most = max(Counter(device.node for device in problem.cluster.devices).values())
    allowed = asked or tuple(2**index for index in range(most.bit_length()))
    return tuple(
        degree
        for degree in sorted(allowed)
        if degree == 1
        or (degree <= most and any(split_at(layer, degree) for layer in problem.profile.layers))
    )
