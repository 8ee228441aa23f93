"""Bounds over sizes of micro-batches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterps.micro_batches.each_size import NO_PLAN
from heterps.micro_batches.place_result import TriedSize
from heterps.micro_batches.sizes import open_sizes, with_bound_over, with_size
from heterps.planning.place import place
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Bound
from tests.envs.small_problems import chain_problem


def test_a_size_in_which_planners_find_nothing_may_hold_a_better_plan() -> None:
    strategy = Strategy(recompute="auto", chooses_micro_batch=True)
    chain = chain_problem([1.0], [2.0], num_micro_batches=2, counts=(2,))
    asked = [with_size(replace(chain, strategy=strategy), size) for size in (1, 2)]
    small, large = (place(problem, "greedy") for problem in asked)
    # By the rule of planners nothing of size 1 has room; a plan may fit by the simulator alone.
    tried = [TriedSize(1, math.inf, math.inf, why=NO_PLAN), TriedSize(2, 0.0, 0.0)]
    bound = with_bound_over(large, [large], asked, tried, Budget()).bound
    fastest_s = small.estimate.closed_form_step_time_s
    assert open_sizes(replace(chain, strategy=strategy)) == [1, 2]
    assert fastest_s is not None
    assert bound.status == "bounded"
    assert bound.step_time_s is not None
    assert bound.step_time_s <= fastest_s * (1 + 1e-9) < large.estimate.step_time_s
    # What is the planners' own choice is left to their rule.
    plain = [replace(problem, strategy=Strategy()) for problem in asked]
    own = place(plain[1], "greedy")
    assert with_bound_over(own, [own], plain, tried, Budget()) is own


def test_a_plan_below_the_bound_of_what_planners_form_has_no_bound() -> None:
    """Such a plan fits by the simulator, and not by their rule."""
    chain = chain_problem([1.0], [2.0], num_micro_batches=2, counts=(2,))
    asked = [with_size(replace(chain, strategy=Strategy(chooses_micro_batch=True)), 1)]
    own = place(asked[0], "greedy")
    assert own.estimate.closed_form_step_time_s is not None
    above_s = own.estimate.closed_form_step_time_s * 2
    known = replace(own, bound=Bound())
    tried = [TriedSize(2, above_s, above_s)]
    assert with_bound_over(known, [known], asked, tried, Budget()).bound == Bound()


def test_no_result_has_a_bound_above_what_its_plan_takes() -> None:
    own = place(chain_problem([1.0], [2.0], num_micro_batches=2, counts=(2,)), "greedy")
    above = Bound(step_time_s=own.estimate.step_time_s * 1.01)
    with pytest.raises(AssertionError):
        replace(own, bound=above)
    with pytest.raises(AssertionError):
        replace(own, executable=above)
