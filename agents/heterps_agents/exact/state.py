"""What the sweep of `heterps_agents.exact.kernels` works on, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Space(NamedTuple):
    """The devices used, as one integer, and what no completion of them can fall below.

    A placement costs `weight * step time`: 1 for the objective throughput, the price for `price`.

    Attributes:
        used: (S, T) devices used of each class.
        strides: (T,) what one more device of a class adds to the integer.
        totals: (S,) devices used.
        order: (S,) states by `totals`.
        device_weight: (T,) what a device adds to the weight.
        latest_s: (L, S) largest step time that is of use, by the cut and the devices behind it.
        delay_s: (L, T, S) that the layers before a cut add to it at least, by the class behind.
        most_fill_s: (L, T, S) largest fill behind a cut with which they keep the limits.
        least_fill_s: (L + 1,) seconds that the layers before a cut delay the rest at least.
        least_cost: (L + 1,) what they add to the cost at least.
        limit_s: Largest step time that is of use.
        limit_cost: Largest cost that is of use.
        work: Stages that were tried for these bounds.
    """

    used: NDArray[np.int64]
    strides: NDArray[np.int64]
    totals: NDArray[np.int64]
    order: NDArray[np.int64]
    device_weight: NDArray[np.float64]
    latest_s: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    most_fill_s: NDArray[np.float64]
    least_fill_s: NDArray[np.float64]
    least_cost: NDArray[np.float64]
    limit_s: float
    limit_cost: float
    work: int


class Labels(NamedTuple):
    """The Pareto sets of (step time, fill), as lists in one pool, least step time first.

    Attributes:
        first: (L, T, S) first label by the cut, the class of the stage behind it and the state
            behind it; 0 where there is none.
        behind_s: (N,) step time of what is built.
        fill_s: (N,) its fill.
        following: (N,) the next label; 0 at the end.
    """

    first: NDArray[np.int32]
    behind_s: NDArray[np.float64]
    fill_s: NDArray[np.float64]
    following: NDArray[np.int32]


class Reached(NamedTuple):
    """Labels behind a cut as a stage of one class sees them, through its links.

    Attributes:
        state: (N,) devices used.
        link: (N,) the class at the other end of the link.
        behind_s: (N,) message and back, and the step time behind.
        round_trip_s: (N,) message and back, and the fill behind.
    """

    state: NDArray[np.int64]
    link: NDArray[np.int64]
    behind_s: NDArray[np.float64]
    round_trip_s: NDArray[np.float64]
