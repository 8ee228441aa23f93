"""What a run is judged by, and when it got there."""

import math

import numpy as np

from heterps_agents.training.evaluation import Gap
from heterps_agents.training.milestones import Milestone, reached


def test_milestones_are_when_all_their_limits_were_first_met() -> None:
    def gap(value: float) -> Gap:
        return Gap(value, value, value, 1.0)

    milestones: dict[str, Milestone] = {}
    reached({"development/greedy": gap(0.5), "development/beam16": gap(0.0)}, milestones, 10, 1.0)
    assert list(milestones.values()) == [Milestone(10, 1.0)]
    reached({"development/greedy": gap(0.0), "development/beam16": gap(0.5)}, milestones, 20, 2.0)
    reached({"development/greedy": gap(0.0), "development/beam16": gap(0.0)}, milestones, 30, 3.0)
    assert [entry.steps for entry in milestones.values()] == [10, 20]


def test_a_problem_without_any_placement_found_counts_as_an_infinite_gap() -> None:
    gap = Gap.of(np.array([0.0, 0.0, 0.02, math.inf]))
    assert (gap.median, gap.solved) == (0.0, 0.5)
    assert math.isinf(gap.mean)
    assert math.isinf(gap.p95), "of so few the largest is that"
    many = Gap.of(np.arange(100.0))
    assert (many.median, many.p95) == (49.0, 94.0)
