"""Gradient sums after the passes of a placement, those of shared parameters too (numba).

Several layers may use the same parameters, as a language model's first and last ones do. Then all
devices of their stages sum these gradients together, once the last of them is there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import MINUS_ONE, ZERO, uncounted_helper
from heterps_envs.schedule.tied import has_own, tied_share

# Columns of what follows the passes of a stage: its own all-reduce, those of shared parameters, and
# its optimizer step.
OWN, SHARED, OPTIMIZER = 0, 1, 2


class SharedParameters(NamedTuple):
    """Parameters that several layers use: each row a layer of a group of such layers.

    Attributes:
        layer: (K,) its index.
        group: (K,) in ascending order.
        is_user: (K,) whether another layer of the group owns them.
        has_own: (K,) whether it trains other parameters, too.
        num_bytes: (K,) of the gradients that the group shares.
    """

    layer: Integers
    group: Integers
    is_user: Integers
    has_own: Integers
    num_bytes: Floats


def shared_parameters(profile: ModelProfile, gradient_bytes: Floats) -> SharedParameters:
    """Those of a model.

    Args:
        profile: Its layers.
        gradient_bytes: (L,) of each of them.
    """
    rows = list[tuple[int, int, int, int, float]]()
    for number, (owner, users) in enumerate(profile.tied_layers.items()):
        shared = max(float(gradient_bytes[user]) * tied_share(profile, user) for user in users)
        shared = min(shared, float(gradient_bytes[owner]))
        rows += [
            (layer, number, int(layer != owner), int(has_own(profile, layer)), shared)
            for layer in (owner, *users)
        ]
    columns = np.array(rows, float).reshape(-1, 5).T
    # Of one layout whatever their length: kernels are compiled for each.
    layer, group, is_user, owns = (column.astype(np.int64, "C") for column in columns[:4])
    return SharedParameters(layer, group, is_user, owns, np.ascontiguousarray(columns[4]))


@uncounted_helper
def write_sums(stages: Any, count: int, k: Any, shared: Any, sums_s: Any) -> None:
    """Writes how long each stage sums its gradients, and how long its optimizer step is.

    Args:
        stages: (S, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        count: Stages in use.
        k: `KernelTables`.
        shared: `SharedParameters`.
        sums_s: (S, 3) to write to; the columns are those above.
    """
    start = ZERO
    for row in range(count):
        stop, kind, replicas = stages[row, 0], stages[row, 1], stages[row, 2]
        num_bytes = k.gradient_prefix_bytes[stop, kind] - k.gradient_prefix_bytes[start, kind]
        # Users without parameters of their own are in no sum of the stage's replicas alone.
        shared_s, group, users = 0.0, MINUS_ONE, ZERO
        for index in range(len(shared.layer)):
            if not start <= shared.layer[index] < stop:
                continue
            own_bytes = shared.num_bytes[index] / k.devices_of_option[kind]
            if _is_within(shared, index, start, stop):
                num_bytes -= own_bytes * shared.is_user[index]
                continue
            num_bytes -= own_bytes
            users += shared.is_user[index] * (1 - shared.has_own[index])
            if shared.group[index] != group:
                group = shared.group[index]
                shared_s += _shared_sum_s(stages, count, k, shared, index)
        optimizer_s = k.optimizer_prefix_s[stop, kind] - k.optimizer_prefix_s[start, kind]
        sums_s[row, OWN], sums_s[row, SHARED] = 0.0, shared_s
        sums_s[row, OPTIMIZER] = optimizer_s / (replicas if k.shards_state[kind] else 1)
        if users < stop - start:
            far = 1 if replicas > k.node_size[kind] else 0
            latency_s, inverse = k.ring_latency_s[kind, far], k.ring_inverse_bandwidth[kind, far]
            sums_s[row, OWN] = _ring_s(max(num_bytes, 0.0), replicas, latency_s, inverse)
        start = stop


@uncounted_helper
def last_end_s(stages: Any, count: int, shared: Any, sums_s: Any, passes_end_s: Any) -> float:
    """When the last stage is done with its all-reduces and its optimizer step.

    Args:
        stages: (S, 3) int64, see `heterps_envs.closed_form.objective.read_stages`.
        count: Stages in use.
        shared: `SharedParameters`.
        sums_s: (S, 3) from `write_sums`.
        passes_end_s: (S,) when the last pass of each stage ends.
    """
    longest, start = 0.0, ZERO
    for row in range(count):
        stop = stages[row, 0]
        begin_s = passes_end_s[row] + sums_s[row, OWN]
        if sums_s[row, SHARED] > 0.0:
            for index in range(len(shared.layer)):
                if start <= shared.layer[index] < stop:
                    begin_s = max(begin_s, _ready_s(stages, count, shared, index, passes_end_s))
        longest = max(longest, begin_s + sums_s[row, SHARED] + sums_s[row, OPTIMIZER])
        start = stop
    return longest


@uncounted_helper
def _is_within(shared: Any, index: int, start: int, stop: int) -> bool:
    """Whether a stage has all layers of a group."""
    for other in range(len(shared.layer)):
        if shared.group[other] == shared.group[index] and not start <= shared.layer[other] < stop:
            return False
    return True


@uncounted_helper
def _uses(shared: Any, group: int, start: int, stop: int) -> bool:
    """Whether a stage has a layer of a group."""
    for other in range(len(shared.layer)):
        if shared.group[other] == group and start <= shared.layer[other] < stop:
            return True
    return False


@uncounted_helper
def _ready_s(stages: Any, count: int, shared: Any, index: int, passes_end_s: Any) -> float:
    """When all devices of a group are there."""
    ready_s, start = 0.0, ZERO
    for row in range(count):
        if _uses(shared, shared.group[index], start, stages[row, 0]):
            ready_s = max(ready_s, passes_end_s[row])
        start = stages[row, 0]
    return ready_s


@uncounted_helper
def _shared_sum_s(stages: Any, count: int, k: Any, shared: Any, index: int) -> float:
    """Seconds of the all-reduce of a group's parameters, over the devices of several stages."""
    start, num_devices, last_kind = ZERO, ZERO, MINUS_ONE
    latency_s = inverse = most_bytes = 0.0
    for row in range(count):
        stop, kind = stages[row, 0], stages[row, 1]
        if _uses(shared, shared.group[index], start, stop):
            if last_kind >= 0:
                latency_s = max(latency_s, k.latency_s[last_kind, kind])
                inverse = max(inverse, k.inverse_bandwidth_s_per_byte[last_kind, kind])
            latency_s = max(latency_s, k.ring_latency_s[kind, 1])
            inverse = max(inverse, k.ring_inverse_bandwidth[kind, 1])
            num_devices += stages[row, 2]
            most_bytes = max(most_bytes, shared.num_bytes[index] / k.devices_of_option[kind])
            last_kind = kind
        start = stop
    return _ring_s(most_bytes, num_devices, latency_s, inverse)


@uncounted_helper
def _ring_s(num_bytes: float, members: int, latency_s: float, inverse_bandwidth: float) -> float:
    """Seconds of a ring all-reduce."""
    return 2.0 * (members - 1) * (latency_s + num_bytes * inverse_bandwidth / members)
