"""The interval of a plan's step time that the error of estimated layer times leads to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from heterps_configs.documents.estimate import LayerTimesLabel
from heterps_configs.documents.plan import Plan
from heterps_envs.card_times.document import Knowledge, shipped_calibration
from heterps_envs.layer_costs.intervals import COVERAGE
from heterps_envs.layer_costs.seconds import OWN_TIMES
from heterps_envs.problem import Problem
from heterps_envs.simulator.action_times import ActionTimes, action_times
from heterps_envs.simulator.prepared import PreparedPlan


class StepTimeInterval(NamedTuple):
    """Seconds of one step if all estimated layer times are at the low or the high end."""

    low_s: float
    high_s: float


def step_time_interval(
    prepared: PreparedPlan, times: ActionTimes, slowdown: Mapping[str, float]
) -> StepTimeInterval | None:
    """Simulates the same action lists twice more; None where every layer time was measured.

    All estimated device types are taken to be fast, or slow, together: their errors have causes in
    common (the counted work, the efficiencies), and opposite ones would partly cancel.
    """
    problem = prepared.problem
    factors = {
        name: problem.at_degree(degree).layer_times.intervals[problem.class_of[name]]
        for name, degree in _degrees(prepared.plan).items()
    }
    if all(entry.low == entry.high == 1 for entry in factors.values()):
        return None
    ends = (
        {name: slowdown.get(name, 1.0) * entry[end] for name, entry in factors.items()}
        for end in (0, 1)
    )
    low_s, high_s = (action_times(prepared, each).step_time_s for each in ends)
    return StepTimeInterval(min(low_s, times.step_time_s), max(high_s, times.step_time_s))


def _degrees(plan: Plan) -> dict[str, int]:
    """The devices of a plan, and how many split the layers there."""
    return {name: len(group) for group in plan.device_groups for name in group}


def unmeasured_types(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """Device types of a plan whose layer times were estimated, in the order of the plan."""
    return tuple(
        dict.fromkeys(
            problem.classes[index].type.name
            for index in (problem.class_of[name] for name in plan.devices)
            if problem.layer_times.sources[index] not in OWN_TIMES
        )
    )


def layer_times_label(problem: Problem, plan: Plan) -> LayerTimesLabel:
    """Where the layer times of a plan come from, in a word or two."""
    sources = {
        problem.at_degree(degree).layer_times.sources[problem.class_of[name]]
        for name, degree in _degrees(plan).items()
    }
    estimated = sources - set(OWN_TIMES)
    if not estimated:
        return "measured"
    if len(estimated) < len(sources) or "scaled" in sources:
        return "partly measured"
    if estimated == {"published measurements"}:
        return "published measurements"
    return "calibrated roofline" if estimated == {"calibrated roofline"} else "roofline estimate"


def calibration_notes(problem: Problem, plan: Plan) -> tuple[str, ...]:
    """What the times of device types that were not measured rest on; types alike share a line."""
    alike: dict[str, list[str]] = {}
    for name in unmeasured_types(problem, plan):
        index = next(i for i, each in enumerate(problem.classes) if each.type.name == name)
        alike.setdefault(_basis(problem, index), []).append(name)
    return tuple(
        f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not measured here: {basis}"
        for basis, names in alike.items()
    )


_OF: dict[Knowledge, str] = {
    "card": " of the card",
    "kin": " of its kin",
    "none": " of other cards",
}


def _basis(problem: Problem, index: int) -> str:
    interval = problem.layer_times.intervals[index]
    sure = (
        f"{100 * COVERAGE:.0f} % sure that layers take {interval.low:.2f} to {interval.high:.2f} "
        "times what is predicted"
    )
    kind, estimator = problem.classes[index].type.kind, problem.layer_times.estimator
    entry = problem.classes[index].type
    if estimator.uses_published(entry):
        calibration = shipped_calibration()
        known = calibration.knowledge(entry)
        return f"an estimate from published measurements{_OF[known]}; {sure}"
    types = list(dict.fromkeys(entry.device_type for entry in estimator.samples(kind)))
    if not types:
        return f"a roofline with stated efficiencies; {sure}"
    errors = estimator.leave_one_out_errors(kind)
    leave_one_out = ""
    if errors:
        mean = sum(abs(math.expm1(-error)) for error in errors.values()) / len(errors)
        leave_one_out = f" (left out in turn, each is predicted to {100 * mean:.0f} %)"
    return f"a roofline fitted on {', '.join(types)}{leave_one_out}; {sure}"
