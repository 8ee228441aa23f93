"""Lower bounds that know memory: what a layer needs at least, and its price beside that of time.

A layer needs memory wherever it is, and more of it the more devices stand behind its stage, since
1F1B then holds more micro-batches in flight. How many there are at least is known: a stage cannot
grow past the layers that one device holds, and what is behind it needs devices of its own. Over the
k devices of a stage `k held >= min(M, k + devices behind)`, so that layer l takes at least

    need[l, d] = state[l] + activation[l] min(M, 1 + devices that the layers behind its stage need)

of the `n_d memory_d` bytes of its class (under GPipe: of all M micro-batches). This is a second row
for each class beside its seconds, and a second price in the dual of the linear programme of
`heterps_envs.closed_form.bounds`: for any prices lambda of a device-second, `sum_d n_d lambda_d =
1`, and any mu >= 0 of a byte,

    step time >= sum_l min_d (lambda_d work[l, d] + mu_d need[l, d]) - sum_d mu_d n_d memory_d

It says more than without mu where the fast devices cannot hold all that they would like to take.

Memory also says that devices wait. A stage with layer l cannot begin in front of `first[l, d]`, or
it would not fit; until the layers in front of that have passed one micro-batch, and the cut has,
all its k devices are idle. As k >= 1 >= sum of bytes[l, d] / memory_d over the layers of the stage,
each of them can be charged that share of the wait, on top of its work.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.closed_form.layer_needs import least_layer_bytes, option_work_s
from heterps_envs.compiled import checked
from heterps_envs.cost_tables import CostTables

ITERATIONS = 400
# Relative slack of what must fit, so that rounding makes no bound too high.
ROUNDING = 1e-12
# More room than there is weakens a bound, and keeps it true: layers of no bytes fit on devices
# without memory, and nothing is divided by that.
LEAST_ROOM_BYTES = 1.0


class Prices(NamedTuple):
    """A feasible point of the dual, and its value.

    Attributes:
        value: The bound: seconds or, for the price of a step, US dollars per hour times seconds.
        per_device_s: (T,) lambda of a device-second of each class.
        per_byte: (T,) mu of a byte on a device of each class.
    """

    value: float
    per_device_s: Floats
    per_byte: Floats


def least_bytes(tables: CostTables) -> Floats:
    """(L, O) bytes that each layer takes at least of all the memory of a class."""
    held = np.full((tables.num_layers, tables.num_options), tables.num_micro_batches)
    if not tables.is_gpipe:
        held = np.minimum(held, 1 + _stages_behind(tables))
    # Whatever replicas share, together they hold it once.
    state = tables.stage_options.state_bytes + tables.stage_options.sharded_bytes
    return np.asarray(
        tables.stage_options.devices_of_option
        * (state + held * tables.stage_options.activation_bytes)
    )


def work_s(tables: CostTables) -> Floats:
    """(L, O) device-seconds of each layer, its share of the wait included; inf if it cannot fit."""
    alone = least_layer_bytes(tables)
    sums = np.concatenate([np.zeros((1, tables.num_options)), np.cumsum(alone, axis=0)])
    work = option_work_s(tables)
    wait = np.zeros_like(work)
    before_s = np.concatenate([[0.0], np.cumsum(tables.compute_s.min(axis=1))])
    message_s = _least_message_s(tables)
    least_s: dict[tuple[int, int], float] = {}
    for kind, memory in enumerate(tables.memory_bytes):
        first = np.searchsorted(sums[:, kind], sums[1:, kind] - memory * (1 + ROUNDING), "left")
        for layer in np.flatnonzero(first[: tables.num_layers]).tolist():
            start = min(int(first[layer]), layer)
            if start > 0:
                if (start, layer) not in least_s:
                    least_s[start, layer] = float(message_s[start : layer + 1].min())
                wait[layer, kind] = before_s[start] + least_s[start, layer]
        wait[:, kind] *= alone[:, kind] / max(memory, LEAST_ROOM_BYTES)
    fits = (alone <= tables.memory_bytes) & (tables.most_replicas > 0)
    return np.where(fits, tables.stage_options.devices_of_option * (work + wait), np.inf)


def memory_price_bound(tables: CostTables, iterations: int = ITERATIONS) -> Prices:
    """A lower bound on the closed-form step time of every feasible placement.

    Args:
        tables: The problem's cost tables.
        iterations: Multiplicative updates of all prices.
    """
    row, capacity = tables.stage_options.class_of_option, tables.device_count.astype(float)
    return _solve(tables, work_s(tables), row, capacity, iterations)


def memory_cheapest_step(tables: CostTables, iterations: int = ITERATIONS) -> Prices:
    """The same of every placement's price per hour times step time (USD per hour x seconds)."""
    work = work_s(tables)
    # The price of an option is that of all its devices.
    per_device = tables.price_usd_per_hour / tables.stage_options.devices_of_option
    # Where a layer does not fit, a device is of no use, be it free.
    usable = np.isfinite(work)
    priced = np.where(usable, np.where(usable, work, 0.0) * per_device, np.inf)
    row = np.zeros(tables.num_options, np.int64)
    prices = _solve(tables, priced, row, np.ones(1), iterations)
    of_class = np.zeros(tables.num_classes)
    of_class[tables.stage_options.class_of_option] = per_device
    return prices._replace(per_device_s=of_class)


def _solve(
    tables: CostTables, work: Floats, row: NDArray[np.int64], capacity: Floats, iterations: int
) -> Prices:
    """Both duals: options share a row of work where `row` is equal, of capacity `capacity`."""
    per_work, per_byte = np.zeros(len(capacity)), np.zeros(tables.num_classes)
    if not np.isfinite(work).any(axis=1).all():
        return Prices(math.inf, np.zeros(tables.num_classes), per_byte)
    room = np.maximum(tables.device_count * class_memory_bytes(tables), LEAST_ROOM_BYTES)
    # In one order of their numbers: the kernel is compiled for each.
    work, least = np.ascontiguousarray(work), np.ascontiguousarray(least_bytes(tables))
    value = _maximise(
        work, row, tables.stage_options.class_of_option, capacity, least, room,
        iterations, per_work, per_byte,
    )  # fmt: skip
    of_class = np.zeros(tables.num_classes)
    of_class[tables.stage_options.class_of_option] = per_work[row]
    return Prices(float(value), of_class, per_byte)


def class_memory_bytes(tables: CostTables) -> Floats:
    """(T,) memory of a device of each class under the option that leaves most."""
    memory = np.zeros(tables.num_classes)
    np.maximum.at(memory, tables.stage_options.class_of_option, tables.memory_bytes)
    return memory


def _least_message_s(tables: CostTables) -> Floats:
    """(L,) from the stage in front of a layer and back at least; the first has none in front."""
    message = tables.latency_s + tables.inverse_bandwidth_s_per_byte * np.concatenate(
        [[0.0], tables.output_bytes[:-1]]
    ).reshape(-1, 1, 1)
    return np.asarray(2 * message.min(axis=(1, 2)))


def _stages_behind(tables: CostTables) -> NDArray[np.int64]:
    """(L, O) replicas of stages behind that of a layer on an option at least, under 1F1B.

    A replica is one device, or a group of them: of a group, every device counts a layer's bytes
    once, and all of them together at least as many as the option with the fewest does.
    """
    most = np.maximum(tables.most_replicas, 1)
    alone = (
        tables.stage_options.state_bytes
        + tables.stage_options.sharded_bytes / most
        + tables.stage_options.activation_bytes
    )
    once = np.concatenate([[0.0], np.cumsum(alone.min(axis=1))])
    # By bytes: the largest devices together; by contiguity: stages on the largest device each.
    largest = np.sort(np.repeat(class_memory_bytes(tables), tables.device_count))[::-1]
    together = np.cumsum(largest) * (1 + ROUNDING)
    devices = np.searchsorted(together, once[-1] - once, side="left") + 1
    devices[-1] = 0
    stages = np.zeros(tables.num_layers + 1, np.int64)
    stop = tables.num_layers
    for start in range(tables.num_layers - 1, -1, -1):
        if once[stop] - once[start] > largest[0] * (1 + ROUNDING):
            stop = start + 1
        stages[start] = stages[stop] + 1
    needed = np.maximum(devices, stages)
    # How far a stage that begins with a layer can reach on each option.
    own = np.concatenate([np.zeros((1, tables.num_options)), np.cumsum(alone, axis=0)])
    end = [
        np.searchsorted(own[:, option], own[:-1, option] + memory * (1 + ROUNDING), side="right")
        - 1
        for option, memory in enumerate(tables.memory_bytes)
    ]
    return np.asarray(needed[np.clip(np.stack(end, axis=1), 0, tables.num_layers)])


@checked
def _maximise(
    work: Any,
    row: Any,
    class_of: Any,
    capacity: Any,
    need: Any,
    room: Any,
    iterations: int,
    best_per_work: Any,
    best_per_byte: Any,
) -> float:
    """Maximises the dual by multiplicative updates; writes the best prices.

    Rows are scaled to a load of 1 at the best bound so far. A row that is asked for more than
    others gets dearer (Arora, Hazan and Kale, 2012). The first prices are those of time alone.
    """
    layers, options = work.shape
    rows, classes = capacity.shape[0], room.shape[0]
    time_weight, byte_weight = np.full(rows, 1.0 / rows), np.full(classes, 1e-3 / classes)
    load, bytes_held = np.empty(rows), np.empty(classes)
    best, scale_s = 0.0, 0.0
    for layer in range(layers):
        least = np.inf
        for option in range(options):
            least = min(least, work[layer, option])
        scale_s += least / capacity.sum()
    for step in range(iterations):
        if not scale_s > 0.0:
            break
        load[:] = 0.0
        bytes_held[:] = 0.0
        value = -byte_weight.sum()
        for layer in range(layers):
            chosen, cost = 0, np.inf
            for option in range(options):
                if work[layer, option] == np.inf:
                    continue
                place, kind = row[option], class_of[option]
                both = (
                    time_weight[place] * work[layer, option] / (capacity[place] * scale_s)
                    + byte_weight[kind] * need[layer, option] / room[kind]
                )
                if both < cost:
                    chosen, cost = option, both
            value += cost
            load[row[chosen]] += work[layer, chosen] / (capacity[row[chosen]] * scale_s)
            kind = class_of[chosen]
            bytes_held[kind] += need[layer, chosen] / room[kind]
        total = time_weight.sum()
        if value * scale_s / total > best:
            best = value * scale_s / total
            for index in range(rows):
                best_per_work[index] = time_weight[index] / (total * capacity[index])
            for kind in range(classes):
                best_per_byte[kind] = byte_weight[kind] * scale_s / (total * room[kind])
            scale_s = max(scale_s, best)
        rate = 1.0 / math.sqrt(1.0 + step)
        steepest = max(load.max(), bytes_held.max())
        time_weight *= np.exp(rate * load / steepest)
        byte_weight *= np.exp(rate * bytes_held / steepest)
        all_weights = time_weight.sum() + byte_weight.sum()
        time_weight /= all_weights
        byte_weight /= all_weights
    return best
