"""A plan of Sailor's as documents of ours: profile, cluster, job and plan.

A tensor-parallel group of GPUs stands on a node of its own: its layer times were measured at that
degree, its link to another group is that of all its GPUs together, because every GPU of the group
sends its share of a message at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, LinkOverride, Node
from heterps_configs.documents.cluster_problems import group_device_names
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.sailor import SailorEnd, SailorLink, SailorLinks, SailorModel
from heterps_configs.importers.sailor_gpus import sailor_gpu
from heterps_configs.importers.sailor_profile import sailor_layers
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan
from heterps_configs.importers.sailor_times import group_times

FLOAT_BYTES = 4
# Groups stand on nodes of their own, so nothing travels over a node's own link.
_UNUSED = Link(latency_s=0.0, bandwidth_bytes_per_s=1e15)


class SailorDocuments(NamedTuple):
    """What the simulated world needs for a plan.

    Stage s of replica r is called `s{s}-r{r}`, and so is its node; see `device_names`.
    """

    profile: ModelProfile
    cluster: Cluster
    job: Job
    plan: Plan


def to_documents(
    model: SailorModel, links: SailorLinks, plan: SailorPlan, bandwidth_share: float = 1.0
) -> SailorDocuments:
    """The documents of a plan.

    Args:
        model: Times and sizes.
        links: Between nodes.
        plan: What runs.
        bandwidth_share: What a training run reaches of the bandwidth that the link tables say.

    Raises:
        HeterpsError: A profile or a link that the plan needs was not measured.
    """
    job = Job(
        global_batch_size=plan.global_batch_size,
        micro_batch_size=plan.micro_batch_size,
        dtype="float32",
        optimizer="adamw",
        schedule="1f1b",
        overlaps_reduce=False,  # the engine sums gradients after its last pass
    )
    profile = _profile(model, plan)
    return SailorDocuments(
        profile, _cluster(model, links, plan, bandwidth_share), job, _plan(profile, job, plan)
    )


def stage_name(stage: int, replica: int) -> str:
    """Name of a stage of a replica, and of its node."""
    return f"s{stage}-r{replica}"


def device_names(stage: int, replica: int, group: SailorGroup) -> tuple[str, ...]:
    """Names of the GPUs of a stage of a replica; in actions the first stands for all."""
    return tuple(group_device_names(stage_name(stage, replica), group.tensor_parallel))


def group_link_s(
    links: SailorLinks, sender: SailorGroup, receiver: SailorGroup, bytes_per_gpu: float
) -> float:
    """Seconds in which every GPU of a group sends `bytes_per_gpu` to its counterpart.

    Sailor's table gives, for n GPUs on each side, the bandwidth of all n together when each sends
    a message of the size asked for (its benchmark divides the bytes of all pairs by the time), and
    it never exceeded the largest value that was measured. So where the GPUs of a node share one
    network card, the table knows it, and n messages take n times as long as one.

    Raises:
        HeterpsError: The link was not measured.
    """
    link = links.between(SailorEnd(*sender), SailorEnd(*receiver))
    return sender.tensor_parallel * bounded_send_s(link, bytes_per_gpu)


def bounded_send_s(link: SailorLink, num_bytes: float) -> float:
    """Seconds of a message, at no more than the largest bandwidth that was measured."""
    return max(link.send_s(num_bytes), num_bytes / link.max_bytes_per_s)


def _groups(plan: SailorPlan) -> Iterator[tuple[str, SailorGroup]]:
    for index, stage in enumerate(plan.stages):
        for replica, group in enumerate(stage.groups):
            yield stage_name(index, replica), group


def _profile(model: SailorModel, plan: SailorPlan) -> ModelProfile:
    """Layers as one GPU without tensor parallelism has them; times of the groups of the plan."""
    measurements = []
    kinds = {(group.gpu, group.tensor_parallel): group for _, group in _groups(plan)}
    for group in kinds.values():
        times = group_times(model, group, plan.micro_batch_size)
        measurements.append(
            Measurement(
                device_type=group.gpu,
                tensor_parallel=group.tensor_parallel,
                micro_batch_size=plan.micro_batch_size,
                forward_s=tuple(layer.forward_s for layer in times),
                backward_s=tuple(layer.backward_s for layer in times),
                optimizer_s=tuple(layer.update_s for layer in times),
            )
        )
    return ModelProfile(
        name=model.name,
        description="imported from Sailor's profiles",
        dtype="float32",
        layers=sailor_layers(model),
        measurements=tuple(measurements),
    )


def _cluster(
    model: SailorModel, links: SailorLinks, plan: SailorPlan, bandwidth_share: float
) -> Cluster:
    overrides = tuple(_overrides(model, links, plan, bandwidth_share))
    groups = dict(_groups(plan))
    return Cluster(
        name="sailor",
        device_types=tuple(map(_device_type, dict.fromkeys(g.gpu for g in groups.values()))),
        nodes=tuple(
            Node(
                name=name,
                devices=(DeviceGroup(name=name, type=group.gpu, count=group.tensor_parallel),),
                link=_UNUSED,
            )
            for name, group in groups.items()
        ),
        # Groups that are no neighbours in a pipeline exchange no messages.
        inter_node_link=_UNUSED,
        link_overrides=overrides,
    )


def _overrides(
    model: SailorModel, links: SailorLinks, plan: SailorPlan, bandwidth_share: float
) -> Iterator[LinkOverride]:
    """The links between neighbours, at the size of the one message that travels there."""
    for index, (front, behind) in enumerate(pairwise(plan.stages)):
        if len(front.groups) != len(behind.groups):
            raise HeterpsError("every stage must have the same number of replicas")
        output = model.layer_sizes(1)[front.end_layer - 1].output
        num_bytes = output * FLOAT_BYTES * plan.micro_batch_size
        for replica, (sender, receiver) in enumerate(zip(front.groups, behind.groups, strict=True)):
            forth, back = (
                Link(
                    latency_s=0.0,
                    bandwidth_bytes_per_s=bandwidth_share
                    * num_bytes
                    / group_link_s(links, a, b, num_bytes / a.tensor_parallel),
                )
                for a, b in ((sender, receiver), (receiver, sender))
            )
            ends = (stage_name(index, replica), stage_name(index + 1, replica))
            yield LinkOverride(between=ends, link=forth, reverse_link=back)


def _device_type(gpu: str) -> DeviceType:
    figures = sailor_gpu(gpu)
    return DeviceType(
        name=gpu,
        memory_bytes=2**60,  # memory is not judged here
        peak_flops_per_s={"float32": figures.float32_flops_per_s},
        memory_bandwidth_bytes_per_s=figures.memory_bandwidth_bytes_per_s,
        price_usd_per_hour=0.0,
    )


def _plan(profile: ModelProfile, job: Job, plan: SailorPlan) -> Plan:
    replicas = range(len(plan.stages[0].groups))
    stages = tuple(
        Stage(
            name=stage_name(index, replica),
            first_layer=stage.first_layer,
            last_layer=stage.end_layer - 1,
            devices=device_names(index, replica, group),
        )
        for index, stage in enumerate(plan.stages)
        for replica, group in enumerate(stage.groups)
    )
    per_replica = math.ceil(job.num_micro_batches / len(replicas))
    pipelines = tuple(
        Pipeline(
            stages=tuple(stage_name(index, replica) for index in range(len(plan.stages))),
            micro_batches=tuple(
                range(job.num_micro_batches)[replica * per_replica : (replica + 1) * per_replica]
            ),
        )
        for replica in replicas
    )
    return Plan(
        model=profile.name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster="sailor",
        job=job,
        stages=stages,
        pipelines=pipelines,
    )
