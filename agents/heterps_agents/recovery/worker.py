"""The process that fills the book of recovery plans: `python -m heterps_agents.recovery.worker`.

A new request ends the work on the one before. It runs at the lowest priority.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from heterps_agents.interface.background import serve
from heterps_agents.recovery.model import Situation, predict
from heterps_agents.recovery.pages import Page, Request
from heterps_agents.recovery.plans import FULL, full_plan, recovery_predictions
from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.fewer_devices import without_devices

# Once there are plans for all changes, the likeliest are planned anew with this effort.
CAREFUL_EFFORT = "normal"
MAX_CAREFUL = 64


def page(request: Request, alive: frozenset[str]) -> Page:
    """Plans for one change."""
    gone = tuple(sorted(set(request.problem.device_named) - alive))
    try:
        left = without_devices(request.problem, gone)
        situation = Situation(request.problem, left, request.plan, gone, step=0, num_steps=0)
        found = recovery_predictions(situation, None, request.seed, whatever_it_takes=True)
    except HeterpsError as error:
        return Page(request.number, alive, reason=str(error))
    return Page(request.number, alive, tuple(found))


def better(request: Request, known: Page) -> Page | None:
    """The page after planning anew with more effort; None where that finds no faster step.

    Args:
        request: Of the page.
        known: A page with a plan that was made anew.
    """
    gone = tuple(sorted(set(request.problem.device_named) - known.alive))
    left = without_devices(request.problem, gone)
    plan = full_plan(left, request.plan, None, request.seed, effort=CAREFUL_EFFORT)
    if plan is None:
        return None
    situation = Situation(request.problem, left, request.plan, gone, step=0, num_steps=0)
    found = predict(situation, FULL, plan)
    others = tuple(each for each in known.predictions if each.rule != FULL)
    before_s = next(each.step_s for each in known.predictions if each.rule == FULL)
    is_faster = found.step_s < before_s * (1 - 1e-6)
    return known._replace(predictions=(*others, found)) if is_faster else None


def pages(request: Request) -> Iterator[Page]:
    """A page for every change, then those that more effort makes better."""
    found = []
    for alive in request.changes:
        found.append(page(request, alive))
        yield found[-1]
    for known in found[:MAX_CAREFUL]:
        if any(each.rule == FULL for each in known.predictions):
            improved = better(request, known)
            if improved is not None:
                yield improved


def _yield_to_others() -> None:
    """Takes only processor time that nobody else wants."""
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    _yield_to_others()
    serve(pages)
