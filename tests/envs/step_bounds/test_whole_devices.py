"""Whole devices: what parts of several ranges could do together, one range each cannot."""

from __future__ import annotations

import numpy as np

from heterps_envs.step_bounds.covering import least_earned
from heterps_envs.step_bounds.needs import needs_of
from heterps_envs.step_bounds.whole_devices import is_out_of_reach
from tests.envs.small_problems import chain_problem


def shares_of(ranges: dict[tuple[int, int], float], num_layers: int) -> np.ndarray:
    """(1, L, L) what is given, and nothing else."""
    shares = np.zeros((1, num_layers, num_layers))
    for (first, last), share in ranges.items():
        shares[0, first, last] = share
    return shares


def test_three_layers_of_which_a_device_does_two() -> None:
    """Three halves of each pair would do everything; one device leaves a layer."""
    needs = needs_of(chain_problem([1.0] * 3, [1.0] * 3, counts=(1,)))
    worth, cover = np.full(3, 1 / 3), np.zeros(3)
    shares = shares_of({(0, 1): 1.0, (1, 2): 1.0, (0, 0): 1.0, (2, 2): 1.0}, 3)
    assert is_out_of_reach(needs, shares, worth, 1000)
    two = needs._replace(num_devices=np.array([2], np.int64))
    assert not is_out_of_reach(two, shares, worth, 1000)
    assert least_earned(two, shares, worth.copy(), 100, cover) >= 1


def test_nothing_is_said_where_the_search_is_cut_short() -> None:
    needs = needs_of(chain_problem([1.0] * 3, [1.0] * 3, counts=(1,)))
    shares = shares_of({(0, 1): 1.0, (1, 2): 1.0}, 3)
    assert not is_out_of_reach(needs, shares, np.full(3, 1e-9), 1)
