"""The rule of waves: what it lets a fast worker lack, and when it lets it wait.

The most that a mini-batch lacks, (D + 1)(s + 1) + s - 1 with waves of s + 1, is HetPipe's formula
as it is remembered; here the rule itself is run, and has to reach it and not more.
"""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.systems.hetpipe.waves import Pace, most_missing, wave_seconds, waves_of

# (s, D) and the updates of other workers that are missing at most.
MISSING = {
    (0, 0): 0, (0, 1): 1, (0, 2): 2,
    (1, 0): 2, (1, 1): 4, (1, 2): 6,
    (3, 0): 6, (3, 1): 10, (3, 2): 14,
    (4, 0): 8, (4, 1): 13, (4, 2): 18,
}  # fmt: skip


@pytest.mark.parametrize(("local", "distance"), MISSING)
def test_a_fast_worker_lacks_as_many_updates_of_a_slow_one_as_the_formula_says(
    local: int, distance: int
) -> None:
    wave = local + 1
    fast = Pace(period_s=1e-3, alone_s=wave * 1e-3, in_flight=wave, wave=wave)
    slow = fast._replace(period_s=10.0, alone_s=10.0 * wave)
    (starts, _), clocks = waves_of([fast, slow], distance, 8)
    lacking = []
    for before, start in enumerate(starts):
        known = wave * (int(np.sum(clocks[1:] <= start + 1e-9)))
        lacking.append(before - known)
    assert max(lacking) == most_missing(wave, distance) == MISSING[local, distance]


def test_a_slow_worker_holds_the_others_up_after_their_clocks_ahead_and_not_before() -> None:
    wave, distance = 3, 2
    fast = Pace(1.0, 2.0, 2, wave)
    slow = fast._replace(period_s=50.0, alone_s=100.0)
    (with_slow, _), clocks = waves_of([fast, slow], distance, 6)
    (alone,), _ = waves_of([fast], 99, 6)
    # The last mini-batch of wave D + 2 is the first that waits.
    waits = wave * (distance + 2) - 1
    assert with_slow[:waits] == pytest.approx(alone[:waits])
    assert with_slow[waits] == pytest.approx(clocks[1])
    assert with_slow[waits] > alone[waits]


def test_without_staleness_all_wait_for_all_after_each_mini_batch() -> None:
    paces = [Pace(1.0, 1.0, 1, 1), Pace(3.0, 3.0, 1, 1)]
    starts, clocks = waves_of(paces, 0, 4, sums_s=2.0)
    for own in starts:
        assert own == pytest.approx(clocks[:-1])
    assert wave_seconds(paces, 2.0) == pytest.approx(5.0)


def test_sums_are_hidden_behind_the_next_wave_until_they_take_longer() -> None:
    pace = Pace(1.0, 4.0, 4, 10)
    assert wave_seconds([pace], 0.0) == pytest.approx(10.0)
    assert wave_seconds([pace], 5.0) == pytest.approx(10.0)
    # A wave's last mini-batch waits for the clock before it.
    assert wave_seconds([pace], 30.0) == pytest.approx(30.0 + 4.0)


def test_with_fewer_in_flight_than_fill_the_pipeline_it_is_slower() -> None:
    full, half = Pace(1.0, 4.0, 4, 20), Pace(2.0, 4.0, 2, 20)
    assert wave_seconds([full], 0.0) == pytest.approx(20.0)
    assert wave_seconds([half], 0.0) == pytest.approx(40.0)
