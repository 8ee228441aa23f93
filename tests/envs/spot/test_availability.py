"""A hastened trace: what is there when, by a definition that looks at every moment."""

from __future__ import annotations

import random
import time

import pytest

from heterps_envs.spot.availability import SpotMoment, hastened

NAMES = ("a", "b", "c")
FACTOR = 4
# More would be a time that grows with the square of the moments.
MOST_CPU_S = 5.0


def drawn(seed: int, number: int, names: tuple[str, ...] = NAMES) -> tuple[SpotMoment, ...]:
    """Moments at which a device vanishes or comes back, some of them within a start of another."""
    rng, there, time_s = random.Random(seed), set(names), 0.0
    moments = [SpotMoment(0.0, names, dict.fromkeys(names, 1.0))]
    for _ in range(number):
        time_s += rng.choice((1, 2, 5, 20))
        there ^= {rng.choice(names)}
        available = tuple(name for name in names if name in there)
        moments.append(SpotMoment(time_s, available, dict.fromkeys(names, rng.random())))
    return tuple(moments)


def at(moments: tuple[SpotMoment, ...], time_s: float) -> SpotMoment:
    return [m for m in moments if m.time_s <= max(time_s, 0.0)][-1]


@pytest.mark.parametrize("start_s", [0.0, 0.5, 2.0, 8.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_device_is_there_when_it_has_been_for_as_long_as_its_process_takes_to_start(
    seed: int, start_s: float
) -> None:
    moments = drawn(seed, 60)
    found = hastened(moments, FACTOR, start_s)
    for time_s in [step / 8 for step in range(8 * 130)]:
        own_s, late_s = FACTOR * time_s, FACTOR * (time_s - start_s)
        within = [m for m in moments if late_s < m.time_s <= own_s] + [at(moments, late_s)]
        is_there = set(NAMES).intersection(*(m.available for m in within))
        assert set(at(found, time_s).available) == is_there
    for moment in found:
        assert moment.price_usd_per_hour == at(moments, FACTOR * moment.time_s).price_usd_per_hour


def test_a_long_trace_is_hastened_in_a_time_that_grows_as_it_does() -> None:
    names = tuple(f"d{index}" for index in range(8))
    moments = drawn(0, 20_000, names)
    begin_s = time.process_time()
    assert len(hastened(moments, FACTOR, 0.5)) > 10_000
    assert time.process_time() - begin_s < MOST_CPU_S
