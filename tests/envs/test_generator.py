"""Generated problems: deterministic, in real units, and a held-out set that stays what it is."""

import numpy as np

from heterps_envs.bounds import price_bound
from heterps_envs.generator import HELD_OUT_COUNT, fingerprint, generate, held_out

HELD_OUT_FINGERPRINT = "6938aa12fa074cdd"


def test_held_out_problems_never_change() -> None:
    problems = held_out()
    assert len(problems) == HELD_OUT_COUNT
    assert fingerprint(problems) == HELD_OUT_FINGERPRINT


def test_equal_seeds_give_equal_problems_and_longer_lists_extend_shorter_ones() -> None:
    assert fingerprint(generate(5, seed=3)) == fingerprint(generate(9, seed=3)[:5])
    assert fingerprint(generate(5, seed=3)) != fingerprint(generate(5, seed=4))


def test_sizes_stay_in_their_ranges() -> None:
    problems = generate(60, seed=0, layers=(5, 9), classes=(3, 6), count_range=(2, 5))
    assert {entry.num_layers for entry in problems} == {5, 6, 7, 8, 9}
    assert {entry.num_classes for entry in problems} == {3, 4, 5, 6}
    assert min(entry.device_count.min() for entry in problems) == 2
    assert max(entry.device_count.max() for entry in problems) == 5


def test_numbers_are_positive_seconds_and_bytes_of_real_machines() -> None:
    for entry in generate(80, seed=1):
        assert (entry.forward_s > 0).all()
        assert (entry.backward_s > 0).all()
        assert entry.forward_s.max() < 60
        assert (entry.memory_bytes > 0).all()
        assert entry.output_bytes[-1] == 0
        assert np.array_equal(
            entry.inverse_bandwidth_s_per_byte, entry.inverse_bandwidth_s_per_byte.T
        )
        assert 1e9 <= (1 / entry.inverse_bandwidth_s_per_byte).max() < 1e12


def test_every_layer_fits_on_some_device() -> None:
    assert all(np.isfinite(price_bound(entry)[0]) for entry in generate(100, seed=2))
