"""Layers on one device of a tensor-parallel group: measured there, scaled, or estimated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_configs.documents.cluster import Collective, Link
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_envs.layer_costs.estimated import Estimator
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem

LINK = Link(latency_s=0.5, bandwidth_bytes_per_s=4.0)
SPLIT = TensorSplit(
    unit="heads",
    num_units=8,
    parameters=80,
    forward_flops=8e12,
    backward_flops=16e12,
    activation_bytes=60.0,
    forward_sums=(8.0, 8.0),
    backward_sums=(8.0,),
)
# A sum of 8 bytes over 2 devices: two messages of half of it.
SUM_S = 2 * (0.5 + 4.0 / 4.0)


def two_layers(is_measured: bool = True) -> Problem:
    """A layer that can be split and one that cannot, measured at 3 and 5 seconds forward."""
    problem = chain_problem(
        [3.0, 5.0], [6.0, 10.0], parameters=[100, 50], activation_bytes=[80, 40],
        output_bytes=[8, 0], optimizer_s=[1.0, 1.0], link=LINK,
    )  # fmt: skip
    first, second = problem.profile.layers
    layers = (
        first.changed(forward_flops=10e12, backward_flops=20e12, tensor_split=SPLIT),
        second.changed(forward_flops=10e12, backward_flops=20e12),
    )
    found = problem.profile.measurements if is_measured else ()
    return replace(problem, profile=problem.profile.changed(layers=layers, measurements=found))


def test_a_device_alone_is_a_group_of_one() -> None:
    problem = two_layers()
    assert problem.at_degree(1) is problem
    assert problem.at_degree(4).at_degree(1) is problem
    assert problem.at_degree(4) is problem.at_degree(4)
    assert problem.at_degree(4).at_degree(2) is problem.at_degree(2)


def test_a_device_of_a_group_holds_its_part_of_what_can_be_split() -> None:
    whole, half = two_layers(), two_layers().at_degree(2)
    assert half.tables.state_bytes.tolist() == [8 * 60, 8 * 50]
    assert half.tables.gradient_bytes.tolist() == [4 * 60, 4 * 50]
    assert half.tables.output_bytes.tolist() == whole.tables.output_bytes.tolist()
    assert half.tables.device_count.tolist() == whole.tables.device_count.tolist()
    kept = [each.layer_memory.kept_bytes(0, 0, 0) for each in (whole, half)]
    assert kept == [80 + 8, 50 + 8]
    assert half.layers_fingerprint == whole.layers_fingerprint


def test_times_measured_on_such_a_group_hold_its_sums_already() -> None:
    problem = two_layers()
    own = Measurement(
        device_type="class0", tensor_parallel=2, micro_batch_size=1,
        forward_s=(2.0, 4.0), backward_s=(3.0, 7.0), activation_bytes=(31.0, 17.0),
    )  # fmt: skip
    profile = problem.profile.changed(measurements=(*problem.profile.measurements, own))
    half = replace(problem, profile=profile).at_degree(2)
    assert half.layer_times.sources == ("measured",)
    assert half.tables.forward_s[:, 0].tolist() == [2.0, 4.0]
    assert half.tables.backward_s[:, 0].tolist() == [3.0, 7.0]
    assert half.layer_memory.kept_bytes(0, 0, 0) == 31 + 8
    assert replace(problem, profile=profile).at_degree(4).layer_times.sources == ("scaled",)


def test_times_measured_alone_are_scaled_by_the_roofline_and_sums_added() -> None:
    problem = two_layers()
    half = problem.at_degree(2)
    entry, estimator = problem.classes[0].type, problem.layer_times.estimator
    before, after = (
        estimator.seconds(entry, each.profile, problem.job) for each in (problem, half)
    )
    assert half.layer_times.sources == ("scaled",)
    assert after.forward_s[0] < 0.7 * before.forward_s[0]
    assert half.tables.forward_s[:, 0] == pytest.approx(
        [3.0 * after.forward_s[0] / before.forward_s[0] + 2 * SUM_S, 5.0]
    )
    assert half.tables.backward_s[:, 0] == pytest.approx(
        [6.0 * after.backward_s[0] / before.backward_s[0] + SUM_S, 10.0]
    )
    assert half.tables.optimizer_s[:, 0] == pytest.approx([60 / 100, 1.0])


def test_times_nobody_measured_are_the_roofline_of_the_split_layers_and_their_sums() -> None:
    problem = two_layers(is_measured=False)
    half = problem.at_degree(2)
    alone = Estimator(half.profile, [problem.classes[0].type], problem.job)
    expected = alone.seconds(problem.classes[0].type).forward_s + np.array([2 * SUM_S, 0.0])
    assert half.layer_times.sources == ("roofline estimate",)
    assert half.tables.forward_s[:, 0] == pytest.approx(expected)


def test_sums_take_what_was_measured_of_so_many_devices_of_the_node() -> None:
    problem = two_layers()
    (node,) = problem.cluster.nodes
    measured = Collective(kind="all-reduce", devices=2, latency_s=0.5, bandwidth_bytes_per_s=2.0)
    known = node.changed(collectives=(measured, measured.changed(devices=4, latency_s=0.1)))
    found = replace(problem, cluster=problem.cluster.changed(nodes=(known,)))
    more_s = found.at_degree(2).tables.forward_s - problem.at_degree(2).tables.forward_s
    assert more_s[0, 0] == pytest.approx(2 * 0.5 + 16 / 2 - 2 * SUM_S)
    assert more_s[1, 0] == 0
    of_three = found.at_degree(3).tables.forward_s
    assert (of_three == problem.at_degree(3).tables.forward_s).all()


def test_a_group_of_more_devices_than_units_leaves_the_layer_whole() -> None:
    problem = two_layers()
    third, ninth = problem.at_degree(3), problem.at_degree(9)
    assert third.tables.state_bytes[0] < problem.tables.state_bytes[0]
    assert ninth.tables.forward_s.tolist() == problem.tables.forward_s.tolist()
    assert ninth.tables.state_bytes.tolist() == problem.tables.state_bytes.tolist()
