"""How a limit in time is divided, and who searches at all."""

from __future__ import annotations

import pytest

from heterps_agents.interface.patient import (
    MANY_DEVICES,
    first_part,
    is_search,
    is_walked,
    quick_part,
)
from heterps_agents.interface.registry import planner_named
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import FieldCase, field_problem

SEED = 2210


def racks(number: int) -> Problem:
    """Devices of two types in one hall: few, some, or many."""
    return field_problem(FieldCase("two-type-racks", number), SEED)


def with_job(problem: Problem, **changes: str) -> Problem:
    """The same with another schedule or objective."""
    return Problem(problem.profile, problem.cluster, problem.job.changed(**changes))


def test_on_more_devices_quick_plans_have_more_of_the_time_and_first_plans_less() -> None:
    few, some = racks(1), racks(6)
    assert quick_part(few) < quick_part(some)
    assert first_part(few) > first_part(some)


def test_far_from_one_another_few_devices_are_walked_longer_too() -> None:
    near, far = racks(1), field_problem(FieldCase("volunteers", 2), SEED)
    assert len(near.cluster.devices) == len(far.cluster.devices)
    assert quick_part(near) < quick_part(far)
    assert first_part(near) > first_part(far)


@pytest.mark.parametrize("changes", [{"schedule": "gpipe"}, {"objective": "price"}])
def test_where_the_clock_does_not_say_what_counts_all_is_as_on_few_devices(
    changes: dict[str, str],
) -> None:
    few, some = with_job(racks(1), **changes), with_job(racks(6), **changes)
    assert not is_walked(few)
    assert not is_walked(some)
    assert quick_part(few) == quick_part(some)
    assert first_part(few) == first_part(some)


def test_hundreds_of_devices_are_not_walked() -> None:
    many = racks(9)
    assert len(many.cluster.devices) >= MANY_DEVICES
    assert not is_walked(many)


class _Own:
    """A planner that heterps does not ship."""

    name, is_search = "own", True


def test_searches_say_so_and_rules_proofs_and_papers_do_not() -> None:
    for name in ("auto", "asymmetric", "ppo", "annealing", "genetic", "unlearned-beam"):
        assert is_search(planner_named(name))
    for name in ("exact", "greedy", "even", "uniform-3d", "whale"):
        assert not is_search(planner_named(name))
    assert is_search(_Own())
