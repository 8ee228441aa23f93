"""What a plan means for a user's own model: the same cuts, in a run specification."""

from __future__ import annotations

import warnings

import torch

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_configs.library import load_cluster, load_profile
from heterps_runtime.specification.devices import CPU, available_device, torch_devices
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.tracing.trace import trace_source

# Of a cluster that is not at hand: only the order of the action lists depends on it.
_FLOPS_PER_S, _BYTES_PER_S, _MEMORY_BYTES = 1e12, 1e10, 2**50


def specification_of(plan: Plan, source: ModelSource, seed: int) -> RunSpecification:
    """The action lists and everything else that ranks need.

    Args:
        plan: Its stages and its job are used.
        source: The model.
        seed: Of initial parameters and dropout.

    Raises:
        PlanMismatchError: The model has another number of layers than the plan.
        HeterpsError: The model cannot be built or traced, or a group of the plan cannot split it.
    """
    # Imported here, since ranks above 0 need neither numba nor the simulator.
    from heterps_envs.problem import Problem
    from heterps_envs.schedule.build import build_schedule
    from heterps_runtime.specification.build import build_specification, check_runnable

    profile = trace_source(source, plan.model, plan.job.dtype)
    _check_model(plan, profile)
    plan = plan.changed(model_fingerprint=profile.layers_fingerprint())
    problem = Problem(profile, _cluster_of(plan), plan.job)
    check_runnable(problem, plan)
    schedule = build_schedule(problem, plan)
    settings = RunSettings(steps=1, seed=seed)
    specification = build_specification(problem, plan, schedule, settings, devices=plan.devices)
    return specification.changed(emulation=None)


def compute_device(plan: Plan, rank: int, chosen: str | torch.device | None) -> torch.device:
    """Where a rank computes.

    Args:
        plan: Its cluster, where that is at hand, says which devices are GPUs.
        rank: Of the device of the plan.
        chosen: A user's own choice.

    Raises:
        HeterpsError: The host has no such device.
    """
    if chosen is not None:
        device = available_device(str(torch.device(chosen)))
        if device.type != torch.device(chosen).type:
            raise HeterpsError(f"device: {chosen} is not at hand; torch finds no CUDA device")
        return device
    cluster = _known_cluster(plan)
    return CPU if cluster is None else available_device(torch_devices(cluster, plan.devices)[rank])


def check_world(plan: Plan, world_size: int) -> None:
    """Refuses another number of processes than the plan has devices.

    Raises:
        HeterpsError: With the number to start.
    """
    if world_size != len(plan.devices):
        raise HeterpsError(
            f"the plan is for {len(plan.devices)} processes ({', '.join(plan.devices)}) and "
            f"{world_size} started; use torchrun --nproc-per-node {len(plan.devices)}"
        )


def _cluster_of(plan: Plan) -> Cluster:
    """The plan's cluster where it can be found, else one of equal devices."""
    found = _known_cluster(plan)
    if found is not None:
        return found
    if plan.cluster_reference:
        warnings.warn(
            f"the cluster {plan.cluster_reference!r} is not at hand: micro-batches are ordered "
            "as for equal devices",
            stacklevel=2,
        )
    kind = DeviceType(
        name="device",
        kind="cpu",
        memory_bytes=_MEMORY_BYTES,
        peak_flops_per_s={"float32": _FLOPS_PER_S},
        memory_bandwidth_bytes_per_s=_BYTES_PER_S,
        price_usd_per_hour=0.0,
    )
    node = Node(
        name="node",
        devices=tuple(DeviceGroup(name=name, type=kind.name) for name in plan.devices),
        link=Link(latency_s=1e-5, bandwidth_bytes_per_s=_BYTES_PER_S),
    )
    return Cluster(name=plan.cluster, device_types=(kind,), nodes=(node,))


def _known_cluster(plan: Plan) -> Cluster | None:
    """The plan's cluster; None where it is not at hand, or has other devices."""
    if not plan.cluster_reference:
        return None
    try:
        found = load_cluster(plan.cluster_reference)
    except HeterpsError:
        return None
    return found if set(plan.devices) <= {device.name for device in found.devices} else None


def _check_model(plan: Plan, profile: ModelProfile) -> None:
    """Refuses a plan of another model.

    A plan that was written by hand has no fingerprint: only the number of layers is compared.
    Where the fingerprints differ and the plan's own profile is at hand, what counts is whether the
    layers have the same names and parameters: costs also depend on inputs and loss.

    Raises:
        PlanMismatchError: It has other layers.
    """
    shown = f"this model has {profile.num_layers}"
    if profile.num_layers != plan.num_layers:
        raise PlanMismatchError(
            f"the plan was made for {plan.model!r} with {plan.num_layers} layers; "
            f"{shown}: {profile.layers[0].name} .. {profile.layers[-1].name}"
        )
    if plan.model_fingerprint in ("", profile.layers_fingerprint()):
        return
    try:
        expected = load_profile(plan.model_reference or plan.model).layers
    except HeterpsError:
        expected = ()
    if len(expected) != plan.num_layers:
        raise PlanMismatchError(
            f"the plan was made for another model than this one: {plan.model!r} has the "
            f"fingerprint {plan.model_fingerprint}, this one {profile.layers_fingerprint()}; "
            "plan anew, or leave model_fingerprint empty in the plan"
        )
    for index, (layer, own) in enumerate(zip(expected, profile.layers, strict=True)):
        if (layer.name, layer.num_parameters) != (own.name, own.num_parameters):
            raise PlanMismatchError(
                f"the plan was made for {plan.model!r}, whose layer {index} is {layer.name} with "
                f"{layer.num_parameters} parameters; in this model it is {own.name} with "
                f"{own.num_parameters}"
            )
