"""Emulated devices that are not as believed."""

from __future__ import annotations

import numpy as np

from benchmarks.online.real_drift_cases import believed_problem, best_plan, true_problem
from heterps_envs.simulator.simulate import estimate


def test_the_truth_is_another_one_on_the_same_emulated_devices() -> None:
    believed = believed_problem()
    truth = true_problem(believed, np.random.default_rng(1))
    assert list(truth.device_named) == list(believed.device_named)
    assert all(device.type.emulation is not None for device in truth.cluster.devices)
    ratios = truth.tables.forward_s / believed.tables.forward_s
    assert ratios.std() > 0.1
    assert np.allclose(ratios[:, truth.class_of["slow-0"]], ratios[:, truth.class_of["slow-1"]])


def test_who_knows_the_truth_plans_for_it() -> None:
    believed = believed_problem()
    truth = true_problem(believed, np.random.default_rng(7))
    knowing_s = estimate(truth, best_plan(truth)).step_time_s
    assert knowing_s <= 1.01 * estimate(truth, best_plan(believed)).step_time_s
