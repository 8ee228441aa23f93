"""Cephalo's shares: its published case, every other share by brute force, and shares of state."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.cephalo.batches import USABLE, Case, best_answer, least_seconds
from heterps_agents.systems.cephalo.cost import Collectives, DeviceTimes, Line
from heterps_agents.systems.cephalo.ways import Batch
from tests.agents.systems.cephalo.published_case import CASE, SHIPPED

# Milliseconds: the optimum of the published cost, and what equal batches take.
OPTIMUM_MS, EVEN_MS = 342.3, 958.8


def test_the_published_case_takes_342_ms_within_memory() -> None:
    answer = best_answer(CASE)
    assert answer is not None
    assert sum(batch.samples for batch in answer.batches) == 64
    assert answer.seconds * 1e3 == pytest.approx(OPTIMUM_MS, abs=0.05)
    held = [
        state + batch.size * CASE.sample_bytes
        for state, batch in zip(answer.state_bytes, answer.batches, strict=True)
    ]
    assert sum(answer.state_bytes) == pytest.approx(CASE.state_bytes)
    assert all(a <= USABLE * b for a, b in zip(held, CASE.memory_bytes, strict=True))


@pytest.mark.parametrize("shares", [SHIPPED, (13, 13, 33, 5)])
def test_the_published_shares_take_as_long(shares: tuple[int, ...]) -> None:
    seconds = max(least_seconds(CASE, device, n) for device, n in enumerate(shares))
    assert seconds * 1e3 == pytest.approx(OPTIMUM_MS, abs=0.05)


def test_equal_batches_take_959_ms() -> None:
    seconds = max(least_seconds(CASE, device, 16) for device in range(4))
    assert seconds * 1e3 == pytest.approx(EVEN_MS, abs=0.05)


def test_a_fast_device_with_little_memory_still_gets_a_large_batch() -> None:
    small = CASE._replace(memory_bytes=(24e9, 24e9, 12e9, 24e9))
    answer = best_answer(small)
    assert answer is not None
    assert answer.batches[2].samples == 34
    # Its memory goes to its samples; the slow ones hold more of the state.
    assert answer.state_bytes[2] < min(answer.state_bytes[:2])
    assert answer.seconds * 1e3 == pytest.approx(OPTIMUM_MS, abs=0.05)


def test_where_the_state_leaves_little_room_micro_batches_are_smaller_and_more() -> None:
    tight = best_answer(CASE._replace(state_bytes=89.5e9, memory_bytes=(30e9,) * 4))
    wide = best_answer(CASE)
    assert tight is not None
    assert wide is not None
    assert sum(batch.size for batch in tight.batches) * CASE.sample_bytes <= 0.5e9
    assert tight.seconds > wide.seconds
    assert best_answer(CASE._replace(state_bytes=90.1e9, memory_bytes=(30e9,) * 4)) is None


def batches_of(num_samples: int, sizes: tuple[int, ...]) -> Iterator[Batch]:
    yield Batch(0, 0)
    for size in sizes:
        yield from (Batch(count, size) for count in range(1, num_samples // size + 1))


def plain_seconds(case: Case, device: int, batch: Batch, stretch: float) -> float:
    """The formula of the published cost, for one layer."""
    (forward, backward), (gather, again, scatter) = case.times[device], case.collectives
    m, size = batch
    first = m * max(forward.slope_s[0] * size + forward.start_s[0], 0)
    second = m * max(backward.slope_s[0] * size + backward.start_s[0], 0)
    second += first + max(m - 1, 0) * case.further_s
    ahead = max(stretch * gather[0], first)
    return float(ahead + max(stretch * (again[0] + scatter[0]), second))


def brute_force(case: Case) -> float:
    """Seconds of the best of all shares: even shards where they fit, longer collectives else."""
    least, total = math.inf, USABLE * sum(case.memory_bytes)
    options = list(batches_of(case.num_samples, tuple(case.sizes)))
    for batches in product(options, repeat=len(case.times)):
        if sum(batch.samples for batch in batches) != case.num_samples:
            continue
        kept = [batch.size * case.sample_bytes for batch in batches]
        room = [USABLE * memory for memory in case.memory_bytes]
        even = case.state_bytes / len(batches)
        is_even = all(a + even <= b for a, b in zip(kept, room, strict=True))
        fits = sum(kept) + case.state_bytes <= total
        if fits and all(a <= b for a, b in zip(kept, room, strict=True)):
            stretch = 1.0 if is_even else 1.25
            own = (plain_seconds(case, i, batch, stretch) for i, batch in enumerate(batches))
            least = min(least, max(own))
    return least


LINES = st.tuples(st.floats(0.1, 5), st.floats(-0.3, 3)).map(
    lambda pair: Line(np.array([pair[0]]), np.array([pair[1]]))
)


@given(
    times=st.lists(st.builds(DeviceTimes, LINES, LINES), min_size=1, max_size=3),
    memory=st.lists(st.integers(4, 24), min_size=3, max_size=3),
    seconds=st.tuples(*[st.floats(0, 6)] * 2),
    num_samples=st.integers(1, 6),
    state=st.integers(1, 40),
    further=st.floats(0, 1),
)
def test_no_other_shares_take_less(
    times: list[DeviceTimes],
    memory: list[int],
    seconds: tuple[float, float],
    num_samples: int,
    state: int,
    further: float,
) -> None:
    gather, scatter = (np.array([each]) for each in seconds)
    case = Case(
        times=times,
        memory_bytes=[float(each) for each in memory[: len(times)]],
        collectives=Collectives(gather, gather, scatter),
        num_samples=num_samples,
        sizes=range(1, num_samples + 1),
        state_bytes=float(state),
        sample_bytes=1.0,
        further_s=further,
    )
    answer, least = best_answer(case), brute_force(case)
    if answer is None:
        assert least == math.inf
        return
    assert sum(batch.samples for batch in answer.batches) == num_samples
    # Of equal collectives the less computing one wins, by a millionth.
    assert answer.seconds == pytest.approx(least, rel=1e-5)
