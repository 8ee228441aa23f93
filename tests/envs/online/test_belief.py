"""What is believed of layer times after measurements of stages, and how surely."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_envs.online.belief import Direction, Factors, StageTime, TypeBelief

DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")
BASE_S = np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])


def belief(num_devices: int = 1) -> TypeBelief:
    return TypeBelief(BASE_S, 2 * BASE_S, num_devices)


def run(device: int, first: int, last: int, factor: float) -> list[StageTime]:
    """Both passes of a stage that takes `factor` times its base seconds."""
    forward = float(BASE_S[first : last + 1].sum()) * factor
    return [
        StageTime(device, direction, first, last, seconds)
        for direction, seconds in zip(DIRECTIONS, (forward, 2 * forward), strict=True)
    ]


def stage_factor(factors: Factors, first: int, last: int) -> float:
    part = slice(first, last + 1)
    return float((BASE_S * factors.forward)[part].sum() / BASE_S[part].sum())


def test_without_measurements_all_is_as_before() -> None:
    assert belief().factors(0).forward == pytest.approx(np.ones(6))
    assert not belief().is_measured


def test_a_measured_stage_is_predicted_and_other_layers_follow_a_little_less() -> None:
    known = belief()
    known.observe(run(0, 0, 2, 1.5))
    factors = known.factors(0)
    assert stage_factor(factors, 0, 2) == pytest.approx(1.5, rel=0.01)
    assert 1.25 < stage_factor(factors, 3, 5) < 1.5
    assert factors.backward == pytest.approx(factors.forward, rel=0.01)


def test_overlapping_stages_tell_layers_apart() -> None:
    known = belief()
    known.observe([*run(0, 0, 5, 1.2)])
    known.observe([*run(0, 0, 2, 1.0)])
    assert stage_factor(known.factors(0), 3, 5) == pytest.approx(1.4, rel=0.02)


def test_what_was_measured_is_surer_than_what_was_not_and_repeating_makes_it_surer() -> None:
    known = belief()
    seen, unseen = StageTime(0, "forward", 0, 2, 1.0), StageTime(0, "forward", 3, 5, 1.0)
    before = known.spread(seen)
    known.observe(run(0, 0, 2, 1.3))
    once = known.spread(seen)
    assert once < 0.1 * before
    assert 3 * once < known.spread(unseen) < before
    known.observe(run(0, 0, 2, 1.3))
    assert known.spread(seen) < once


def test_devices_of_a_type_share_what_is_learned() -> None:
    known = belief(3)
    known.observe([*run(0, 0, 2, 1.3), *run(1, 0, 2, 1.3)])
    assert stage_factor(known.factors(2), 0, 2) == pytest.approx(1.3, rel=0.02)


def test_a_straggler_says_nothing_of_the_others() -> None:
    known = belief(3)
    known.observe([*run(0, 0, 2, 3.0), *run(1, 0, 2, 1.0)])
    assert stage_factor(known.factors(0), 0, 2) == pytest.approx(3.0, rel=0.02)
    assert stage_factor(known.factors(1), 0, 2) == pytest.approx(1.0, rel=0.02)
    assert stage_factor(known.factors(2), 0, 2) == pytest.approx(1.0, rel=0.03)


def test_a_device_that_changes_is_as_it_is_now_and_what_it_told_of_layers_stays() -> None:
    known = belief(2)
    known.observe([*run(0, 0, 2, 1.0), *run(0, 3, 5, 1.3), *run(1, 0, 2, 1.0)])
    known.observe([*run(0, 0, 2, 2.0)])
    assert stage_factor(known.factors(0), 0, 2) == pytest.approx(2.0, rel=0.02)
    assert stage_factor(known.factors(1), 0, 2) == pytest.approx(1.0, rel=0.02)
    ratio = stage_factor(known.factors(0), 3, 5) / stage_factor(known.factors(0), 0, 2)
    assert ratio == pytest.approx(1.3, rel=0.05)
    known.observe([*run(0, 0, 2, 1.0)])
    assert stage_factor(known.factors(0), 0, 2) == pytest.approx(1.0, rel=0.02)


def test_the_seconds_beside_the_layers_take_no_factor_of_a_layer() -> None:
    known = TypeBelief(BASE_S, 2 * BASE_S, 1)
    known.observe([StageTime(0, "forward", 0, 2, 6.0 + 4.0, offset_s=4.0)])
    assert known.factors(0).forward == pytest.approx(np.ones(6))


def test_draws_lie_around_the_most_likely_factors_as_widely_as_the_spread_says() -> None:
    known = belief()
    known.observe(run(0, 0, 2, 1.3))
    rng = np.random.default_rng(0)
    drawn = [known.draw(rng)[0] for _ in range(400)]
    logs = np.log([stage_factor(each, 0, 2) for each in drawn])
    assert np.mean(logs) == pytest.approx(math.log(1.3), abs=0.01)
    spread = known.spread(StageTime(0, "forward", 0, 2, 1.0))
    assert np.std(logs) == pytest.approx(spread, rel=0.2)


def test_optimism_is_largest_where_nothing_was_measured() -> None:
    known = belief()
    known.observe(run(0, 0, 2, 1.0))
    hoped = known.optimistic_type_factors(1.0)
    assert (hoped.forward < known.type_factors().forward).all()
    assert hoped.forward[3:].max() < hoped.forward[:3].min()


stages = st.tuples(st.integers(0, 5), st.integers(0, 5)).map(lambda ends: sorted(ends))
windows = st.lists(st.tuples(stages, st.floats(0.7, 1.4)), min_size=1, max_size=5)


@settings(max_examples=40, deadline=None)
@given(windows)
def test_the_order_within_a_window_does_not_matter(window: list[tuple[list[int], float]]) -> None:
    times = [time for (first, last), factor in window for time in run(0, first, last, factor)]
    forth, back = belief(), belief()
    forth.observe(times)
    back.observe(times[::-1])
    assert forth.factors(0).forward == pytest.approx(back.factors(0).forward, rel=1e-5)


@settings(max_examples=40, deadline=None)
@given(stages, st.floats(0.3, 4.0))
def test_one_measurement_is_believed_up_to_its_noise(ends: list[int], factor: float) -> None:
    known = belief()
    known.observe(run(0, ends[0], ends[1], factor))
    believed = stage_factor(known.factors(0), ends[0], ends[1])
    assert abs(math.log(believed)) <= abs(math.log(factor)) + 1e-6
    assert believed == pytest.approx(factor, rel=0.02)
