"""What a plan means for a user's own model: the same cuts, in a run specification."""

from __future__ import annotations

import warnings

from heterps_configs.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.device import DeviceType
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_configs.library import load_cluster
from heterps_configs.model_profile import ModelSource
from heterps_configs.plan import Plan
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.trace import trace_source

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
        HeterpsError: The model cannot be built or traced.
    """
    # Imported here, since ranks above 0 need neither numba nor the simulator.
    from heterps_envs.problem import Problem
    from heterps_envs.schedule import build_schedule
    from heterps_runtime.specification_builder import build_specification, check_runnable

    profile = trace_source(source, plan.model, plan.job.dtype)
    if profile.num_layers != plan.num_layers:
        raise PlanMismatchError(
            f"the plan was made for {plan.model!r} with {plan.num_layers} layers; "
            f"this model has {profile.num_layers}: {profile.layers[0].name} .. "
            f"{profile.layers[-1].name}"
        )
    plan = plan.model_copy(update={"model_fingerprint": profile.layers_fingerprint()})
    problem = Problem(profile, _cluster_of(plan), plan.job)
    check_runnable(problem, plan)
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, devices=plan.devices, num_steps=1, seed=seed
    )
    return specification.model_copy(update={"emulation": None})


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
    if plan.cluster_reference:
        try:
            found = load_cluster(plan.cluster_reference)
        except HeterpsError:
            warnings.warn(
                f"the cluster {plan.cluster_reference!r} is not at hand: micro-batches are ordered "
                "as for equal devices",
                stacklevel=2,
            )
        else:
            if set(plan.devices) <= {device.name for device in found.devices}:
                return found
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
