"""The calibration: known efficiencies are found again, and hold back where little was measured."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.calibration import Calibration, Factors, calibrate
from heterps_envs.layer_costs.roofline import BANDWIDTH_EFFICIENCY, COMPUTE_EFFICIENCY
from heterps_envs.layer_costs.samples import device_samples, measurements_of
from tests.envs.measured_devices import JOB, SLOW, TYPES, gpu, measured_profile

LINEAR = Factors(compute=1.25, memory=1.6, launch=3.0)
BLOCK = Factors(compute=1.6, memory=3.0, launch=8.0)
KNOWN = {"linear": LINEAR, "attention block": BLOCK}


def calibration(profile: ModelProfile) -> Calibration:
    types = [
        entry for entry in TYPES if entry.name in {m.device_type for m in profile.measurements}
    ]
    return calibrate(
        [
            device_samples(profile, entry, JOB, list(found.values()))
            for entry in types
            if (found := measurements_of(profile, entry.name, JOB))
        ]
    )


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_known_efficiencies_are_found_for_each_family(which: str) -> None:
    fitted = getattr(calibration(measured_profile(TYPES, KNOWN)), which)
    for family, factors in KNOWN.items():
        assert fitted.families[family].compute == pytest.approx(factors.compute, rel=0.05)
        assert fitted.families[family].memory == pytest.approx(factors.memory, rel=0.05)


def test_unseen_devices_are_predicted_where_they_follow_the_formula() -> None:
    unseen = gpu("unseen", 120e12, 1.5e12)
    truth = measured_profile([unseen], KNOWN).measurements[0]
    predicted = calibration(measured_profile(TYPES, KNOWN)).predict(
        measured_profile([], KNOWN), unseen, JOB
    )
    np.testing.assert_allclose(predicted[0], truth.forward_s, rtol=0.03)
    np.testing.assert_allclose(predicted[1], truth.backward_s, rtol=0.03)
    np.testing.assert_allclose(predicted[2], truth.optimizer_s, rtol=1e-6)


def test_one_bad_measurement_hardly_matters() -> None:
    profile = measured_profile(TYPES, KNOWN)
    bad = profile.measurements[0]
    spoilt = bad.changed(forward_s=(50 * bad.forward_s[0], *bad.forward_s[1:]))
    others = profile.measurements[1:]
    with_bad = profile.changed(measurements=(spoilt, *others))
    found = calibration(with_bad).forward.families["linear"]
    assert found.compute == pytest.approx(LINEAR.compute, rel=0.1)


def test_a_family_without_measurements_gets_the_efficiencies_of_all_layers() -> None:
    fitted = calibration(measured_profile(TYPES, KNOWN)).forward
    assert "convolution" not in fitted.families
    work = device_samples(
        profile := measured_profile([SLOW], KNOWN), SLOW, JOB, [profile.measurements[0]]
    ).forward.work
    families = np.full(len(work.compute_s), "convolution")
    np.testing.assert_allclose(fitted.seconds(work, families), fitted.overall.seconds(work))


def test_one_device_moves_the_efficiency_that_matters_to_it_and_leaves_the_other() -> None:
    twice = Factors(2 / COMPUTE_EFFICIENCY, 2 / BANDWIDTH_EFFICIENCY, 1.0)
    profile = measured_profile([SLOW], {"linear": twice, "attention block": twice})
    found = calibration(profile).forward.families["linear"]
    assert found.compute == pytest.approx(twice.compute, rel=0.1)
    assert found.memory == pytest.approx(1 / BANDWIDTH_EFFICIENCY, rel=0.2)


def test_an_optimizer_that_was_not_measured_keeps_the_stated_efficiency() -> None:
    profile = measured_profile(TYPES, KNOWN)
    without = profile.changed(
        measurements=tuple(entry.changed(optimizer_s=()) for entry in profile.measurements)
    )
    assert calibration(profile).optimizer_factor == pytest.approx(2.0)
    assert calibration(without).optimizer_factor is None


factor = st.floats(0.3, 10)


@settings(max_examples=15, deadline=None)
@given(factor, factor, factor, st.floats(1, 30), st.floats(1, 30))
def test_a_device_with_higher_peaks_is_never_predicted_slower(
    compute: float, memory: float, launch: float, faster: float, wider: float
) -> None:
    families = {"linear": Factors(compute, memory, launch), "attention block": BLOCK}
    fitted = calibration(measured_profile(TYPES, families))
    better = gpu("better", 10e12 * faster, 1e12 * wider)
    plain = measured_profile([], KNOWN)
    for slow, fast in zip(
        fitted.predict(plain, SLOW, JOB), fitted.predict(plain, better, JOB), strict=True
    ):
        assert (fast <= slow * (1 + 1e-12)).all()
