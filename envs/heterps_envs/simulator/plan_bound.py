"""A lower bound of the step time of one plan, whatever the order of its passes.

A device d begins its first pass when the first micro-batch can be there, runs all its passes and
its optimizer step, and after its last backward pass of some stage a gradient still has to travel to
the front:

    step >= min over its stages and routes of sum over stages j in front of (F_j + X_j)
          + sum of its passes + optimizer
    step >= the same without the optimizer
          + min over its stages and routes of sum over stages j in front of (X_j + B_j)

In a zero-bubble schedule the last pass may be one that nobody waits for, so that the second line
has only the passes that compute gradients of inputs: forward and `backward-input` of the device,
and `backward-input` of the stages in front.

Proof. A pass of stage s on a route runs after the forward passes and messages in front of it. The
passes of one device exclude each other. The last pass of a device that sends a gradient, or is in
front, is the backward pass of some stage on some route: what is in front of that stage follows, one
after the other. Waiting for links, for receives, for other passes of a node, and all-reduces only
add to that. On the way there and back the seconds are those of a route's smallest micro-batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.compiled import kernel
from heterps_envs.schedule.plan_arrays import PlanArrays
from heterps_envs.simulator.prepared import PreparedPlan

# A step that is no more above its bound has nothing left to win.
CLOSE = 1.002


def least_step_time_s(prepared: PreparedPlan) -> float:
    """No schedule simulates the plan in less; for all four kinds of schedules.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    arrays = prepared.arrays
    is_split = prepared.plan.job.schedule == "zero-bubble"
    arrival_s, exit_s, work_s, urgent_s = _seconds(arrays, 2 if is_split else 1)
    work_s += urgent_s
    ends = np.maximum(work_s + arrays.optimizer_s, urgent_s + exit_s)
    begin_s = np.maximum(arrays.step_s, arrays.step_s.min() + arrival_s)
    return float((begin_s + ends).max())


def _seconds(arrays: PlanArrays, backward: int) -> Floats:
    """(4, D) from the front to a device and back, of passes that may be put off, and of others."""
    num_routes = len(arrays.first_stage)
    least = np.full(num_routes, np.inf)
    np.minimum.at(least, arrays.pipeline_of, arrays.share)
    total = np.bincount(arrays.pipeline_of, arrays.share, num_routes)
    count = np.bincount(arrays.pipeline_of, minlength=num_routes)
    found = np.zeros((4, len(arrays.action_s)))
    found[:2] = np.inf
    _walk(
        arrays.first_stage,
        arrays.behind,
        arrays.stage_device,
        arrays.pass_s,
        arrays.action_s,
        arrays.output_bytes,
        arrays.latency_s,
        arrays.s_per_byte,
        np.stack([least, total, count.astype(float)]),
        backward,
        found,
    )
    return found


@kernel
def _walk(
    first_stage: Any, behind: Any, stage_device: Any, pass_s: Any, action_s: Any,
    output_bytes: Any, latency_s: Any, s_per_byte: Any, shares: Any, backward: int, found: Any,
) -> None:  # fmt: skip
    """Goes along all routes; `shares` are the least of each, their sum, and how many."""
    for route in range(len(first_stage)):
        share, total, count = shares[0, route], shares[1, route], shares[2, route]
        stage, there_s, back_s = first_stage[route], 0.0, 0.0
        while stage >= 0:
            device, following = stage_device[stage], behind[route, stage]
            host_s = action_s[device] * count
            found[0, device] = min(found[0, device], there_s)
            found[1, device] = min(found[1, device], back_s)
            if backward == 2:
                found[2, device] += total * pass_s[stage, 3] + host_s
            found[3, device] += total * (pass_s[stage, 0] + pass_s[stage, backward]) + 2 * host_s
            there_s += share * pass_s[stage, 0] + action_s[device]
            back_s += share * pass_s[stage, backward] + action_s[device]
            if following >= 0 and stage_device[following] != device:
                to, num_bytes = stage_device[following], share * output_bytes[stage]
                there_s += latency_s[device, to] + num_bytes * s_per_byte[device, to]
                back_s += latency_s[to, device] + num_bytes * s_per_byte[to, device]
            stage = following
