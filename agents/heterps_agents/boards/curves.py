"""Values that hold until the next one, as points that TensorBoard draws and smooths as such.

TensorBoard joins points by straight lines, so there is a point just in front of each change. Its
smoothing averages over points, however far apart: points close behind a change, which say once more
what holds now, use it up at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

Point = tuple[int, float]

# With TensorBoard's 0.6, less than 1 % of a change is left after so many points.
NUM_SETTLING = 10
# Of the time that a value holds: where they lie.
SETTLING_SHARE = 0.05


def held(points: Iterable[Point], end: int) -> Iterator[Point]:
    """Points of a step curve.

    Args:
        points: The step of each change and the value from there on; the last of a step counts.
        end: The step to which the last value holds.

    Yields:
        Rising steps, each with its value.
    """
    changes = sorted(dict(points).items())
    if not changes:
        return
    last = max(end, changes[-1][0])
    for (step, value), (next_step, _) in pairwise([*changes, (last + 1, 0.0)]):
        stride = max(1, round(SETTLING_SHARE * (next_step - step) / NUM_SETTLING))
        settling = range(step, min(step + stride * (NUM_SETTLING + 1), next_step), stride)
        for between in settling:
            yield between, value
        if settling[-1] < next_step - 1:
            yield next_step - 1, value
