"""The interval of a step time: around it, narrower with more measured, none where all is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, device_type_named
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.layer_costs.calibration import Factors
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.interval import unmeasured_types
from heterps_envs.simulator.simulate import estimate
from tests.envs.measured_devices import FAST, LAYERS, MIDDLE, SLOW, measured_profile

KNOWN = {"linear": Factors(1.25, 1.6, 3.0), "attention block": Factors(1.6, 3.0, 8.0)}


def planned(*measured: DeviceType) -> tuple[Problem, Plan]:
    """The first half of the layers on SLOW, the second on MIDDLE."""
    cluster = Cluster(
        name="two",
        device_types=(SLOW, MIDDLE),
        nodes=(
            Node(
                name="n",
                devices=(DeviceGroup(name="a", type="slow"), DeviceGroup(name="b", type="middle")),
                link=Link(latency_s=0, bandwidth_bytes_per_s=1e12),
            ),
        ),
    )
    profile = measured_profile(measured, KNOWN)
    problem = Problem(profile, cluster, Job(global_batch_size=8, dtype="float32"))
    half = len(LAYERS) // 2
    stages = [PlacedStage(0, half - 1, 0), PlacedStage(half, len(LAYERS) - 1, 1)]
    return problem, bind(problem, stages, planner="test", seed=0)


def shown(*measured: DeviceType) -> Estimate:
    return estimate(*planned(*measured), with_interval=True)


def test_there_is_no_interval_where_every_type_was_measured() -> None:
    result = shown(SLOW, MIDDLE)
    assert (result.step_time_low_s, result.step_time_high_s) == (None, None)
    assert result.layer_times == "measured"
    assert unmeasured_types(*planned(SLOW, MIDDLE)) == ()


@pytest.mark.parametrize(
    ("measured", "label"),
    [
        ((), "roofline estimate"),
        ((FAST,), "roofline estimate"),  # No cluster and no catalogue knows its peaks.
        ((device_type_named("T4"),), "calibrated roofline"),
        ((SLOW,), "partly measured"),
    ],
)
def test_an_estimate_lies_in_its_interval_and_says_what_it_rests_on(
    measured: tuple[DeviceType, ...], label: str
) -> None:
    result = shown(*measured)
    assert result.step_time_low_s is not None
    assert result.step_time_high_s is not None
    assert result.step_time_low_s < result.step_time_s < result.step_time_high_s
    assert result.layer_times == label
    assert any("not measured here" in note for note in result.notes)


def test_measuring_one_of_two_types_narrows_the_interval() -> None:
    neither, one = shown(), shown(SLOW)
    ratios = [(each.step_time_high_s or 0) / (each.step_time_low_s or 1) for each in (neither, one)]
    assert ratios[1] < ratios[0]
    assert unmeasured_types(*planned(SLOW)) == ("middle",)


def test_an_interval_has_to_be_asked_for() -> None:
    result = estimate(*planned())
    assert (result.step_time_low_s, result.step_time_high_s) == (None, None)
    assert result.notes == ()


def test_profiles_of_other_models_calibrate_a_problem() -> None:
    problem, plan = planned()
    other = measured_profile([SLOW, MIDDLE], KNOWN)
    trained = replace(problem, training=(other,))
    before, after = (estimate(each, plan, with_interval=True) for each in (problem, trained))
    assert after.layer_times == "calibrated roofline"
    assert (after.step_time_high_s or 0) / after.step_time_s < (
        before.step_time_high_s or 0
    ) / before.step_time_s
