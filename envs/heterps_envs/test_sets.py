"""The frozen test sets: what tables, curves and benchmarks quote. No training draws their problems.

A drawn set is its seed and its sizes; a test recomputes the fingerprints.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from heterps_configs.errors import UnknownNameError
from heterps_envs.generator import generate
from heterps_envs.problem import CostTables

# Far from any seed that a training configuration reaches.
_FIRST_SEED = 2**62


class ChainDraw(NamedTuple):
    """How a set of chains is drawn, see `heterps_envs.generator.generate`."""

    seed: int
    count: int
    layers: tuple[int, int]
    classes: tuple[int, int]
    count_range: tuple[int, int]
    fingerprint: str

    def problems(self, count: int = 0) -> list[CostTables]:
        """The set; `count` problems of it, or more of the same stream."""
        return generate(count or self.count, self.seed, self.layers, self.classes, self.count_range)


DRAWN_CHAINS: Mapping[str, ChainDraw] = MappingProxyType(
    {
        "in-range": ChainDraw(_FIRST_SEED, 160, (8, 32), (2, 4), (1, 4), "f7a64a146b9dec91"),
        "longer": ChainDraw(_FIRST_SEED + 1, 60, (64, 96), (2, 4), (1, 4), "7eacdc3f48c22f76"),
        "more-types": ChainDraw(_FIRST_SEED + 2, 60, (8, 32), (5, 6), (1, 3), "902e838e53e69666"),
        "beyond-exact": ChainDraw(
            _FIRST_SEED + 3, 30, (48, 128), (8, 12), (2, 4), "0dc4ce57d1b2e888"
        ),
    }
)
CHAIN_SETS = tuple(DRAWN_CHAINS)


def chain_set(name: str) -> list[CostTables]:
    """The problems of a set.

    Args:
        name: One of `CHAIN_SETS`.

    Raises:
        UnknownNameError: There is no such set.
    """
    if name not in DRAWN_CHAINS:
        raise UnknownNameError("set of chains", name, CHAIN_SETS)
    return DRAWN_CHAINS[name].problems()


def held_out(count: int) -> list[CostTables]:
    """The first problems of `in-range`; more than it has go on in the same stream."""
    return DRAWN_CHAINS["in-range"].problems(count)
