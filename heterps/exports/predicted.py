"""What a target makes of a plan that it cannot express, as the simulator sees it."""

from __future__ import annotations

import math
from dataclasses import replace

from heterps.exports.shape import first_chain
from heterps.reports.console import percent_text
from heterps_configs.documents.plan import Bound, Pipeline, Plan
from heterps_envs.engines.buffered_messages import passes_end_s
from heterps_envs.engines.deepspeed_order import deepspeed_order
from heterps_envs.engines.megatron_runs import MESSAGE_BUFFER_BYTES_PER_GPU
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import plan_arrays
from heterps_envs.schedule.reduce_buckets import reduce_buckets, reduce_s
from heterps_envs.simulator.simulate import estimate


def samples_per_s_one_by_one(problem: Problem, plan: Plan) -> float:
    """Throughput where one micro-batch is on its way at a time, through the first pipeline."""
    job = problem.job
    alone = job.changed(
        global_batch_size=job.micro_batch_size, unequal_micro_batch_sizes=None, schedule="gpipe"
    )
    stages = tuple(stage.changed(in_flight=None) for stage in first_chain(plan))
    single = plan.changed(
        job=alone,
        stages=stages,
        pipelines=(Pipeline(stages=tuple(s.name for s in stages), micro_batches=(0,)),),
        sharded_state=(),
        bound=Bound(),
    )
    found = estimate(replace(problem, job=alone), single)
    return job.micro_batch_size / found.step_time_s


def one_by_one_text(problem: Problem, plan: Plan) -> str:
    """What accelerate makes of a plan."""
    predicted = cost_text(problem, plan, samples_per_s_one_by_one(problem, plan))
    return f"accelerate lets one micro-batch at a time through its devices: {predicted}"


def samples_per_s_of_deepspeed(problem: Problem, plan: Plan) -> float:
    """Throughput in DeepSpeed's order of passes and messages, with all sums of gradients behind it.

    Every stage has one device of its own.
    """
    buffers = {
        device.name: math.inf if device.type.kind == "cpu" else MESSAGE_BUFFER_BYTES_PER_GPU
        for device in problem.cluster.devices
    }
    end_s = passes_end_s(problem, plan, deepspeed_order(plan), buffers, {})
    for bucket in reduce_buckets(problem, plan):
        done_s = max(end_s[name] for name in bucket.devices) + reduce_s(problem, bucket)
        end_s.update(dict.fromkeys(bucket.devices, done_s))
    arrays = plan_arrays(problem, plan)
    devices = [group[0] for group in plan.device_groups]
    optimizer_s = dict(zip(devices, arrays.optimizer_s.tolist(), strict=True))
    step_time_s: float = max(end_s[name] + optimizer_s[name] for name in devices)
    return problem.job.global_batch_size / step_time_s


def kept_texts(problem: Problem, plan: Plan, recomputes: bool = True) -> tuple[str, ...]:
    """What it means that a target keeps activations where and as long as its own rule says.

    Args:
        problem: What the plan answers.
        plan: Whose activations are meant.
        recomputes: Whether the target computes layers again; none offloads activations.
    """
    changes = {"offloaded_layers": "offloads"}
    if not recomputes:
        changes["recompute_layers"] = "computes again"
    told = [
        f"{verb} ({count} layers)"
        for field, verb in changes.items()
        if (count := sum(len(getattr(stage, field)) for stage in plan.stages))
    ]
    own: tuple[str, ...] = ()
    if any(stage.in_flight is not None for stage in plan.stages):
        own = ("how many micro-batches are in flight is left to the target's own rule",)
    if not told:
        return own
    without = {**dict.fromkeys(changes, ()), "in_flight": None}
    stages = tuple(stage.changed(**without) for stage in plan.stages)
    needed = estimate(problem, plan.changed(stages=stages, bound=Bound())).memory_bytes
    short = [name for name, size in needed.items() if size > problem.usable_bytes(name)]
    lacks = f"memory is predicted to lack on {', '.join(short)}" if short else "they fit there"
    return (f"activations that the plan {' or '.join(told)} stay on their devices: {lacks}", *own)


def cost_text(problem: Problem, plan: Plan, samples_per_s: float) -> str:
    """What is predicted, beside the plan's own throughput."""
    own = estimate(problem, plan).throughput_samples_per_s
    return (
        f"predicted {samples_per_s:.4g} samples/s instead of the plan's {own:.4g} "
        f"({percent_text(samples_per_s / own - 1, 1, is_change=True)})"
    )
