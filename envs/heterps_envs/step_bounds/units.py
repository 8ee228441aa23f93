"""Units: the devices of one class on one node; and the ranges of layers that they may do."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers

# Whether other nodes' cores are in front of a range, or behind it: rows of `Needs.in_s` and of
# `Needs.around_s` are `way % 2` and `way // 2`. With both, a range does no more than with one.
ALL: Any = np.int64(0)
FRONT: Any = np.int64(1)
BEHIND: Any = np.int64(2)
NUM_WAYS = 3


class Units(NamedTuple):
    """K kinds of units: devices of a class on a node, with how many there are of each kind.

    Attributes:
        class_of: (K,) their class.
        size: (K,) devices.
        nodes: (K,) how many there are.
        stride: (K,) what one more of the kind adds to the number of a set of units.
        num_sets: Sets of units.
    """

    class_of: Integers
    size: Integers
    nodes: Integers
    stride: Integers
    num_sets: int


class Ranges(NamedTuple):
    """Ranges that a device may do.

    Attributes:
        num: (2,) how many with layers that other nodes share, which come first, and of all.
        rows: (N, 5) as in `spread`.
        shares: (W, N) of all micro-batches, of each device of a group, by way.
        class_of: (O,) class of an option.
    """

    num: Integers
    rows: Integers
    shares: Floats
    class_of: Integers
