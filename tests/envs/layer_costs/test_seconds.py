"""Layer times: measured, emulated, estimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.roofline import LAUNCH_S
from heterps_envs.layer_costs.seconds import layer_times
from tests.envs.small_problems import device_type

LAYERS = (
    LayerProfile(
        name="big",
        kind="Linear",
        num_parameters=1000,
        forward_flops=2e12,
        backward_flops=4e12,
        activation_bytes=1,
        output_bytes=1,
        memory_traffic_bytes=4e9,
    ),
    LayerProfile(
        name="empty",
        kind="Identity",
        num_parameters=0,
        forward_flops=0,
        backward_flops=0,
        activation_bytes=0,
        output_bytes=0,
    ),
)
HOST = device_type("host")


def profile(*measurements: Measurement) -> ModelProfile:
    return ModelProfile(name="two", layers=LAYERS, measurements=measurements)


def measurement(**values: Any) -> Measurement:
    defaults = {
        "device_type": "host",
        "micro_batch_size": 1,
        "forward_s": (1.0, 0.5),
        "backward_s": (2.0, 1.0),
    }
    return Measurement(**(defaults | values))


def job(micro_batch_size: int = 1, **values: Any) -> Job:
    defaults = {"global_batch_size": 64, "dtype": "float32"}
    return Job(micro_batch_size=micro_batch_size, **(defaults | values))


def emulated(slowdown: float) -> DeviceType:
    entry = device_type("emulated")
    emulation = Emulation(host_device_type="host", slowdown=slowdown)
    return entry.changed(emulation=emulation)


def test_a_measurement_wins_over_the_estimate() -> None:
    times = layer_times(profile(measurement()), [HOST, device_type("other")], job())
    assert times.sources == ("measured", "calibrated roofline")
    assert times.forward_s[:, 0].tolist() == [1.0, 0.5]
    assert times.backward_s[:, 0].tolist() == [2.0, 1.0]


@pytest.mark.parametrize(("wanted", "factor"), [(1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (8, 6.0)])
def test_times_are_linear_between_measured_micro_batch_sizes(wanted: int, factor: float) -> None:
    measured = profile(
        measurement(micro_batch_size=4, forward_s=(3.0, 1.5)), measurement(micro_batch_size=2)
    )
    times = layer_times(measured, [HOST], job(wanted))
    np.testing.assert_allclose(times.forward_s[:, 0], [factor * 1.0, factor * 0.5])


def test_the_later_of_two_measurements_wins_and_a_correction_is_named() -> None:
    twice = profile(measurement(), measurement(forward_s=(9.0, 9.0), source="corrected"))
    times = layer_times(twice, [HOST], job())
    assert times.forward_s[:, 0].tolist() == [9.0, 9.0]
    assert times.sources == ("corrected",)


def test_measurements_of_another_dtype_or_tensor_parallel_degree_do_not_count() -> None:
    others = profile(measurement(dtype="bfloat16"), measurement(tensor_parallel=2))
    assert layer_times(others, [HOST], job()).sources == ("roofline estimate",)


def test_an_emulated_device_takes_its_hosts_times_times_its_slowdown() -> None:
    timed = profile(measurement(optimizer_s=(0.25, 0.0)))
    times = layer_times(timed, [HOST, emulated(4.0)], job())
    np.testing.assert_allclose(times.forward_s[:, 1], 4 * times.forward_s[:, 0])
    np.testing.assert_allclose(times.optimizer_s[:, 1], [1.0, 0.0])
    assert times.sources == ("measured", "measured")


def test_an_optimizer_step_that_was_not_measured_is_estimated() -> None:
    estimated = layer_times(profile(), [emulated(4.0)], job()).optimizer_s
    partly = layer_times(profile(measurement()), [emulated(4.0)], job()).optimizer_s
    np.testing.assert_allclose(partly, estimated)


def test_the_roofline_is_the_slower_of_arithmetic_and_memory() -> None:
    # device_type(): 1e12 FLOP/s at 50 %, 1e11 bytes/s at 70 %.
    times = layer_times(profile(), [HOST], job(micro_batch_size=2))
    assert times.forward_s[0, 0] == pytest.approx(2 * 2e12 / 0.5e12 + LAUNCH_S)
    assert times.forward_s[1, 0] == 0
    narrow = HOST.changed(memory_bandwidth_bytes_per_s=1e8)
    slow = layer_times(profile(), [narrow], job(micro_batch_size=2))
    assert slow.forward_s[0, 0] == pytest.approx((2 * 4e9 + 4000) / 0.7e8 + LAUNCH_S)


@given(st.floats(1, 100), st.floats(1, 100))
def test_a_better_device_is_never_estimated_slower(compute: float, memory: float) -> None:
    better = HOST.changed(
        peak_flops_per_s={"float32": 1e12 * compute}, memory_bandwidth_bytes_per_s=1e11 * memory
    )
    times = layer_times(profile(), [HOST, better], job())
    for seconds in (times.forward_s, times.backward_s, times.optimizer_s):
        assert (seconds[:, 1] <= seconds[:, 0]).all()


def test_the_part_of_the_backward_pass_for_parameters_is_measured_or_half_of_it() -> None:
    timed = profile(measurement(weight_gradient_s=(0.5, 0.25)))
    times = layer_times(timed, [HOST, emulated(4.0), device_type("other")], job())
    np.testing.assert_allclose(times.weight_gradient_s[:, 0], [0.5, 0.25])
    np.testing.assert_allclose(times.weight_gradient_s[:, 1], [2.0, 1.0])
    np.testing.assert_allclose(times.weight_gradient_s[0, 2], times.backward_s[0, 2] / 2)
    # The empty layer has no parameters.
    unmeasured = layer_times(profile(measurement()), [HOST], job())
    np.testing.assert_allclose(unmeasured.weight_gradient_s[:, 0], [1.0, 0.0])
