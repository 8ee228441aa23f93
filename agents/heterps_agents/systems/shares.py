"""Whole shares of a load, such as micro-batches of replicas."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def in_proportion(total: int, power: Sequence[float]) -> list[int]:
    """Whole loads that sum up to `total`, in proportion to power, by largest remainders.

    Args:
        total: Units.
        power: Of each device, positive.
    """
    exact = total * np.asarray(power, float) / sum(power)
    loads = np.floor(exact + 1e-9).astype(int)
    most_left = np.argsort(loads - exact, kind="stable")
    loads[most_left[: total - int(loads.sum())]] += 1
    return [int(load) for load in loads]
