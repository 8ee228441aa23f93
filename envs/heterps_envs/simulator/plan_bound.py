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

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.schedule.plan_arrays import PlanArrays
from heterps_envs.simulator.prepared import PreparedPlan


def least_step_time_s(prepared: PreparedPlan) -> float:
    """No schedule simulates the plan in less; for all four kinds of schedules.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    arrays = prepared.arrays
    is_split = prepared.plan.job.schedule == "zero-bubble"
    backward = 2 if is_split else 1
    num_devices = len(arrays.action_s)
    arrival_s, exit_s = np.full((2, num_devices), np.inf)
    work_s, urgent_s = np.zeros((2, num_devices))
    for route in range(len(arrays.first_stage)):
        shares = arrays.share[arrays.pipeline_of == route]
        _ways(arrays, route, float(shares.min()), backward, arrival_s, exit_s)
        stage = int(arrays.first_stage[route])
        while stage >= 0:
            device = arrays.stage_device[stage]
            seconds, host_s = arrays.pass_s[stage], arrays.action_s[device] * len(shares)
            urgent_s[device] += shares.sum() * (seconds[0] + seconds[backward]) + 2 * host_s
            late = shares.sum() * seconds[3] + host_s if is_split else 0.0
            work_s[device] += late
            stage = int(arrays.behind[route, stage])
    work_s += urgent_s
    ends = np.maximum(work_s + arrays.optimizer_s, urgent_s + exit_s)
    begin_s = np.maximum(arrays.step_s, arrays.step_s.min() + arrival_s)
    return float((begin_s + ends).max())


def _ways(
    arrays: PlanArrays, route: int, share: float, backward: int, arrival_s: Floats, exit_s: Floats
) -> None:
    """Lowers, for each device of a route, the seconds from the front to it and back."""
    stage, there_s, back_s = int(arrays.first_stage[route]), 0.0, 0.0
    while stage >= 0:
        device = arrays.stage_device[stage]
        arrival_s[device] = min(arrival_s[device], there_s)
        exit_s[device] = min(exit_s[device], back_s)
        following = int(arrays.behind[route, stage])
        there_s += share * arrays.pass_s[stage, 0] + arrays.action_s[device]
        back_s += share * arrays.pass_s[stage, backward] + arrays.action_s[device]
        to = arrays.stage_device[following]
        if following >= 0 and to != device:
            num_bytes = share * arrays.output_bytes[stage]
            there_s += arrays.latency_s[device, to] + num_bytes * arrays.s_per_byte[device, to]
            back_s += arrays.latency_s[to, device] + num_bytes * arrays.s_per_byte[to, device]
        stage = following
