"""What plans share that differ little is what each of them finds alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.prepared import PreparedPlan
from tests.envs.simulator.test_compiled_simulator import runs


def same_times(shared: PreparedPlan) -> bool:
    found, alone = (
        action_times(each) for each in (shared, PreparedPlan(shared.problem, shared.plan))
    )
    return bool(np.array_equal(found.end_s, alone.end_s) and found.groups == alone.groups)


@pytest.mark.slow
@given(runs(are_alone=True))
@settings(max_examples=50)
def test_plans_that_share_parts_are_timed_as_alone(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    prepared = PreparedPlan(problem, plan)
    assert same_times(prepared)
    assert same_times(prepared.timed(1.0))
    if plan.job.schedule == "1f1b":
        for more in (2, 4, 3):
            stages = tuple(stage.changed_unchecked(in_flight=more) for stage in plan.stages)
            assert same_times(prepared.changed(stages=stages))
    open_job = plan.job.changed(overlaps_reduce=None)
    prepared = PreparedPlan(problem, plan.changed_unchecked(job=open_job))
    for overlaps in (True, False, True):
        assert same_times(prepared.changed(overlaps_reduce=overlaps))
