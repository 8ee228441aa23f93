"""Which plans torch.distributed.pipelining can express, and how it must see them."""

from __future__ import annotations

import warnings

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import Engine
from heterps_configs.errors import HeterpsError


def modules_of_engine(engine: Engine) -> tuple[str, ...]:
    """Names of what an engine imports for seconds, beside torch itself."""
    return ("torch.distributed.pipelining",) if engine == "torch" else ()


def check_torch_engine(plan: Plan, is_online: bool) -> None:
    """Refuses what the engine torch cannot do.

    Raises:
        HeterpsError: The plan cannot be expressed, or may change in mid-run.
    """
    if is_online:
        raise HeterpsError("engine torch: not with --online; torch's schedules measure no actions")
    check_expressible(plan)
    if any(stage.in_flight is not None for stage in plan.stages):
        warnings.warn(
            "torch has a rule of its own for how many micro-batches are in flight: in_flight of "
            "the plan's stages is ignored, and the step is predicted with it",
            stacklevel=2,
        )


def check_expressible(plan: Plan) -> None:
    """Refuses a plan that torch's own schedules cannot run.

    They know one chain of stages. Every stage is on one rank, all ranks have equally many, stage i
    on rank i modulo their number; micro-batches are equal.

    Raises:
        HeterpsError: With every reason.
    """
    reasons = [*_shape_reasons(plan), *_batch_reasons(plan)]
    if reasons:
        raise HeterpsError(
            "torch.distributed.pipelining cannot express this plan: "
            + "; ".join(reasons)
            + " (the engine heterps can run it)"
        )


def stage_names(plan: Plan) -> tuple[str, ...]:
    """The chain's stages from front to back."""
    return plan.pipelines[0].stages


def devices_in_order(plan: Plan) -> tuple[str, ...]:
    """Devices by rank: torch finds the rank of a stage by its number."""
    return tuple(dict.fromkeys(plan.stage(name).devices[0] for name in stage_names(plan)))


def _shape_reasons(plan: Plan) -> list[str]:
    if len(plan.pipelines) > 1:
        return [f"it has {len(plan.pipelines)} routes for its micro-batches, and torch knows one"]
    chain = [plan.stage(name) for name in stage_names(plan)]
    shared = [stage.name for stage in chain if len(stage.devices) > 1]
    if shared:
        return [f"stage {shared[0]} is on {len(plan.stage(shared[0]).devices)} devices"]
    devices = devices_in_order(plan)
    expected = [devices[number % len(devices)] for number in range(len(chain))]
    reasons = []
    if [stage.devices[0] for stage in chain] != expected or len(chain) % len(devices):
        reasons.append("its devices do not take their stages in turns, equally many each")
    if plan.job.schedule in ("1f1b", "gpipe") and len(chain) > len(devices):
        reasons.append(f"the schedule {plan.job.schedule} has one stage on each device")
    return reasons


def _batch_reasons(plan: Plan) -> list[str]:
    job = plan.job
    reasons = []
    if len(set(job.micro_batch_sizes)) > 1:
        sizes = ", ".join(str(size) for size in sorted(set(job.micro_batch_sizes)))
        reasons.append(f"its micro-batches have unequal sizes ({sizes})")
    num_devices, count = len(plan.devices), job.num_micro_batches
    if job.schedule == "1f1b" and count < len(plan.stages):
        reasons.append(f"1f1b needs a micro-batch for each of its {len(plan.stages)} stages")
    if job.schedule in ("interleaved", "zero-bubble") and count % max(1, count // num_devices):
        reasons.append(
            f"{job.schedule} needs a multiple of {max(1, count // num_devices)} micro-batches, "
            f"and there are {count}"
        )
    return reasons
