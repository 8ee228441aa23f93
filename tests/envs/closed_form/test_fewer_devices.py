"""Devices that are gone leave everything else as it was."""

from __future__ import annotations

from itertools import permutations

import pytest

from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem, plan_of


def problem_on(cluster: str) -> Problem:
    problem = chain_problem([1.0] * 4, [2.0] * 4, counts=(2,))
    return Problem(profile=problem.profile, cluster=load_cluster(cluster), job=problem.job)


@pytest.mark.parametrize("cluster", ["spot-two-regions", "a100-v100-t4", "local-emulated"])
def test_devices_that_are_left_keep_their_order_types_and_links(cluster: str) -> None:
    problem = problem_on(cluster)
    names = [device.name for device in problem.cluster.devices]
    lost = names[1::3]
    left = without_devices(problem, lost)
    assert [device.name for device in left.cluster.devices] == [n for n in names if n not in lost]
    for device in left.cluster.devices:
        assert device == problem.device_named[device.name]
    for first, second in permutations(left.device_named, 2):
        assert left.link(first, second) == problem.link(first, second)


def test_a_node_without_devices_is_gone_and_so_are_exceptions_about_its_links() -> None:
    problem = problem_on("a100-v100")
    node = problem.cluster.nodes[0]
    lost = [name for group in node.devices for name in group.device_names()]
    left = without_devices(problem, lost)
    assert [entry.name for entry in left.cluster.nodes] == [
        entry.name for entry in problem.cluster.nodes[1:]
    ]


def test_a_plan_that_does_not_use_the_lost_device_takes_as_long_as_before() -> None:
    problem = chain_problem([1.0] * 4, [2.0] * 4, counts=(3, 2), speeds=(1.0, 2.0))
    plan = plan_of(problem, {"a": (0, 2, "d0-0"), "b": (3, 3, "d1-1")}, {("a", "b"): range(8)})
    left = without_devices(problem, ["d0-2", "d1-0"])
    assert estimate(left, plan).step_time_s == estimate(problem, plan).step_time_s


def test_no_lost_device_is_the_same_problem_and_all_lost_is_an_error() -> None:
    problem = chain_problem([1.0] * 2, [1.0] * 2, counts=(2,))
    assert without_devices(problem, ["nobody"]) is problem
    with pytest.raises(HeterpsError, match="no device is left"):
        without_devices(problem, ["d0-0", "d0-1"])
