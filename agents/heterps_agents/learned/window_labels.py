"""Partial windows as arrays, see `heterps_agents.learned.windows`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers

TABLE = 1024


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
