"""What a plan file claims of its simulated step time, held against a simulation of now."""

from __future__ import annotations

from dataclasses import replace

from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_envs.certificates.bound_check import TOLERANCE
from heterps_envs.certificates.plan import CertificateReport

CLOSED_FORM_ROUNDING = 0.01


def with_simulated(report: CertificateReport, plan: Plan, step_time_s: float) -> CertificateReport:
    """The report with what the plan says of simulated step times.

    Args:
        report: Of the plan's closed form and its bound.
        plan: The plan.
        step_time_s: What the simulator says of it.
    """
    problems, checked, unchecked = list[str](), list[str](), list[str]()
    then_s = plan.predicted_step_time_s
    if then_s is not None:
        if abs(then_s - step_time_s) <= TOLERANCE * step_time_s:
            checked.append(f"predicted_step_time_s: simulated again, {step_time_s:.9g} s")
        else:
            problems.append(
                f"predicted_step_time_s is {then_s:.9g} s; the simulator says {step_time_s:.9g} s"
            )
    bound_s = plan.executable_bound.step_time_s
    if bound_s is not None:
        wrong = _contradiction(plan, bound_s, step_time_s)
        if wrong is None:
            unchecked.append(
                f"executable_bound: that no plan runs in less than {bound_s:.9g} s is not derived "
                "here"
            )
        else:
            problems.append(wrong)
    return replace(
        report,
        problems=(*report.problems, *problems),
        checked=(*report.checked, *checked),
        unchecked=(*report.unchecked, *unchecked),
    )


def bound_above_step(plan: Plan, shown: Estimate) -> str | None:
    """Which of a plan's bounds is above its own step time, at a glance; None: none is.

    Args:
        plan: The plan.
        shown: What the simulator says of it.
    """
    bound_s, closed_form_s = plan.bound.step_time_s, shown.closed_form_step_time_s
    # Groups and unequal micro-batches are rounded in either.
    if bound_s and closed_form_s and bound_s > closed_form_s * (1 + CLOSED_FORM_ROUNDING):
        return f"bound: {bound_s:.9g} s is above the plan's own closed form, {closed_form_s:.9g} s"
    bound_s = plan.executable_bound.step_time_s
    return None if bound_s is None else _above(bound_s, shown.step_time_s)


def _above(bound_s: float, step_time_s: float) -> str | None:
    if bound_s <= step_time_s * (1 + TOLERANCE):
        return None
    return (
        f"executable_bound: {bound_s:.9g} s is above the simulated {step_time_s:.9g} s of the plan"
    )


def _contradiction(plan: Plan, bound_s: float, step_time_s: float) -> str | None:
    above, gap = _above(bound_s, step_time_s), plan.executable_bound.gap
    if above is not None:
        return above
    # With the objective price it is one of the price.
    if gap is None or plan.job.objective == "price":
        return None
    if step_time_s > bound_s * (1 + gap) * (1 + TOLERANCE):
        return (
            f"executable_bound: the plan takes {step_time_s:.9g} s, more than {bound_s:.9g} s and "
            f"the gap of {100 * gap:.4g} % allow"
        )
    return None
