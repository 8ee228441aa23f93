"""Every planner on one problem: a plan that is what it says, or a refusal in words."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from heterps.planning.place import chooses_options
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import (
    SECONDS_PER_LAYER,
    planner_named,
    planner_names,
    system_names,
)
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import (
    Placement,
    closed_form_of_plan_s,
    encode,
    placement_of,
)
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.options import keeps_to, option_tables, options_of
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
            usable = on_usable_devices(problem) if problem.strategy.is_plain else problem
            findings += _problems_of(usable, plan, planner)
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
    is_asked = chooses_options(planner_named(planner)) and not problem.strategy.is_plain
    if is_asked and not keeps_to(plan, problem.strategy):
        yield "the plan breaks the strategy"
    if _placement(problem, plan) is None:
        return
    report = check_certificate(problem, plan, max_steps=CERTIFICATE_STEPS)
    yield from (f"certificate: {text}" for text in report.problems)


def compare(problem: Problem, answers: Sequence[Answer]) -> Iterator[str]:
    """What one planner's answer says against another's: optima and bounds that are undercut."""
    if problem.job.objective != "throughput":
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        problem = on_usable_devices(problem) if problem.strategy.is_plain else problem
    reached, by_rule = {}, set()
    for answer in answers:
        placement = answer.plan and _placement(problem, answer.plan)
        # Systems count memory by rules of their own: their plans may be beyond what bounds are of.
        if (
            answer.plan is not None
            and placement
            and answer.planner not in SYSTEMS
            and keeps_to(answer.plan, problem.strategy)
        ):
            reached[answer.planner] = closed_form_of_plan_s(problem, answer.plan, placement)
            by_rule |= {answer.planner} if _keeps_the_rule(problem, placement) else set()
    for answer in answers:
        bound = answer.plan.bound if answer.plan else Bound()
        # Other bounds, where options are open, are of plans that fit by the simulator, too.
        is_by_rule = problem.strategy.is_plain or bound.status == "proven"
        for planner, step_time_s in reached.items():
            if is_by_rule and planner not in by_rule:
                continue
            if bound.step_time_s is not None and step_time_s < bound.step_time_s * (1 - TOLERANCE):
                yield (
                    f"{answer.planner} claims that no step is below {bound.step_time_s} s; that of "
                    f"{planner} takes {step_time_s} s"
                )
    exact = next((answer for answer in answers if answer.planner == "exact"), None)
    if exact is not None and exact.plan is None and by_rule and not exact.findings:
        yield from _misses(problem, by_rule)


def _placement(problem: Problem, plan: Plan) -> Placement | None:
    """The plan as a placement; None for one on devices that the planners' rule leaves out.

    What the simulator counts is less than that rule keeps free: other searches may use them.
    """
    used = {name for stage in plan.stages for name in stage.devices}
    return placement_of(problem, plan) if used <= set(problem.class_of) else None


def _keeps_the_rule(problem: Problem, placement: Placement) -> bool:
    """Whether a placement fits by the rule of planners, and its groups are those that they form."""
    try:
        options = options_of(problem, problem.strategy)
        code = encode(placement, options)
    except ValueError:  # it has groups of a degree that does not divide every node
        return False
    kernel = kernel_tables(option_tables(problem, options))
    return math.isfinite(Goal.of(problem.job).cost(code, kernel))


def _misses(problem: Problem, reached: set[str]) -> Iterator[str]:
    """The exact solver found no plan, and others did."""
    try:
        planner_named("exact").plan(problem, Budget())
    except HeterpsError as error:
        if "another planner" not in str(error):  # too large for a proof
            yield f"exact: {error}; but {', '.join(sorted(reached))} found a plan"
