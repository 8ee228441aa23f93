"""Sizes of micro-batches that hold a better plan unless a bound says no.

Simple placements of a size may promise little, so that nobody searches it. Where devices are few
enough for the bound to go through all sets of stages, it proves of most such sizes that they hold
nothing better. Of the others it names the sets that are left, and those are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from heterps.micro_batches.one_size import finished_result, with_divided_state
from heterps.micro_batches.outlooks import cost_of, runs
from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import SAME, goes_through_stages, is_too_few


def of_unproven_sizes(
    best: PlaceResult, asked: Sequence[Problem], planner: Planner | System, budget: Budget
) -> Iterator[PlaceResult]:
    """Plans of other sizes, each of which is better than the one before and the known one.

    Args:
        best: Of all sizes that were looked at.
        asked: The problem with each size.
        planner: Who was asked; others than `PatientPlanner` have nothing to add.
        budget: Its end ends this.
    """
    is_asked = goes_through_stages(best.problem) and runs(best)
    if not (isinstance(planner, PatientPlanner) and is_asked):
        return
    for problem in asked:
        step_time_s = cost_of(best) * (1 - SAME)
        if problem.job.micro_batch_size == best.problem.job.micro_batch_size or budget.is_exhausted:
            continue
        if is_too_few(problem, step_time_s):
            continue
        plan = planner.of_stage_sets(problem, best.plan, step_time_s, budget)
        found = plan and finished_result(problem, plan, planner, budget)
        found = found and with_divided_state(found, planner)
        if found and runs(found) and cost_of(found) < step_time_s:
            best = found
            yield found
