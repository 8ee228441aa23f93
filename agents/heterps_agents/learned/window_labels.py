"""Partial windows as arrays, see `heterps_agents.learned.windows`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import helper, uncounted_helper

TABLE = 1024
# As a number of stages: no more may follow.
_DEAD = 1 << 30


class Labels(NamedTuple):
    """Partial windows; label 0 is what stands behind the window.

    Attributes:
        behind: (K,) label that the stage was put before.
        cut, kind, replicas: (K,) of the front stage.
        key: (K,) of the cut, the front option and the devices used.
        used: (K, T) devices used in the window.
        total: (K,) devices behind the cut, those behind the window included.
        depth: (K,) stages in the window.
        price: (K,) US dollars per hour of all devices but those in front of the window.
        behind_s, fill_s: (K,) step time and fill behind the cut.
        following: (K,) next label of the same cut; -1 at the end.
        alike: (K,) next label with the same place in `table`; -1 at the end.
        first: (L + 1,) first label of each cut; -1 where there is none.
        table: (2 ** n,) first label by cut, front option and devices used.
        delay_s: (L + 1, O) least fill that is put before a cut, by the option behind it.
    """

    behind: Integers
    cut: Integers
    kind: Integers
    replicas: Integers
    key: Integers
    used: Integers
    total: Integers
    depth: Integers
    price: Floats
    behind_s: Floats
    fill_s: Floats
    following: Integers
    alike: Integers
    first: Integers
    table: Integers
    delay_s: Floats


def labels_for(size: int, layers: int, classes: int, options: int) -> Labels:
    """Room for `size` labels."""
    return Labels(
        behind=np.empty(size, np.int64),
        cut=np.empty(size, np.int64),
        kind=np.empty(size, np.int64),
        replicas=np.empty(size, np.int64),
        key=np.empty(size, np.int64),
        used=np.empty((size, classes), np.int64),
        total=np.empty(size, np.int64),
        depth=np.empty(size, np.int64),
        price=np.empty(size),
        behind_s=np.empty(size),
        fill_s=np.empty(size),
        following=np.empty(size, np.int64),
        alike=np.empty(size, np.int64),
        first=np.empty(layers + 1, np.int64),
        table=np.empty(TABLE, np.int64),
        delay_s=np.empty((layers + 1, options)),
    )


@uncounted_helper
def put_label(
    labels: Any,
    unused: int,
    label: int,
    stage: tuple[int, int, int, int, int],
    price: float,
    behind_s: float,
    fill_s: float,
) -> None:
    """Writes the label of a stage that is put before another one.

    Args:
        labels: `Labels`.
        unused: Where it is written.
        label: That of the other one.
        stage: Its first layer, option, replicas, class and devices.
        price: See `Labels`.
        behind_s: The same.
        fill_s: The same.
    """
    start, kind, replicas, device_class, devices = stage
    labels.behind[unused], labels.cut[unused] = label, start
    labels.kind[unused], labels.replicas[unused] = kind, replicas
    labels.total[unused] = labels.total[label] + replicas
    labels.depth[unused] = labels.depth[label] + 1
    labels.price[unused] = price
    labels.behind_s[unused], labels.fill_s[unused] = behind_s, fill_s
    key = start * 256 + kind
    for other in range(labels.used.shape[1]):
        used = labels.used[label, other] + (devices if other == device_class else 0)
        labels.used[unused, other] = used
        key = key * 1_000_003 + used
    labels.key[unused] = key


@uncounted_helper
def keep_label(labels: Any, label: int) -> int:
    """Adds a label to its cut, unless another one is as good; returns the next unused one."""
    cut, key = labels.cut[label], labels.key[label]
    behind_s, fill_s = labels.behind_s[label], labels.fill_s[label]
    place = key & (TABLE - 1)
    previous, here = -1, labels.table[place]
    while here >= 0:
        following = labels.alike[here]
        if labels.key[here] == key:
            if labels.behind_s[here] <= behind_s and labels.fill_s[here] <= fill_s:
                return label
            if labels.behind_s[here] >= behind_s and labels.fill_s[here] >= fill_s:
                labels.depth[here] = _DEAD
                if previous >= 0:
                    labels.alike[previous] = following
                else:
                    labels.table[place] = following
                here = following
                continue
        previous, here = here, following
    labels.alike[label], labels.table[place] = labels.table[place], label
    labels.following[label], labels.first[cut] = labels.first[cut], label
    return label + 1


@helper
def put_stages(stages: Any, count: int, first: int, last: int, labels: Any, winner: int) -> int:
    """Puts the stages of a label in the window's place; returns how many there are then.

    Args:
        stages: (L + 1, 3) int64 of a placement; changed in place.
        count: Stages in use.
        first: The first one of the window.
        last: The last one.
        labels: `Labels`.
        winner: The label of the window's first stage.
    """
    size, label = labels.depth[winner], winner
    behind = count - last - 1
    moved = stages[last + 1 : count].copy()
    end = stages[last, 0]
    row = first
    while labels.behind[label] >= 0:
        following = labels.behind[label]
        stages[row, 0] = labels.cut[following]
        stages[row, 1], stages[row, 2] = labels.kind[label], labels.replicas[label]
        row, label = row + 1, following
    stages[row - 1, 0] = end
    stages[row : row + behind] = moved
    return first + size + behind  # type: ignore[no-any-return]
