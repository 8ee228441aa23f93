"""The search through all sets of stages: what it proves, and what it finds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_configs.documents.job import Strategy
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import least_executable_s
from heterps_envs.step_bounds.needs import needs_of
from heterps_envs.step_bounds.whole_plans.search import NONE, SOME, UNKNOWN, find_stages
from heterps_envs.step_bounds.whole_plans.staged import Staged
from heterps_envs.step_bounds.whole_plans.tied import tied_bytes
from tests.envs.small_problems import chain_problem
from tests.envs.step_bounds.whole_plans.staged_plans import staged_of


def asked(problem: Problem, step_s: float, most_steps: int = 10_000) -> tuple[int, int, Staged]:
    """With shares that say nothing."""
    needs, num_layers = needs_of(problem), problem.profile.num_layers
    staged = Staged.of(problem, needs)
    shares = np.ones((len(needs.class_of), num_layers, num_layers))
    worth = np.full(num_layers, 1 / num_layers)
    found, count, _ = find_stages(needs, staged, step_s, shares, worth, most_steps)
    return found, count, staged


def test_two_stages_are_found_where_one_device_has_no_room() -> None:
    problem = chain_problem(
        [1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,), parameters=[10, 10],
        memory_bytes=[100],
    )  # fmt: skip
    assert asked(problem, 9.9)[0] == NONE
    found, count, staged = asked(problem, 10.1)
    assert found == SOME
    assert staged.spans[:count].tolist() == [[0, 0, 1], [0, 1, 2]]


def test_nothing_is_said_where_steps_are_not_enough() -> None:
    problem = chain_problem([1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,))
    assert asked(problem, 1.0, most_steps=1)[0] == UNKNOWN


def test_bytes_that_are_freed_take_seconds() -> None:
    """What both layers keep of one micro-batch does not fit: one of them is computed again."""
    problem = chain_problem(
        [1.0, 1.0], [1.0, 1.0], num_micro_batches=3, counts=(1,), activation_bytes=[50.0, 50.0],
        memory_bytes=[60],
    )  # fmt: skip
    assert least_executable_s(problem) == float("inf")
    allowed = replace(problem, strategy=Strategy(recompute="auto"))
    # Four fifths of a layer's bytes, in each of three micro-batches.
    assert least_executable_s(allowed) == pytest.approx(12 + 3 * 0.8, rel=2e-3)


def test_a_stage_without_the_owner_of_its_parameters_has_a_copy() -> None:
    """Two layers share 10 parameters, of 8 bytes with their gradients."""
    spans, room = [(0, 0, 1), (0, 1, 2)], 110
    problem = chain_problem(
        [1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,), parameters=[10, 10],
        tied_to={1: 0}, memory_bytes=[room],
    )  # fmt: skip
    needs, staged = staged_of(problem, spans)
    state, gradients = tied_bytes(staged.tied, (0, 1, 2), staged.owners, 1)
    assert (state, gradients) == (40.0, 40.0)
    assert tied_bytes(staged.tied, (0, 0, 2), staged.owners, 1) == (0.0, 0.0)
    assert needs.unit == 1.0
