"""A device of a group computes layers by batch for its samples, and holds all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heterps_configs.documents.cluster import Link
from heterps_configs.documents.stage import Stage
from heterps_envs.layer_costs.sample_split import layers_by_batch
from heterps_envs.problem import Problem
from tests.envs.small_problems import chain_problem

LINK = Link(latency_s=0.5, bandwidth_bytes_per_s=100.0)


def problem_of(micro_batch_size: int = 4) -> Problem:
    """Three layers of which all work is products of matrices."""
    problem = chain_problem(
        [4.0, 6.0, 2.0], [8.0, 9.0, 3.0], parameters=[100, 50, 0], activation_bytes=[80, 80, 80],
        output_bytes=[8, 16, 0], micro_batch_size=micro_batch_size, link=LINK,
    )  # fmt: skip
    layers = tuple(
        layer.changed(forward_flops=10e12, backward_flops=20e12) for layer in problem.profile.layers
    )
    return replace(problem, profile=problem.profile.changed(layers=layers))


def stage_of(problem: Problem, batch_layers: tuple[int, ...], shares: tuple[float, ...]) -> Stage:
    return Stage(
        name="s",
        first_layer=0,
        last_layer=problem.profile.num_layers - 1,
        devices=tuple(f"d0-{index}" for index in range(len(shares))),
        tensor_shares=shares,
        batch_layers=batch_layers,
    )


def sum_s(num_bytes: float) -> float:
    """An all-reduce over two devices."""
    return 2 * (LINK.latency_s + num_bytes / 2 / LINK.bandwidth_bytes_per_s)


@pytest.mark.parametrize(("rank", "part"), [(0, 0.75), (1, 0.25), (None, 0.75)])
def test_passes_take_the_share_of_the_samples_and_the_sums(rank: int | None, part: float) -> None:
    problem = problem_of()
    own = problem.for_stage(stage_of(problem, (1,), (0.75, 0.25)), rank).tables
    # What it returns comes together; so do gradients of what it takes, and those of its parameters.
    returned, taken, gradients = 4 * 16, 4 * 8, 4 * 50
    forward_s = part * 6.0 + sum_s(returned)
    backward_s = part * 9.0 + sum_s(taken) + sum_s(gradients)
    assert own.forward_s[:, 0].tolist() == pytest.approx([4.0, forward_s, 2.0], rel=1e-4)
    assert own.backward_s[:, 0].tolist() == pytest.approx([8.0, backward_s, 3.0], rel=1e-4)


def test_each_device_holds_all_parameters_and_keeps_what_its_samples_need() -> None:
    problem = problem_of()
    own = problem.for_stage(stage_of(problem, (0, 1), (0.75, 0.25)), 1).tables
    whole = problem.tables
    for field in ("state_bytes", "gradient_bytes", "output_bytes"):
        assert np.array_equal(getattr(own, field), getattr(whole, field)), field
    others = whole.activation_bytes - own.activation_bytes
    assert others.tolist() == pytest.approx([3 * 80, 3 * 80, 0])
    assert own.optimizer_s.tolist() == whole.optimizer_s.tolist()


def test_samples_stay_apart_from_one_layer_to_the_next() -> None:
    problem = problem_of()
    gradients = problem.tables.gradient_bytes
    both = layers_by_batch(problem.profile, (0, 1), gradients, problem.job)
    first, second = (both[index].tensor_split for index in (0, 1))
    assert first is not None
    assert second is not None
    assert (first.forward_sums, second.forward_sums) == ((), (16,))
    assert (first.backward_sums, second.backward_sums) == ((100.0,), (50.0,))


def test_of_fewer_samples_than_devices_each_computes_all() -> None:
    problem = problem_of(micro_batch_size=2)
    own = problem.for_stage(stage_of(problem, (0, 1, 2), (0.5, 0.25, 0.25))).tables
    for field in ("forward_s", "backward_s", "activation_bytes"):
        assert np.array_equal(getattr(own, field), getattr(problem.tables, field)), field
