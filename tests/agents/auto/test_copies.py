"""Copies of the whole model on unlike devices: how many, and which share each has."""

from __future__ import annotations

from heterps.micro_batches.sizes import with_size
from heterps_agents.auto.copies import MOST_COPIES, best_copies
from heterps_agents.auto.others import COPIES, quick_plan, quick_ways
from heterps_agents.interface.planner import Budget
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s


def _home_boxes() -> Problem:
    """Three unlike cards in one node, two nodes more behind a slow link."""
    return with_size(field_problem(FieldCase("home-boxes", 5), SEEDS["development"]), 2)


def test_faster_devices_have_more_micro_batches_and_all_layers() -> None:
    problem = _home_boxes()
    plan = quick_plan(problem, Budget(), 0, COPIES)
    assert plan is not None
    assert is_feasible(problem, plan)
    layers = range(problem.profile.num_layers)
    assert all(stage.layers == layers for stage in plan.stages)
    seconds = problem.tables.compute_s.sum(axis=0)
    speeds = [1 / seconds[problem.class_of[stage.devices[0]]] for stage in plan.stages]
    shares = [len(pipeline.micro_batches) for pipeline in plan.pipelines]
    assert len(set(shares)) > 1
    assert [s for _, s in sorted(zip(speeds, shares, strict=True))] == sorted(shares)


def test_copies_are_on_near_devices_where_others_are_behind_slow_links() -> None:
    problem = _home_boxes()
    near = quick_plan(problem, Budget(), 0, COPIES)
    everywhere = best_copies(problem, Budget())
    assert near is not None
    assert len({problem.device_named[name].node for name in near.devices}) == 1
    assert everywhere is not None
    near_s, everywhere_s = (simulated_step_time_s(problem, p) for p in (near, everywhere))
    assert near_s <= everywhere_s


def test_a_model_that_fits_on_no_device_has_no_copies() -> None:
    problem = field_problem(FieldCase("home-boxes", 2), SEEDS["development"])
    assert best_copies(problem, Budget()) is None


def test_no_more_copies_than_micro_batches() -> None:
    problem = with_size(field_problem(FieldCase("home-boxes", 5), SEEDS["development"]), 16)
    plan = best_copies(problem, Budget())
    assert plan is not None
    assert len(plan.devices) <= problem.job.num_micro_batches <= MOST_COPIES


def test_large_clusters_on_one_network_have_no_such_way() -> None:
    problem = field_problem(FieldCase("one-pod", 5), SEEDS["development"])
    assert COPIES not in quick_ways(problem)
