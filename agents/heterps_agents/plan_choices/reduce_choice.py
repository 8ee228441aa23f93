"""Gradient sums beside backward passes, or after them: what the simulator finds faster for a plan.

Early sums overlap with passes. But they come in more buckets, each of which costs its latency, and
a bucket that some device completes late keeps all after it waiting. Planners do not see that in
their closed form, so the choice is made for the finished plan.
"""

from __future__ import annotations

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.reduce_buckets import reduce_buckets
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import prepared_is_feasible, prepared_step_time_s

# Sums after all passes have to be this much faster.
GAIN = 1 - 1e-4


def choose_reduce(problem: Problem, plan: Plan) -> Plan:
    """The plan with `overlaps_reduce` set, where its job leaves it open and it has any sums.

    Args:
        problem: What was asked.
        plan: Any plan for it; one that has made its choice keeps it.
    """
    is_open = plan.job.overlaps_reduce is None and plan.overlaps_reduce is None
    if not is_open or not reduce_buckets(problem, plan):
        return plan
    prepared = PreparedPlan(problem, plan)
    early, late = (_with_sums(prepared, overlaps) for overlaps in (True, False))
    is_late = _seconds(late) < _seconds(early) * GAIN
    for found in (late, early) if is_late else (early, late):
        if prepared_is_feasible(found):
            chosen = found.plan
            return plan.changed_unchecked(
                overlaps_reduce=chosen.overlaps_reduce,
                predicted_step_time_s=chosen.predicted_step_time_s,
            )
    return plan


def _with_sums(prepared: PreparedPlan, overlaps: bool) -> PreparedPlan:
    found = prepared.changed(overlaps_reduce=overlaps)
    return found.timed(prepared_step_time_s(found))


def _seconds(prepared: PreparedPlan) -> float:
    step_time_s = prepared.plan.predicted_step_time_s
    assert step_time_s is not None, "it was simulated"
    return step_time_s
