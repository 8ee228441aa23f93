"""Sailor's own cost of a plan: seconds of one iteration, and the memory that its check asks for.

With `m = ceil(global batch / (micro-batch size * replicas))` micro-batches for each replica, and
over the stages s from the front

    compute_s = forward + backward seconds of the slowest replica
    send_s    = activations to the next stage + gradients to the stage before
                (last stage: gradients twice; first stage: activations, twice beyond three stages)
    seconds   = (m - 1) max (compute_s + send_s) + sum (compute_s + send_s)
                + the slowest layer's optimizer step + the slowest gradient all-reduce

Messages are float32. Gradients are reduced in a ring over the replicas, in buckets, over the link
that one GPU of each has to the next; the slowest pair sets the pace. A pipeline whose replicas are
all alone (one replica) costs what Sailor's simulator says, to six decimals; the rule of the ring is
ours where the simulator's is not published in words.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import (
    SailorCluster,
    SailorEnd,
    SailorLayerTimes,
    SailorLinks,
    SailorModel,
    SailorShape,
)
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage
from heterps_configs.units import bytes_text

FLOAT_BYTES = 4
# Weight, gradient and two moments, and the copies that its runtime keeps for communication.
STATE_BYTES_PER_PARAMETER = 24
# What the runtime itself needs on a GPU, without and with tensor parallelism.
RUNTIME_BYTES_ALONE, RUNTIME_BYTES_PARALLEL = 2e9, 3e9
BUCKET_BYTES = 5e8
# A pipeline of at most so many stages hides one of the first stage's two messages.
SHORT_PIPELINE = 3


class SailorCost(NamedTuple):
    """What one iteration takes.

    Attributes:
        iteration_s: All of it.
        bottleneck_s: Compute and messages of the slowest stage, one micro-batch.
        all_reduce_s: Of the stage whose gradients take longest.
        memory_bytes: (S,) of the fullest GPU of each stage.
    """

    iteration_s: float
    bottleneck_s: float
    all_reduce_s: float
    memory_bytes: tuple[float, ...]


def cost_of(model: SailorModel, links: SailorLinks, plan: SailorPlan) -> SailorCost:
    """The cost of a plan.

    Raises:
        HeterpsError: A profile or a link that the plan needs was not measured, or the stages do
            not cover the layers.
    """
    _refuse_misfits(model, plan)
    busy = [_stage_s(model, links, plan, index) for index in range(len(plan.stages))]
    rounds = num_micro_batches(plan) - 1
    reduce_s = max(
        all_reduce_s(links, stage.groups, _gradient_bytes(model, stage)) for stage in plan.stages
    )
    update_s = max(
        layer.update_s
        for stage in plan.stages
        for group in stage.groups
        for layer in _layers(model, plan, stage, group)
    )
    return SailorCost(
        rounds * max(busy) + sum(busy) + update_s + reduce_s,
        max(busy),
        reduce_s,
        tuple(_memory_bytes(model, plan, index) for index in range(len(plan.stages))),
    )


def num_micro_batches(plan: SailorPlan) -> int:
    """Micro-batches of each replica."""
    replicas = len(plan.stages[0].groups)
    return math.ceil(plan.global_batch_size / (plan.micro_batch_size * replicas))


def memory_problems(model: SailorModel, cluster: SailorCluster, plan: SailorPlan) -> list[str]:
    """A line for every stage that does not fit on one of its GPU types; empty if all fit."""
    problems = []
    for index, stage in enumerate(plan.stages):
        for group in dict.fromkeys(stage.groups):
            needed = group_memory_bytes(model, plan, index, group)
            capacity = cluster.node_type(group.gpu).memory_bytes
            if needed > capacity:
                problems.append(
                    f"stage {index} on {group.gpu}: needs {bytes_text(needed)}, "
                    f"{bytes_text(needed - capacity)} more than its "
                    f"{bytes_text(capacity)}"
                )
    return problems


def group_memory_bytes(
    model: SailorModel, plan: SailorPlan, index: int, group: SailorGroup
) -> float:
    """Bytes that Sailor's check asks for on one GPU of a stage's group."""
    stage = plan.stages[index]
    sizes = model.layer_sizes(group.tensor_parallel)[stage.first_layer : stage.end_layer]
    parameters = sum(layer.parameters for layer in sizes)
    activations = sum(layer.activation_memory for layer in sizes)
    in_flight = len(plan.stages) - index
    return (
        parameters * STATE_BYTES_PER_PARAMETER
        + activations * plan.micro_batch_size * FLOAT_BYTES * in_flight
        + runtime_bytes(group.tensor_parallel)
    )


def runtime_bytes(tensor_parallel: int) -> float:
    """Bytes that the runtime itself needs on a GPU."""
    return RUNTIME_BYTES_ALONE if tensor_parallel == 1 else RUNTIME_BYTES_PARALLEL


def message_s(
    model: SailorModel,
    links: SailorLinks,
    sender: SailorGroup,
    receiver: SailorGroup,
    micro_batch_size: int,
    cut: int,
) -> float:
    """Seconds of one message over the cut before layer `cut`; gradients are as large.

    Raises:
        HeterpsError: The link was not measured.
    """
    elements = model.layer_sizes(sender.tensor_parallel)[cut - 1].output
    return links.between(SailorEnd(*sender), SailorEnd(*receiver)).send_s(
        elements * FLOAT_BYTES * micro_batch_size
    )


def all_reduce_s(links: SailorLinks, groups: tuple[SailorGroup, ...], num_bytes: float) -> float:
    """Seconds of a bucketed ring all-reduce of `num_bytes` over the groups, in their order.

    Raises:
        HeterpsError: A link of the ring was not measured.
    """
    size = len(groups)
    if size == 1:
        return 0.0
    buckets, rest = divmod(num_bytes, BUCKET_BYTES)
    slowest = 0.0
    for pair in dict.fromkeys(zip(groups, (*groups[1:], groups[0]), strict=True)):
        link = links.between(*(SailorEnd(group.gpu, 1, group.zone) for group in pair))
        steps = buckets * link.send_s(BUCKET_BYTES / size) if buckets else 0.0
        slowest = max(slowest, steps + link.send_s(rest / size))
    return 2 * (size - 1) * slowest


def _refuse_misfits(model: SailorModel, plan: SailorPlan) -> None:
    ends = [0, *(stage.end_layer for stage in plan.stages)]
    starts = [*(stage.first_layer for stage in plan.stages), model.num_layers]
    if ends != starts or any(stage.first_layer >= stage.end_layer for stage in plan.stages):
        raise HeterpsError(f"the stages must cover the {model.num_layers} layers of {model.name}")
    if len({len(stage.groups) for stage in plan.stages}) != 1:
        raise HeterpsError("every stage must have the same number of replicas")


def _stage_s(model: SailorModel, links: SailorLinks, plan: SailorPlan, index: int) -> float:
    """Compute and messages of one micro-batch on a stage."""
    stage = plan.stages[index]
    compute = max(
        sum(layer.forward_s + layer.backward_s for layer in _layers(model, plan, stage, group))
        for group in stage.groups
    )
    if len(plan.stages) == 1:
        return compute
    first, last = index == 0, index == len(plan.stages) - 1
    sends = 0.0
    if not last:
        twice = first and len(plan.stages) > SHORT_PIPELINE
        behind = plan.stages[index + 1]
        sends += (2 if twice else 1) * _slowest_message_s(
            model, links, plan, stage, behind, stage.end_layer
        )
    if not first:
        before = plan.stages[index - 1]
        sends += (2 if last else 1) * _slowest_message_s(
            model, links, plan, stage, before, stage.first_layer
        )
    return compute + sends


def _slowest_message_s(
    model: SailorModel,
    links: SailorLinks,
    plan: SailorPlan,
    sender: SailorStage,
    receiver: SailorStage,
    cut: int,
) -> float:
    """The slowest message of the replicas, each of which sends to its own counterpart."""
    pairs = dict.fromkeys(zip(sender.groups, receiver.groups, strict=True))
    return max(message_s(model, links, *pair, plan.micro_batch_size, cut) for pair in pairs)


def _gradient_bytes(model: SailorModel, stage: SailorStage) -> float:
    return max(
        FLOAT_BYTES * sum(layer.parameters for layer in sizes[stage.first_layer : stage.end_layer])
        for sizes in (model.layer_sizes(group.tensor_parallel) for group in stage.groups)
    )


def _memory_bytes(model: SailorModel, plan: SailorPlan, index: int) -> float:
    groups = dict.fromkeys(plan.stages[index].groups)
    return max(group_memory_bytes(model, plan, index, group) for group in groups)


def _layers(
    model: SailorModel, plan: SailorPlan, stage: SailorStage, group: SailorGroup
) -> tuple[SailorLayerTimes, ...]:
    shape = SailorShape(group.gpu, plan.micro_batch_size, group.tensor_parallel)
    return model.layer_times(shape)[stage.first_layer : stage.end_layer]
