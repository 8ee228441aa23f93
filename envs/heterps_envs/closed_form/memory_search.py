"""Whether any placement keeps every device's memory: an exact search that ignores time.

Stages are appended back to front. With the same devices used, having covered more layers is never
worse: whatever comes in front can leave out layers, and then needs less. So one number for each
multiset of devices suffices, the front-most layer that can be reached with them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.stage_formula import in_flight, stage_bytes
from heterps_envs.compiled import checked
from heterps_envs.cost_tables import CostTables

# States: multisets of devices. At this many the search takes some milliseconds.
MAX_STATES = 20_000


class Covered(NamedTuple):
    """How far placements can reach.

    Attributes:
        first_layer: The front-most layer that can be covered, with all behind it; 0: a plan fits.
        devices: The fewest devices that cover as much.
    """

    first_layer: int
    devices: int


def is_searchable(tables: CostTables) -> bool:
    """Whether there are few enough states."""
    return bool(np.prod(tables.device_count + 1.0) <= MAX_STATES)


def most_covered(tables: CostTables, more_bytes: float = 0.0) -> Covered:
    """The most layers, counted from the back, that fit on the devices.

    Args:
        tables: Cost tables; only bytes and counts matter.
        more_bytes: Added to the memory of every device.
    """
    kernel = kernel_tables(tables)
    shape = tables.device_count + 1
    strides = np.concatenate([[1], np.cumprod(shape[:-1])]).astype(np.int64)
    used = np.arange(int(np.prod(shape)))[:, None] // strides % shape
    first = np.full(len(used), tables.num_layers, np.int64)
    roomy = kernel._replace(memory_bytes=kernel.memory_bytes + more_bytes)
    largest = np.ones(tables.num_classes, np.int64)
    np.maximum.at(
        largest, tables.stage_options.class_of_option, tables.stage_options.devices_of_option
    )
    _cover(roomy, used, strides, first, (-(-used // largest)).sum(axis=1))
    devices = used.sum(axis=1)
    best = int(np.lexsort((devices, first))[0])
    return Covered(int(first[best]), int(devices[best]))


def missing_bytes(tables: CostTables) -> int:
    """The fewest bytes that every device would need more so that some placement fits."""
    enough = int(np.ceil(_all_bytes(tables)))
    too_few = -1
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        if most_covered(tables, middle).first_layer == 0:
            enough = middle
        else:
            too_few = middle
    return enough


def _all_bytes(tables: CostTables) -> float:
    """What one device needs for the entire model."""
    held = tables.num_micro_batches if tables.is_gpipe else 1
    whole = (
        tables.stage_options.state_bytes
        + tables.stage_options.sharded_bytes
        + held * tables.stage_options.activation_bytes
    )
    return float(whole.sum(axis=0).max())


@checked
def _cover(k: Any, used: Any, strides: Any, first: Any, least_behind: Any) -> None:
    """Writes the front-most layer of every state; more devices always have a larger index.

    `least_behind` are the fewest replicas that can have used a state's devices: with groups of
    several devices a state may be reached in another way, and hold more in flight.
    """
    for index in range(len(used)):
        stop, behind = first[index], least_behind[index]
        if stop == 0 or (behind > 0 and stop == k.num_layers):
            continue
        for option in range(k.num_options):
            kind, size = k.class_of_option[option], k.devices_of_option[option]
            for replicas in range(1, (k.device_count[kind] - used[index, kind]) // size + 1):
                held = in_flight(k.num_micro_batches, k.is_gpipe, replicas, behind)
                start = stop
                while start > 0:
                    need = stage_bytes(k, start - 1, stop, option, replicas, held)
                    if need > k.memory_bytes[option]:
                        break
                    start -= 1
                reached = index + replicas * size * strides[kind]
                first[reached] = min(first[reached], start)
