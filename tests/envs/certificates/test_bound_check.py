"""Claims that cannot be confirmed, and bounds that are false whatever is claimed of them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.certificates.plain_bounds import own_bound
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.problem import Problem
from tests.envs.certificates.test_plan import exact, small_problem, with_memory
from tests.envs.small_problems import chain_problem, plan_of


def tight_plan() -> tuple[Problem, Plan]:
    """One layer that fits as simulated, and not by the rule of planners."""
    loose = chain_problem(
        [1.0], [1.0], parameters=[10], activation_bytes=[7.0], counts=(1,), num_micro_batches=2
    )
    rule = loose.tables
    room = int(rule.state_bytes[0] + rule.activation_bytes[0]) - 1
    problem = replace(loose, cluster=with_memory(loose.cluster, room))
    return problem, plan_of(problem, {"a": (0, 0, "d0")}, {("a",): range(2)})


def test_where_no_placement_has_room_a_claim_is_not_confirmed() -> None:
    problem, plan = tight_plan()
    assert own_bound(problem.bounding_tables).step_time_s == math.inf
    for claim in (Bound(), Bound(step_time_s=4.0, gap=0.0, status="proven")):
        report = check_certificate(problem, plan, claim)
        assert (report.optimality, report.lower_bound_s) == ("unknown", 0.0)
        assert any("no placement has room" in line for line in report.unchecked)
    false = Bound(step_time_s=5.0, gap=0.0, status="proven")
    assert "above the plan's own" in check_certificate(problem, plan, false).problems[-1]


@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_a_bound_without_a_claim_of_a_gap_is_not_above_the_plan_either(objective: str) -> None:
    problem = small_problem(objective=objective, memory_bytes=[120, 120])
    plan = exact(problem)
    step_time_s = check_certificate(problem, plan).step_time_s
    assert step_time_s is not None
    for share, is_valid in ((0.5, True), (1.0, True), (1.01, False), (3.0, False)):
        claim = Bound(step_time_s=share * step_time_s, status="unknown")
        report = check_certificate(problem, plan, claim)
        assert report.is_valid == is_valid
        assert report.optimality == ("unknown" if is_valid else "not re-checked")
