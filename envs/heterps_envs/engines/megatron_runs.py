"""Step time of a plan as Megatron-DeepSpeed runs it on GPUs, from Sailor's profiles and links.

What is added to layer times and links, each a fact of the software and not fitted on step times:

* DeepSpeed's order of passes and messages (`heterps_envs.engines.deepspeed_order`).
* NCCL's buffers (`heterps_envs.engines.buffered_messages`): between two nodes it opens two channels
for
  each pair of GPUs, with eight steps of `NCCL_P2P_NET_CHUNKSIZE` (128 KiB) each.
* Messages travel in shares, one for each GPU of a tensor-parallel group; the receivers put them
  together with an all-gather inside their node, which they must wait for.
* Gradients are reduced after the last pass, not overlapped. Every GPU of a group has a ring of its
  own with its counterparts in the other replicas, and all rings of a node share its network card:
  behind a slow card, eight rings take eight times as long as one.
* Replicas of unequal GPUs only meet at the all-reduce: the slowest one counts, once a step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorLink, SailorLinks, SailorModel
from heterps_configs.importers.sailor_problem import (
    FLOAT_BYTES,
    bounded_send_s,
    device_names,
    group_link_s,
    to_documents,
)
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage
from heterps_envs.engines.buffered_messages import passes_end_s
from heterps_envs.engines.deepspeed_order import deepspeed_order
from heterps_envs.problem import Problem

# NCCL's defaults for point-to-point messages between nodes: channels, steps, bytes of a step.
MESSAGE_BUFFER_BYTES_PER_GPU = 2 * 8 * 131072


@dataclass(frozen=True)
class MegatronSetting:
    """What predictions rest on.

    Attributes:
        intra_node: Links inside a node by GPU type and number of GPUs.
        bandwidth_share: What a training run reaches of the bandwidth between nodes that the link
            tables say.
    """

    model: SailorModel
    links: SailorLinks
    intra_node: Mapping[tuple[str, int], SailorLink]
    bandwidth_share: float = 1.0


def predicted_step_s(setting: MegatronSetting, plan: SailorPlan) -> float:
    """Seconds of one step.

    Raises:
        HeterpsError: A profile or a link that the plan needs was not measured.
    """
    documents = to_documents(setting.model, setting.links, plan, setting.bandwidth_share)
    problem = Problem(documents.profile, documents.cluster, documents.job)
    end_s = passes_end_s(
        problem,
        documents.plan,
        deepspeed_order(documents.plan),
        {
            _first(index, replica, group): MESSAGE_BUFFER_BYTES_PER_GPU * group.tensor_parallel
            for index, stage in enumerate(plan.stages)
            for replica, group in enumerate(stage.groups)
        },
        _gather_s(setting, plan),
    )
    return max(
        max(end_s[_first(index, replica, group)] for replica, group in enumerate(stage.groups))
        + reduce_s(setting, stage)
        + _optimizer_s(problem, index, stage)
        for index, stage in enumerate(plan.stages)
    )


def _first(stage: int, replica: int, group: SailorGroup) -> str:
    """The GPU that stands for a group."""
    return device_names(stage, replica, group)[0]


def reduce_s(setting: MegatronSetting, stage: SailorStage) -> float:
    """Seconds of the gradient all-reduce of a stage's replicas: a ring for each GPU of a group.

    A ring of k replicas moves 2 (k - 1) / k of the gradients of a GPU (float32) over every link, in
    pieces of a k-th; the slowest link sets the pace.

    Raises:
        HeterpsError: A link of the ring was not measured.
    """
    groups, size = stage.groups, len(stage.groups)
    if size == 1:
        return 0.0
    if len({group.tensor_parallel for group in groups}) != 1:
        raise HeterpsError("replicas of different tensor-parallel degrees cannot be reduced")
    layers = setting.model.layer_sizes(groups[0].tensor_parallel)
    parameters = sum(layer.parameters for layer in layers[stage.first_layer : stage.end_layer])
    piece_bytes = FLOAT_BYTES * parameters / size
    slowest_s = max(
        group_link_s(setting.links, a, b, piece_bytes)
        for a, b in dict.fromkeys(pairwise((*groups, groups[0])))
    )
    return 2 * (size - 1) * slowest_s / setting.bandwidth_share


def _gather_s(setting: MegatronSetting, plan: SailorPlan) -> dict[str, float]:
    """By device, the all-gather that puts a received message together.

    The stage in front of a cut and the one behind it receive messages of the same size. A stage in
    the middle has two cuts, with messages of the same size in a transformer: the larger counts.
    """
    seconds: dict[str, float] = {}
    for index, (front, behind) in enumerate(pairwise(plan.stages)):
        output = setting.model.layer_sizes(1)[front.end_layer - 1].output
        num_bytes = output * FLOAT_BYTES * plan.micro_batch_size
        for at, stage in ((index, front), (index + 1, behind)):
            for replica, group in enumerate(stage.groups):
                name = _first(at, replica, group)
                gather_s = all_gather_s(setting.intra_node, group, num_bytes)
                seconds[name] = max(seconds.get(name, 0.0), gather_s)
    return seconds


def all_gather_s(
    intra_node: Mapping[tuple[str, int], SailorLink], group: SailorGroup, num_bytes: float
) -> float:
    """Seconds in which the GPUs of a group put `num_bytes` together, of which each has a share.

    The table holds the bandwidth of all n / 2 pairs of the n GPUs together; in the ring every GPU
    sends the other n - 1 shares over its own part of that.

    Raises:
        HeterpsError: Nobody measured the link inside the node.
    """
    count = group.tensor_parallel
    if count == 1:
        return 0.0
    if (group.gpu, count) not in intra_node:
        raise HeterpsError(f"no link between {count} x {group.gpu} inside a node")
    share_bytes = num_bytes / count
    pairs = count / 2
    return (count - 1) * pairs * bounded_send_s(intra_node[group.gpu, count], share_bytes)


def _optimizer_s(problem: Problem, index: int, stage: SailorStage) -> float:
    """The optimizer step of the slowest replica."""
    layers, found = slice(stage.first_layer, stage.end_layer), []
    for replica, group in enumerate(stage.groups):
        own = problem.at_degree(group.tensor_parallel)
        kind = problem.class_of[_first(index, replica, group)]
        found.append(float(own.layer_times.optimizer_s[layers, kind].sum()))
    return max(found)
