"""The published method: the best program for the shares, the best shares for the program, in turns.

It begins with shares by speed and ends when a turn brings nothing. It is a descent and may stop
short of the optimum; here it also begins with even shares, because the best ones jump between the
two. `joint` finds the optimum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_agents.systems.hap.chain import Chain, Program, seconds_of
from heterps_agents.systems.hap.ratios import best_shares, even_shares, shares_by_speed
from heterps_agents.systems.hap.search import best_program
from heterps_envs.arrays import Floats

_PRECISION = 1e-12


class Choice(NamedTuple):
    """A program, (segments, n) shares of the devices, and seconds of a step."""

    program: Program
    shares: Floats
    seconds: float


def alternate(chain: Chain) -> Choice:
    """The best of the descents from shares by speed and from even ones.

    Raises:
        InfeasibleError: No program leads from the data to the loss, or none that was met fits.
    """
    starts = shares_by_speed(chain.speeds), even_shares(len(chain.speeds))
    return min((_descend(chain, start) for start in starts), key=lambda choice: choice.seconds)


def with_best_shares(program: Program, chain: Chain) -> Choice:
    """A program with the shares that suit it."""
    shares = best_shares(program, chain)
    return Choice(program, shares, seconds_of(program, shares))


def _descend(chain: Chain, start: Floats) -> Choice:
    shares = np.tile(start, (chain.num_segments, 1))
    best: Choice | None = None
    while True:
        found = with_best_shares(best_program(chain, shares), chain)
        if best is not None and found.seconds >= best.seconds * (1 - _PRECISION):
            return best
        best, shares = found, found.shares
