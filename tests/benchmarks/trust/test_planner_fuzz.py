"""Planners on problems with hostile corners, one at a time and without bounds checks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trust.hostile_problems import draw_problem
from benchmarks.trust.planner_checks import QUICK, SYSTEMS
from benchmarks.trust.planner_fuzz import check_problem

ROOT = Path(__file__).parents[3]
NAMES = (*QUICK, *SYSTEMS)
# Without numba's compiler: an index beyond an array is an error there, as under bounds checks.
INTERPRETED = """
from benchmarks.trust.hostile_problems import draw_problem
from benchmarks.trust.planner_fuzz import check_problem
for index in range(12):
    problem = draw_problem(5, index)
    if problem.profile.num_layers * len(problem.cluster.devices) <= 40:
        row = check_problem(problem, ("exact", "greedy", "genetic", "annealing"))
        print(index, row["findings"])
"""


def test_a_drawn_problem_depends_on_its_number_alone() -> None:
    first, again, other = (draw_problem(1, index) for index in (7, 7, 8))
    assert (first.profile, first.cluster, first.job) == (again.profile, again.cluster, again.job)
    assert (first.profile, first.cluster) != (other.profile, other.cluster)


def test_a_free_device_that_takes_three_thousand_years_contradicts_no_optimum() -> None:
    assert check_problem(draw_problem(500, 2805), ("exact",))["findings"] == []


def test_behind_a_layer_of_thirty_years_no_optimum_is_certain_to_its_last_digits() -> None:
    row = check_problem(draw_problem(501, 2046), ("exact", "auto", "random"))
    assert row["findings"] == []


def test_beside_layers_of_thirty_years_no_optimum_bounds_groups_that_no_option_is_for() -> None:
    # Groups of eight of seventy devices: `auto` takes them, the exact solver does not know them.
    assert check_problem(draw_problem(503, 448), ("exact", "auto"))["findings"] == []


def test_of_a_model_that_takes_no_time_auto_divides_by_nothing() -> None:
    assert check_problem(draw_problem(202, 356), ("auto",))["findings"] == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_planners_answer_hostile_problems_with_plans_or_in_words(part: int) -> None:
    for index in range(part, 112, 4):
        row = check_problem(draw_problem(3, index), (NAMES[index % len(NAMES)],))
        assert row["findings"] == [], index


@pytest.mark.slow
def test_no_kernel_reads_beyond_its_arrays() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        cwd=ROOT,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    lines = done.stdout.splitlines()
    assert lines
    assert all(line.endswith(" []") for line in lines), done.stdout
