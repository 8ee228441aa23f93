"""Corrections that were made while a device was away, and the device when it is back."""

from __future__ import annotations

from heterps_agents.recovery.problem import with_missing_devices
from heterps_envs.closed_form.fewer_devices import without_devices
from tests.agents.slowed import slowed_problem
from tests.uneven_problems import MakeProblem


def test_a_device_that_comes_back_is_believed_as_before_and_the_others_as_corrected(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    corrected = slowed_problem(without_devices(problem, {"middle-1"}), {"small-0": 3.0})
    whole = with_missing_devices(corrected, problem)
    assert list(whole.device_named) == list(problem.device_named)

    def seconds(name: str) -> float:
        return float(whole.tables.compute_s[:, whole.class_of[name]].sum())

    def before(name: str) -> float:
        return float(problem.tables.compute_s[:, problem.class_of[name]].sum())

    assert seconds("small-0") > 2.5 * before("small-0")
    assert seconds("middle-1") == before("middle-1")
    assert whole.link("fast-0", "middle-1") == problem.link("fast-0", "middle-1")


def test_a_node_that_was_lost_as_a_whole_comes_back_too(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 1, 1))
    left = without_devices(problem, {"fast"})
    assert len(left.cluster.nodes) == 1
    whole = with_missing_devices(left, problem)
    assert whole.cluster.nodes == problem.cluster.nodes


def test_nothing_is_added_where_nothing_is_missing(make_problem: MakeProblem) -> None:
    problem = make_problem()
    assert with_missing_devices(problem, problem) is problem
