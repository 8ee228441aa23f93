"""Every planner on one problem: a plan that is what it says, or a refusal in words."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import (
    SECONDS_PER_LAYER,
    planner_named,
    planner_names,
    system_names,
)
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.placement import closed_form_step_time_s, placement_of
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Those that train a network with torch for every problem: no kernel of theirs is missed.
TRAINING = tuple(SECONDS_PER_LAYER)
QUICK = tuple(name for name in planner_names() if name not in TRAINING)
SYSTEMS = system_names()
# Sums in another order.
TOLERANCE = 1e-6
# Placements that a planner may look at, and seconds of a processor.
EVALUATIONS, CPU_SECONDS = 60, 2.0
CERTIFICATE_STEPS = 2000


@dataclass(frozen=True)
class Answer:
    """What a planner said of a problem.

    Attributes:
        planner: Its name.
        plan: None where it refused.
        findings: What is wrong with its answer, one line each.
    """

    planner: str
    plan: Plan | None
    findings: tuple[str, ...]


def ask(problem: Problem, planner: str, seed: int = 0) -> Answer:
    """Asks one planner and checks what it says."""
    findings: list[str] = []
    plan: Plan | None = None
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            budget = Budget(EVALUATIONS, cpu_seconds=CPU_SECONDS)
            plan = planner_named(planner, seed).plan(problem, budget)
            findings += _problems_of(on_usable_devices(problem), plan, planner)
        except HeterpsError as error:
            findings += [f"a message of several lines: {error}"] if "\n" in str(error) else []
        except Exception as error:
            findings.append(f"{type(error).__name__}: {error}")
    findings += [
        f"{warning.category.__name__}: {warning.message} ({warning.filename}:{warning.lineno})"
        for warning in seen
        if warning.category is not UserWarning
    ]
    return Answer(planner, plan, tuple(findings))


def _problems_of(problem: Problem, plan: Plan, planner: str) -> Iterator[str]:
    """What is wrong with a plan and with what is claimed of it."""
    json.dumps(plan.to_mapping(), allow_nan=False)
    shown = estimate(problem, plan)
    if not (math.isfinite(shown.step_time_s) and shown.step_time_s >= 0):
        yield f"a step of {shown.step_time_s} s"
    if planner in SYSTEMS:
        return  # They count memory by rules of their own, and prove nothing.
    placement = placement_of(problem, plan)
    if placement is None:
        return
    report = check_certificate(problem, plan, max_steps=CERTIFICATE_STEPS)
    yield from (f"certificate: {text}" for text in report.problems)


def compare(problem: Problem, answers: Sequence[Answer]) -> Iterator[str]:
    """What one planner's answer says against another's: optima and bounds that are undercut."""
    if problem.job.objective != "throughput":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        problem = on_usable_devices(problem)
    reached = {}
    for answer in answers:
        placement = answer.plan and placement_of(problem, answer.plan)
        # Systems count memory by rules of their own: their plans may be beyond what bounds are of.
        if placement and answer.planner not in SYSTEMS:
            reached[answer.planner] = closed_form_step_time_s(problem, placement)
    for answer in answers:
        bound = answer.plan.bound.step_time_s if answer.plan else None
        for planner, step_time_s in reached.items():
            if bound is not None and step_time_s < bound * (1 - TOLERANCE):
                yield (
                    f"{answer.planner} claims that no step is below {bound} s; that of {planner} "
                    f"takes {step_time_s} s"
                )
    exact = next((answer for answer in answers if answer.planner == "exact"), None)
    if exact is not None and exact.plan is None and reached and not exact.findings:
        yield from _misses(problem, reached)


def _misses(problem: Problem, reached: dict[str, float]) -> Iterator[str]:
    """The exact solver found no plan, and others did."""
    try:
        planner_named("exact").plan(problem, Budget())
    except HeterpsError as error:
        if "another planner" not in str(error):  # too large for a proof
            yield f"exact: {error}; but {', '.join(reached)} found a plan"
