"""Intervals: they hold the truth, widen where one extrapolates, and never promise too much."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtrit

from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.calibration import Factors, calibrate
from heterps_envs.layer_costs.intervals import (
    COVERAGE,
    INSIDE_ERROR,
    PRIOR_WEIGHT,
    QUANTILES,
    STATED_ERROR,
    error_interval,
    expected_error,
    leave_one_out_errors,
    quantile,
    whole_model_error,
)
from heterps_envs.layer_costs.samples import DeviceSamples, device_samples, measurements_of
from tests.envs.measured_devices import FAST, JOB, MIDDLE, SLOW, TYPES, gpu, measured_profile

KNOWN = {"linear": Factors(1.25, 1.6, 3.0), "attention block": Factors(1.6, 3.0, 8.0)}
MANY = tuple(
    gpu(f"gpu{index}", flops * 1e12, bandwidth * 1e12)
    for index, (flops, bandwidth) in enumerate(
        [(10, 0.6), (16, 0.9), (20, 0.7), (40, 0.9), (150, 1.5), (300, 2.0)]
    )
)


def samples_of(profile: ModelProfile) -> list[DeviceSamples]:
    known = {entry.name: entry for entry in (*TYPES, *MANY)}
    names = dict.fromkeys(entry.device_type for entry in profile.measurements)
    return [
        device_samples(
            profile, known[name], JOB, list(measurements_of(profile, name, JOB).values())
        )
        for name in names
    ]


def test_types_that_follow_the_formula_have_small_leave_one_out_errors() -> None:
    errors = leave_one_out_errors(samples_of(measured_profile(MANY, KNOWN)))
    assert set(errors) == {entry.name for entry in MANY}
    assert max(map(abs, errors.values())) < 0.05


def test_a_type_that_is_slower_than_its_peaks_say_has_that_error() -> None:
    speeds = {"gpu2": 1.5}
    errors = leave_one_out_errors(samples_of(measured_profile(MANY, KNOWN, speeds)))
    assert errors["gpu2"] == pytest.approx(math.log(1.5), abs=0.1)


def test_one_type_has_no_leave_one_out_error() -> None:
    assert leave_one_out_errors(samples_of(measured_profile([SLOW], KNOWN))) == {}


def test_the_expected_error_grows_with_the_distance_from_what_was_measured() -> None:
    slow, middle, fast = samples_of(measured_profile(TYPES, KNOWN))
    assert expected_error(0.0, []) == STATED_ERROR
    assert expected_error(middle.balance, [slow, fast]) == INSIDE_ERROR
    near, far = (expected_error(fast.balance, seen) for seen in ([middle], [slow]))
    assert INSIDE_ERROR < near < far


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=3), st.floats(0.01, 1))
def test_larger_errors_widen_the_interval_around_one(errors: list[float], more: float) -> None:
    samples = samples_of(measured_profile(TYPES[: len(errors)], KNOWN))
    names = [entry.device_type for entry in samples]
    found = dict(zip(names, errors, strict=True))
    worse = {name: math.copysign(abs(error) + more, error) for name, error in found.items()}
    narrow = error_interval(samples[0].balance, samples, found)
    wide = error_interval(samples[0].balance, samples, worse)
    assert wide.low < narrow.low < 1 < narrow.high < wide.high
    assert narrow.low * narrow.high == pytest.approx(1)


def test_measuring_more_types_narrows_the_interval() -> None:
    none = error_interval(samples_of(measured_profile(TYPES, KNOWN))[1].balance, [], {})
    ends = samples_of(measured_profile([SLOW, FAST], KNOWN))
    two = error_interval(ends[0].balance + 0.5, ends, {"slow": 0.0, "fast": 0.0})
    assert two.high < none.high


def test_quantiles_are_those_of_student_however_many_errors_there_are() -> None:
    for count in range(len(QUANTILES) + 4):
        exact = float(stdtrit(PRIOR_WEIGHT + count, (1 + COVERAGE) / 2))
        assert quantile(count) == pytest.approx(exact, rel=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_about_four_in_five_intervals_hold_the_truth(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inside = total = 0
    for _ in range(2):
        speeds = {entry.name: math.exp(rng.normal(0, INSIDE_ERROR)) for entry in MANY}
        samples = samples_of(measured_profile(MANY, KNOWN, speeds))
        for left_out in samples:
            others = [entry for entry in samples if entry is not left_out]
            truth = math.exp(whole_model_error(calibrate(others), left_out))
            interval = error_interval(left_out.balance, others, leave_one_out_errors(others))
            inside += interval.low <= truth <= interval.high
            total += 1
    assert inside / total > 0.6


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(3)))
def test_names_and_order_of_types_change_nothing(order: list[int]) -> None:
    speeds = {"slow": 1.2, "middle": 0.9}
    first = leave_one_out_errors(samples_of(measured_profile(TYPES, KNOWN, speeds)))
    shuffled = [TYPES[index] for index in order]
    second = leave_one_out_errors(samples_of(measured_profile(shuffled, KNOWN, speeds)))
    assert {name: pytest.approx(error, abs=1e-3) for name, error in first.items()} == second
    assert MIDDLE.name in second
