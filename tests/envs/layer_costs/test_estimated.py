"""Estimated times: what counts as measured, for which device types, and what stays as it is."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.calibration import Factors
from heterps_envs.layer_costs.estimated import Estimator
from heterps_envs.layer_costs.intervals import MEASURED
from heterps_envs.layer_costs.seconds import layer_times
from heterps_envs.problem import Problem
from tests.envs.measured_devices import FAST, JOB, MIDDLE, SLOW, TYPES, gpu, measured_profile

KNOWN = {"linear": Factors(1.25, 1.6, 3.0), "attention block": Factors(1.6, 3.0, 8.0)}
UNSEEN = gpu("unseen", 120e12, 1.5e12)


def renamed(profile: ModelProfile, ending: str) -> ModelProfile:
    measurements = tuple(
        entry.changed(device_type=entry.device_type + ending) for entry in profile.measurements
    )
    return profile.changed(measurements=measurements)


def test_measured_types_keep_their_seconds_and_need_no_interval() -> None:
    profile = measured_profile([SLOW, FAST], KNOWN)
    times = layer_times(profile, [SLOW, MIDDLE, FAST], JOB)
    assert times.sources == ("measured", "calibrated roofline", "measured")
    assert times.forward_s[:, 0].tolist() == list(profile.measurements[0].forward_s)
    assert times.intervals[0] == times.intervals[2] == MEASURED
    assert times.intervals[1].low < 1 < times.intervals[1].high


def test_nothing_measured_leaves_the_stated_roofline_and_a_wide_interval() -> None:
    times = layer_times(measured_profile([], KNOWN), [SLOW], JOB)
    assert times.sources == ("roofline estimate",)
    assert times.intervals[0].high > 2


def test_processors_do_not_calibrate_graphics_cards() -> None:
    cpu = SLOW.changed(kind="cpu")
    profile = measured_profile([SLOW], KNOWN)
    assert layer_times(profile, [cpu, FAST], JOB).sources == ("measured", "roofline estimate")


def test_measurements_of_a_type_whose_peaks_nobody_knows_do_not_count() -> None:
    profile = measured_profile([SLOW], KNOWN)
    assert layer_times(profile, [FAST], JOB).sources == ("roofline estimate",)
    shipped = gpu("T4", 8.1e12, 320e9)
    known = measured_profile([shipped], KNOWN)
    assert layer_times(known, [FAST], JOB).sources == ("calibrated roofline",)


def test_corrected_times_and_emulated_types_calibrate_nothing_else() -> None:
    profile = measured_profile([SLOW], KNOWN)
    corrected = tuple(entry.changed(source="corrected") for entry in profile.measurements)
    after_run = profile.changed(measurements=corrected)
    assert layer_times(after_run, [SLOW, FAST], JOB).sources == ("corrected", "roofline estimate")
    emulation = Emulation(host_device_type="host", slowdown=2)
    emulated = SLOW.changed(emulation=emulation)
    assert layer_times(profile, [emulated, FAST], JOB).sources == ("measured", "roofline estimate")


def test_another_models_profile_calibrates_too() -> None:
    other = measured_profile(TYPES, KNOWN)
    times = layer_times(measured_profile([], KNOWN), [*TYPES, UNSEEN], JOB, training=(other,))
    assert set(times.sources) == {"calibrated roofline"}
    truth = measured_profile([UNSEEN], KNOWN).measurements[0]
    np.testing.assert_allclose(times.forward_s[:, 3], truth.forward_s, rtol=0.03)


def test_new_names_for_the_same_types_change_nothing() -> None:
    def under_new_name(entry: DeviceType) -> DeviceType:
        return entry.changed(name=entry.name + "-new")

    profile = measured_profile([SLOW, FAST], KNOWN)
    before = layer_times(profile, [SLOW, MIDDLE, FAST], JOB)
    types = [under_new_name(entry) for entry in (SLOW, MIDDLE, FAST)]
    after = layer_times(renamed(profile, "-new"), types, JOB)
    np.testing.assert_array_equal(before.forward_s, after.forward_s)
    np.testing.assert_array_equal(before.optimizer_s, after.optimizer_s)
    assert before.intervals == after.intervals


def test_two_equal_types_are_estimated_alike() -> None:
    twin = FAST.changed(name="twin")
    times = layer_times(measured_profile([SLOW, MIDDLE], KNOWN), [*TYPES, twin], JOB)
    np.testing.assert_array_equal(times.backward_s[:, 2], times.backward_s[:, 3])
    assert times.intervals[2] == times.intervals[3]


def test_leave_one_out_errors_are_reported_by_kind() -> None:
    estimator = Estimator(measured_profile(TYPES, KNOWN, {"fast": 1.3}), TYPES, JOB)
    errors = estimator.leave_one_out_errors("gpu")
    assert set(errors) == {"slow", "middle", "fast"}
    assert errors["fast"] == pytest.approx(np.log(1.3), abs=0.15)
    assert estimator.leave_one_out_errors("cpu") == {}


def test_what_was_measured_counts_whether_or_not_a_device_of_its_type_is_there() -> None:
    def cluster(*there: DeviceType) -> Cluster:
        node = Node(
            name="n",
            devices=tuple(DeviceGroup(name=each.name, type=each.name) for each in there),
            link=Link(latency_s=0.0, bandwidth_bytes_per_s=1e9),
        )
        return Cluster(name="c", device_types=(SLOW, FAST), nodes=(node,))

    profile = measured_profile([SLOW], KNOWN)
    both = Problem(profile, cluster(SLOW, FAST), JOB).layer_times
    alone = Problem(profile, cluster(FAST), JOB).layer_times
    assert alone.sources == both.sources[1:] == ("calibrated roofline",)
    np.testing.assert_array_equal(alone.forward_s[:, 0], both.forward_s[:, 1])
