"""Simulator: times the action lists of a plan, action by action, and says what the plan costs.

What is modelled is what `heterps_runtime.execution.executor` does. A pass takes the seconds of the
cost tables and its host's `action_s`; a step begins after `step_s`. A send returns at once. The
link between two devices carries one message at a time in each direction: it occupies the link for
bytes / bandwidth, and arrives a latency later. A message leaves only when its receiver has asked
for it (rendezvous): a device asks for its next receives, in the order of its list, up to
`posted_ahead` beyond those it has done. The first ones it asks for in time, those after them when
it has done another receive, and the sender knows a latency later. Before a backward pass a device
waits for its forward send of the same micro-batch, but a gradient only comes back when that has
arrived. A gradient all-reduce is a ring over its devices and starts when all of them are there.
Where the job overlaps it, it starts as soon as its gradients are complete on all of them, within
the last pass that adds to them; devices go on, one all-reduce at a time on each in the order of its
list, and wait before the optimizer step.

Passes of processes that share a node's cores slow each other down as `slowdown_together` says, for
as long as they run together (fluid sharing). An optimizer step beside passes is slowed as they are;
of several at a time each is slowed by `optimizer_slowdown_together` over `slowdown_together` more.

A tensor-parallel group is one resource: its devices run each pass together, in the seconds of the
one with the largest share, which hold the sums over the group. All devices of a group have all that
it sends, so each device of a group that receives gets its copy once: device j from device j of the
sender, counted round; where the sender is smaller, copies follow each other on its links.
Where optimizer state is sharded over replicas, each sums its part of the gradients, steps it, and
gathers the others' parts after the step, when all of them are there.

Emulated devices sleep to a deadline: no host time, no sharing, and messages between them and to
others arrive by the sender's stamp, whether the receiver has asked or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from heterps_configs.arguments import check_number, check_type
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import DocumentError, HeterpsError, UnknownNameError
from heterps_configs.units import bytes_text
from heterps_envs.closed_form.objective import TIE_BREAK_USD_PER_HOUR
from heterps_envs.closed_form.placement import closed_form_of_plan_s, placement_of
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.group_memory import (
    curves_of_devices,
    peak_memory_bytes,
    timelines_by_rank,
)
from heterps_envs.simulator.interval import calibration_notes, layer_times_label, step_time_interval
from heterps_envs.simulator.missing_links import missing_links
from heterps_envs.simulator.notes import simulation_notes, strategy_notes
from heterps_envs.simulator.prepared import PreparedPlan


def simulate(
    problem: Problem,
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    slowdown: Mapping[str, float] | None = None,
) -> Estimate:
    """Runs one step of a plan, with its timeline.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        schedule: Its action lists; by default `build_schedule(problem, plan)`.
        slowdown: For each device name a factor on its forward, backward and optimizer seconds.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
        DocumentError: Fields of the plan contradict each other: it was changed unchecked.
        HeterpsError: An argument is of a wrong type.
    """
    factors = {} if slowdown is None else _checked_slowdown(problem, slowdown)
    return _estimate(problem, plan, schedule, factors, with_timeline=True)


def _checked_slowdown(problem: Problem, slowdown: Mapping[str, float]) -> Mapping[str, float]:
    check_type("slowdown", slowdown, Mapping, "factors by the names of devices")
    for name, factor in slowdown.items():
        if name not in problem.device_named:
            raise UnknownNameError("device", str(name), problem.device_named)
        check_number(f"slowdown of {name}", factor, "a finite number above 0")
        if not 0 < factor < math.inf:
            raise HeterpsError(f"slowdown of {name} {factor:g}: expected a finite number above 0")
    return slowdown


def estimate(
    problem: Problem,
    plan: Plan,
    with_timeline: bool = False,
    with_interval: bool = False,
    with_memory: bool = False,
) -> Estimate:
    """Simulates one step of a plan.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        with_timeline: Keep every action.
        with_interval: Where layer times are estimates, say how sure the step time is (two more
            simulations).
        with_memory: Keep the memory curve of every device.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
        DocumentError: Fields of the plan contradict each other: it was changed unchecked.
        HeterpsError: An argument is of a wrong type.
    """
    return _estimate(problem, plan, None, {}, with_timeline, with_interval, with_memory)


def simulated_step_time_s(problem: Problem, plan: Plan) -> float:
    """The step time alone, in half the time of an estimate: memory is not looked at.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    return prepared_step_time_s(PreparedPlan(problem, plan))


def prepared_step_time_s(prepared: PreparedPlan) -> float:
    """The same of a plan that is asked more than that, or has others near it."""
    known = prepared.known
    if known.step_time_s is None:
        known.step_time_s = action_times(prepared, {}).step_time_s
    return known.step_time_s


def usd_per_million_samples(problem: Problem, plan: Plan, step_time_s: float) -> float:
    """What a plan's devices cost while it trains on a million samples."""
    named = problem.device_named
    per_hour = sum(named[name].price_usd_per_hour for name in plan.devices)
    return _usd(problem.job, per_hour, step_time_s)


def _usd(job: Job, per_hour: float, step_time_s: float) -> float:
    return per_hour / 3600 * step_time_s / job.global_batch_size * 1e6


def minimised(job: Job, shown: Estimate) -> float:
    """What a job minimises: seconds of a step, or USD per million samples.

    Among plans that cost the same (free devices) the faster one is meant.
    """
    return _minimised(job, shown.step_time_s, shown.price_usd_per_million_samples)


def minimised_of_plan(problem: Problem, plan: Plan, step_time_s: float) -> float:
    """The same of a plan that takes so many seconds a step."""
    price = usd_per_million_samples(problem, plan, step_time_s)
    return _minimised(problem.job, step_time_s, price)


def _minimised(job: Job, step_time_s: float, usd: float) -> float:
    if job.objective != "price":
        return step_time_s
    return usd + _usd(job, TIE_BREAK_USD_PER_HOUR, step_time_s)


def feasible_step_time_s(problem: Problem, plan: Plan) -> float:
    """Simulated step time; inf where the plan does not fit or misses the throughput floor."""
    prepared = PreparedPlan(problem, plan)
    step_time_s = prepared_step_time_s(prepared)
    return step_time_s if _is_feasible(prepared, step_time_s) else math.inf


def is_feasible(problem: Problem, plan: Plan) -> bool:
    """The same of a plan whose predicted step time the simulator said: it is not run again."""
    return prepared_is_feasible(PreparedPlan(problem, plan))


def prepared_is_feasible(prepared: PreparedPlan) -> bool:
    """The same of a plan whose lists are known, as after `prepared_step_time_s`."""
    assert prepared.plan.predicted_step_time_s is not None, "it was simulated"
    return _is_feasible(prepared, prepared.plan.predicted_step_time_s)


def _is_feasible(prepared: PreparedPlan, step_time_s: float) -> bool:
    problem, plan = prepared.problem, prepared.plan
    throughput = problem.job.global_batch_size / max(step_time_s, 1e-30)
    if _floor_reasons(problem, throughput) or missing_links(problem, plan):
        return False
    return _has_room(prepared)


def _has_room(prepared: PreparedPlan) -> bool:
    """Whether no device holds more than it has room for."""
    known = prepared.known
    if known.has_room is None:
        memory = _memory_bytes(prepared)
        known.has_room = not _memory_reasons(prepared.problem, prepared.plan, memory)
    return known.has_room


def _memory_bytes(prepared: PreparedPlan) -> dict[str, int]:
    """The most that each device holds."""
    return peak_memory_bytes(timelines_by_rank(prepared), prepared.plan.device_groups)


def lacks_memory(problem: Problem, plan: Plan) -> bool:
    """Whether some device holds more than it has room for."""
    return not _has_room(PreparedPlan(problem, plan))


def misses_floor(problem: Problem, plan: Plan) -> bool:
    """Whether a step takes longer than the job's throughput floor allows."""
    throughput = problem.job.global_batch_size / max(simulated_step_time_s(problem, plan), 1e-30)
    return bool(_floor_reasons(problem, throughput))


def _estimate(
    problem: Problem,
    plan: Plan,
    schedule: Schedule | None,
    slowdown: Mapping[str, float],
    with_timeline: bool,
    with_interval: bool = False,
    with_memory: bool = False,
) -> Estimate:
    check_type("problem", problem, Problem, "a heterps_envs.problem.Problem")
    check_type("plan", plan, Plan, "a heterps Plan")
    _check_document(plan)
    prepared = PreparedPlan(problem, plan, schedule)
    times, timelines = action_times(prepared, slowdown), timelines_by_rank(prepared)
    memory, step_time_s = peak_memory_bytes(timelines, times.groups), times.step_time_s
    interval = step_time_interval(prepared, times, slowdown) if with_interval else None
    batch, devices = problem.job.global_batch_size, plan.devices
    throughput = batch / max(step_time_s, 1e-30)
    placement = placement_of(problem, plan)
    reasons = (
        *missing_links(problem, plan),
        *_memory_reasons(problem, plan, memory),
        *_floor_reasons(problem, throughput),
    )
    return Estimate(
        step_time_s=step_time_s,
        step_time_low_s=interval.low_s if interval else None,
        step_time_high_s=interval.high_s if interval else None,
        closed_form_step_time_s=placement and closed_form_of_plan_s(problem, plan, placement),
        throughput_samples_per_s=throughput,
        price_usd_per_million_samples=usd_per_million_samples(problem, plan, step_time_s),
        memory_bytes=memory,
        memory_limit_bytes={name: problem.usable_bytes(name) for name in devices},
        bubble_share=max(0.0, 1 - times.busy_s / max(len(devices) * step_time_s, 1e-30)),
        feasible=not reasons,
        reasons=reasons,
        layer_times=layer_times_label(problem, plan),
        timeline=times.timeline() if with_timeline else (),
        memory_curves=curves_of_devices(timelines, times) if with_memory else (),
        notes=(
            *simulation_notes(problem, plan),
            *strategy_notes(problem, plan),
            *(calibration_notes(problem, plan) if interval else ()),
        ),
    )


def _check_document(plan: Plan) -> None:
    """Refuses what somebody has changed unchecked: kernels go by the fields, whatever they say."""
    problems = plan.inconsistencies()
    if problems:
        raise DocumentError("plan", problems)


def _memory_reasons(problem: Problem, plan: Plan, memory: Mapping[str, int]) -> list[str]:
    reasons = []
    for name, need in memory.items():
        limit = problem.usable_bytes(name)
        if need > limit:
            stages = ", ".join(stage.name for stage in plan.stages if name in stage.devices)
            reasons.append(
                f"memory: {name} (stage {stages}) needs {bytes_text(need)}, "
                f"{bytes_text(need - limit)} more "
                f"than its {bytes_text(limit)}"
            )
    return reasons


def _floor_reasons(problem: Problem, throughput: float) -> list[str]:
    floor = problem.job.min_throughput_samples_per_s
    if floor is None or throughput >= floor:
        return []
    return [
        f"throughput: {throughput:.6g} samples/s is {floor - throughput:.6g} below the floor of "
        f"{floor:g}"
    ]
