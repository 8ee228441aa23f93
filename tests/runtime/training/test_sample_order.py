"""Which samples are due: each once in an epoch, whoever asks, and wherever a run went on."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.sample_order import BEGINNING, Position, SampleOrder

SIZES = st.integers(1, 60)


@given(num_samples=SIZES, batch_size=SIZES, seed=st.integers(0, 5), shuffle=st.booleans())
def test_an_epoch_has_each_sample_once(
    num_samples: int, batch_size: int, seed: int, shuffle: bool
) -> None:
    order = SampleOrder(num_samples, batch_size, seed, shuffle)
    steps = range(order.steps_per_epoch, 2 * order.steps_per_epoch)
    epoch = [index for step in steps for index in order.indices(step)]
    assert sorted(epoch) == list(range(num_samples))
    assert {order.position(step).epoch for step in steps} == {1}
    if not shuffle:
        assert epoch == sorted(epoch)


@given(num_samples=SIZES, batch_size=SIZES)
def test_incomplete_batches_can_be_left_out(num_samples: int, batch_size: int) -> None:
    order = SampleOrder(num_samples, batch_size, drop_last=True)
    if num_samples < batch_size:
        with pytest.raises(HeterpsError, match="drop_last leaves all of them out"):
            order.check()
        return
    epoch = [order.indices(step) for step in range(order.steps_per_epoch)]
    assert {len(batch) for batch in epoch} == {batch_size}
    assert order.position(order.steps_per_epoch) == Position(order.steps_per_epoch, 1, 0)


@given(st.integers(1, 40), st.lists(st.tuples(st.integers(0, 9), SIZES), min_size=1, max_size=5))
def test_no_sample_is_lost_where_a_run_goes_on_with_another_batch_size(
    num_samples: int, parts: list[tuple[int, int]]
) -> None:
    """Each part is a number of steps with a batch size; then the epoch is finished."""
    origin, seen = BEGINNING, Counter[tuple[int, int]]()
    for steps, batch_size in parts:
        order = SampleOrder(num_samples, batch_size, seed=3, origin=origin)
        for step in range(origin.step, origin.step + steps):
            epoch = order.position(step).epoch
            seen.update((epoch, index) for index in order.indices(step))
        origin = order.position(origin.step + steps)
    assert set(seen.values()) <= {1}
    in_whole_epochs = [key for key in seen if key[0] < origin.epoch]
    assert len(in_whole_epochs) == origin.epoch * num_samples
    assert len(seen) == origin.epoch * num_samples + origin.sample


def test_fifty_interruptions_leave_each_sample_read_once() -> None:
    """A run that loses steps begins them anew from its seed and step, and nothing else."""
    draw, steps = random.Random(0), 60
    expected = [list(SampleOrder(100, 8, seed=1).indices(step)) for step in range(steps)]
    for _ in range(50):
        stop = draw.randrange(1, steps)
        again = draw.randrange(stop)
        done = [list(SampleOrder(100, 8, seed=1).indices(step)) for step in range(stop)][:again]
        done += [list(SampleOrder(100, 8, seed=1).indices(step)) for step in range(again, steps)]
        assert done == expected


def test_another_seed_and_another_epoch_are_other_orders() -> None:
    orders = [SampleOrder(50, 50, seed).indices(step) for seed in (0, 1) for step in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4
    with pytest.raises(HeterpsError, match="data: is empty"):
        SampleOrder(0, 4).check()
