"""The drift monitor: spikes pass, drift is told soon and with its size, recovery is told too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_envs.online.drift_monitor import DriftEvent, DriftMonitor, Subject

DEVICE = Subject("device", "d1")
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def events_of(ratios: Iterable[float], monitor: DriftMonitor | None = None) -> list[DriftEvent]:
    watcher = monitor or DriftMonitor()
    return [event for s, ratio in enumerate(ratios) for event in watcher.take(s, {DEVICE: ratio})]


def spiky(rng: np.random.Generator, num_steps: int) -> NDArray[np.float64]:
    """2 % noise; one step in twenty takes 1.5 to 10 times as long."""
    values = rng.normal(0, 0.02, num_steps)
    is_spike = rng.random(num_steps) < 0.05
    values[is_spike] += rng.uniform(0.4, 2.3, is_spike.sum())
    return np.exp(values)


def noisy(rng: np.random.Generator, num_steps: int) -> NDArray[np.float64]:
    return np.exp(rng.normal(0, 0.1, num_steps))


def heavy_tailed(rng: np.random.Generator, num_steps: int) -> NDArray[np.float64]:
    """Student's t with two degrees of freedom has no variance."""
    return np.exp(rng.standard_t(2, num_steps) * 0.03)


@given(
    st.lists(st.tuples(st.integers(4, 30), st.floats(0.01, 100)), max_size=12),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_lone_spikes_of_any_size_are_ignored(spikes: list[tuple[int, float]], seed: int) -> None:
    ratios = np.exp(np.random.default_rng(seed).normal(0, 0.01, 400))
    step = 0
    for gap, factor in spikes:
        step += gap
        ratios[step] *= factor
    assert events_of(ratios) == []


@pytest.mark.parametrize("draw", [spiky, noisy, heavy_tailed])
def test_false_alarms_are_rare(draw: Draw) -> None:
    alarms = [
        event for seed in range(10) for event in events_of(draw(np.random.default_rng(seed), 1000))
    ]
    assert len(alarms) <= 3  # of 10,000 steps


@pytest.mark.parametrize(
    ("draw", "slowdown", "most_steps"),
    [(spiky, 1.1, 20), (spiky, 1.2, 8), (spiky, 1.5, 6), (heavy_tailed, 1.2, 10), (noisy, 1.5, 10)],
)
def test_drift_is_told_soon(draw: Draw, slowdown: float, most_steps: int) -> None:
    delays, factors, since = [], [], []
    for seed in range(40):
        ratios = draw(np.random.default_rng(seed), 300)
        ratios[100:] *= slowdown
        event = next(event for event in events_of(ratios) if event.step >= 100)
        delays.append(event.step - 99)
        factors.append(event.factor)
        since.append(event.since_step)
    assert np.percentile(delays, 90) <= most_steps
    assert np.median(factors) == pytest.approx(slowdown, rel=0.04)
    assert np.median(since) == pytest.approx(100, abs=2)


def test_a_faster_device_has_drifted_too() -> None:
    event = events_of([1.0] * 20 + [0.5] * 10)[0]
    assert (event.kind, event.since_step) == ("drifted", 20)
    assert event.factor == pytest.approx(0.5)


def test_recovery_is_told_once_and_another_drift_again() -> None:
    monitor = DriftMonitor()
    ratios = [1.0] * 20 + [3.0] * 20 + [1.02] * 20 + [1.5] * 20 + [2.5] * 20
    events = events_of(ratios, monitor)
    assert [(event.kind, event.since_step) for event in events] == [
        ("drifted", 20), ("recovered", 40), ("drifted", 60), ("drifted", 80),
    ]  # fmt: skip
    assert events[1].factor == pytest.approx(1.02)
    assert monitor.factors() == {DEVICE: pytest.approx(2.5)}
    assert events[0].text.startswith("d1 takes 3.00 x its predicted time since step 21")
    assert events[1].text.startswith("d1 takes its predicted time again (1.02 x) since step 41")


def test_small_errors_of_the_prediction_are_no_drift() -> None:
    assert events_of([1.04] * 1000) == []
    assert events_of([0.96] * 1000) == []


def test_a_slow_ramp_is_told_in_parts() -> None:
    monitor = DriftMonitor()
    events = events_of(np.exp(np.linspace(0, np.log(2), 400)), monitor)
    assert len(events) >= 3
    assert monitor.factors()[DEVICE] > 1.8


def test_a_new_plan_forgets_its_stages_and_keeps_what_is_known_of_devices() -> None:
    monitor, stage = DriftMonitor(), Subject("stage", "s0 on d1")
    for step in range(10):
        monitor.take(step, {DEVICE: 2.0, stage: 2.0})
    monitor.begin_plan()
    assert monitor.factors() == {DEVICE: pytest.approx(2.0)}
    assert [e.subject for s in range(10, 30) for e in monitor.take(s, {DEVICE: 2, stage: 2})] == [
        stage
    ]


def test_subjects_do_not_disturb_each_other_and_may_be_missing() -> None:
    monitor, link = DriftMonitor(), Subject("link", "d0->d1")
    events = []
    for step in range(40):
        measured = {DEVICE: 1.0} | ({link: 4.0 if step >= 20 else 1.0} if step % 2 else {})
        events += monitor.take(step, measured)
    assert [(event.subject, event.since_step) for event in events] == [(link, 21)]
    assert monitor.noise()[link] < 0.1


def test_steps_that_are_repeated_count_once_more() -> None:
    monitor = DriftMonitor()
    events = [e for step in (*range(20), *range(12, 20)) for e in monitor.take(step, {DEVICE: 1.0})]
    assert events == []
    events = [e for step in range(14, 24) for e in monitor.take(step, {DEVICE: 2.0})]
    assert [event.since_step for event in events] == [14]
    assert events[0].factor == pytest.approx(2.0)
