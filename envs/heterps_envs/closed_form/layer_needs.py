"""What single layers need at least, whatever the rest of a placement is: seconds and bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.closed_form.stage_formula import in_flight
from heterps_envs.cost_tables import CostTables


def option_work_s(tables: CostTables) -> Floats:
    """(L, O) seconds of a step that a layer keeps all devices of an option busy at least.

    Replicas that share state share the seconds of its optimizer: all of them together take them
    once.
    """
    return tables.num_micro_batches * tables.compute_s + tables.optimizer_s


def layers_that_fit(tables: CostTables) -> NDArray[np.bool_]:
    """(L, O) whether a layer alone fits on a device, with as few in flight as possible."""
    return np.asarray(least_layer_bytes(tables) <= tables.memory_bytes)


def least_layer_bytes(tables: CostTables) -> Floats:
    """(L, O) bytes that a device needs for one layer, however the rest is placed."""
    most = tables.most_replicas
    shared = tables.stage_options.sharded_bytes / np.maximum(most, 1)
    return (
        tables.stage_options.state_bytes
        + shared
        + least_held(tables) * tables.stage_options.activation_bytes
    )


def least_held(tables: CostTables) -> NDArray[np.int64]:
    """(O,) micro-batches in flight on a device at least, however many replicas there are."""
    counts = tables.most_replicas.tolist()
    held = {
        most: in_flight(tables.num_micro_batches, tables.is_gpipe, max(most, 1), 0)
        for most in set(counts)
    }
    return np.array([held[most] for most in counts])
