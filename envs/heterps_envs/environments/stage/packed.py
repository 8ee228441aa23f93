"""Many placement problems side by side, padded, as the kernels of the environment read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.compiled import checked
from heterps_envs.cost_tables import CostTables

# A guess of the step time costs nothing below this share of the bound, so ratios stay finite.
SMALLEST_TARGET_SHARE = 0.02


class StageProblems(NamedTuple):
    """N problems as a structure of arrays, padded to L layers and C columns.

    Columns are device classes or stage options, of which there are as many where each class has
    one. The fields from `forward_prefix_s` to `ring_inverse_bandwidth` are those of
    `heterps_envs.closed_form.kernel_tables.KernelTables` with a leading axis N.

    Attributes:
        num_layers, num_classes, num_options, num_micro_batches, is_gpipe, holds_by_rule: (N,).
        least_state_prefix_bytes, least_activation_prefix_bytes: (N, L + 1) that the layers before
            each cut hold at least on all devices of a group, of the state and of a micro-batch.
        class_memory_bytes: (N, C) of one device of each class, by the option that leaves most.
        class_usd_per_hour: (N, C) of one device of each class.
        class_price: (N, C) the LP-dual price of one device-second; sums to 1 over all devices.
        value_prefix_s: (N, L + 1) price of the cheapest way to compute the layers before each cut,
            over all micro-batches, optimizer included.
        dollars_prefix: (N, L + 1) US dollars per hour times seconds of the cheapest way to compute
            the layers before each cut: no price times step time is less.
        fastest_prefix_s: (N, L + 1) compute seconds of one micro-batch in the layers before each
            cut, each on its fastest class: the least that they add to the fill.
        lower_bound_s: (N,) no placement has a shorter step time.
    """

    num_layers: Integers
    num_classes: Integers
    num_options: Integers
    num_micro_batches: Integers
    is_gpipe: NDArray[np.bool_]
    forward_prefix_s: Floats
    compute_prefix_s: Floats
    optimizer_prefix_s: Floats
    state_prefix_bytes: Floats
    sharded_prefix_bytes: Floats
    gradient_prefix_bytes: Floats
    activation_prefix_bytes: Floats
    output_bytes: Floats
    device_count: Integers
    class_of_option: Integers
    devices_of_option: Integers
    shards_state: NDArray[np.bool_]
    memory_bytes: Floats
    price_usd_per_hour: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats
    node_size: Integers
    ring_latency_s: Floats
    ring_inverse_bandwidth: Floats
    least_state_prefix_bytes: Floats
    least_activation_prefix_bytes: Floats
    class_memory_bytes: Floats
    class_usd_per_hour: Floats
    class_price: Floats
    value_prefix_s: Floats
    dollars_prefix: Floats
    fastest_prefix_s: Floats
    lower_bound_s: Floats
    holds_by_rule: NDArray[np.bool_]

    @property
    def num_problems(self) -> int:
        """Number of problems, N."""
        return len(self.num_layers)

    @property
    def least_target_s(self) -> Floats:
        """(N,) the smallest bottleneck that is worth aiming at."""
        return self.lower_bound_s * SMALLEST_TARGET_SHARE


def empty_problems(count: int, max_layers: int, max_columns: int) -> StageProblems:
    """Room for `count` problems; fill it with `put_problem`."""
    n, layers, columns = count, max_layers, max_columns
    return StageProblems(
        num_layers=np.zeros(n, np.int64),
        num_classes=np.zeros(n, np.int64),
        num_options=np.zeros(n, np.int64),
        num_micro_batches=np.ones(n, np.int64),
        is_gpipe=np.zeros(n, np.bool_),
        forward_prefix_s=np.zeros((n, layers + 1, columns)),
        compute_prefix_s=np.zeros((n, layers + 1, columns)),
        optimizer_prefix_s=np.zeros((n, layers + 1, columns)),
        state_prefix_bytes=np.zeros((n, layers + 1, columns)),
        sharded_prefix_bytes=np.zeros((n, layers + 1, columns)),
        gradient_prefix_bytes=np.zeros((n, layers + 1, columns)),
        activation_prefix_bytes=np.zeros((n, layers + 1, columns)),
        output_bytes=np.zeros((n, layers)),
        device_count=np.zeros((n, columns), np.int64),
        class_of_option=np.zeros((n, columns), np.int64),
        devices_of_option=np.ones((n, columns), np.int64),
        shards_state=np.zeros((n, columns), np.bool_),
        memory_bytes=np.zeros((n, columns)),
        price_usd_per_hour=np.zeros((n, columns)),
        latency_s=np.zeros((n, columns, columns)),
        inverse_bandwidth_s_per_byte=np.zeros((n, columns, columns)),
        node_size=np.zeros((n, columns), np.int64),
        ring_latency_s=np.zeros((n, columns, 2)),
        ring_inverse_bandwidth=np.zeros((n, columns, 2)),
        least_state_prefix_bytes=np.zeros((n, layers + 1)),
        least_activation_prefix_bytes=np.zeros((n, layers + 1)),
        class_memory_bytes=np.zeros((n, columns)),
        class_usd_per_hour=np.zeros((n, columns)),
        class_price=np.zeros((n, columns)),
        value_prefix_s=np.zeros((n, layers + 1)),
        dollars_prefix=np.zeros((n, layers + 1)),
        fastest_prefix_s=np.zeros((n, layers + 1)),
        lower_bound_s=np.zeros(n),
        holds_by_rule=np.zeros(n, np.bool_),
    )


_SHARED_FIELDS = tuple(
    name for name in KernelTables._fields if name in StageProblems._fields and "num_" not in name
)


def num_columns(tables: CostTables) -> int:
    """Columns that a problem needs: for its classes, and for its options."""
    return max(tables.num_classes, tables.num_options)


def put_problem(problems: StageProblems, row: int, tables: CostTables) -> None:
    """Writes one problem into a row.

    Raises:
        HeterpsError: The problem has more layers, classes or options than there is room for, or a
            layer that fits on no device.
    """
    layers, classes, columns = tables.num_layers, tables.num_classes, num_columns(tables)
    room = problems.value_prefix_s.shape[1] - 1, problems.class_price.shape[1]
    if layers > room[0] or columns > room[1]:
        raise HeterpsError(
            f"a problem has {layers} layers and {columns} device classes; there is room for "
            f"{room[0]} and {room[1]}"
        )
    kernel, options = kernel_tables(tables), tables.stage_options
    problems.num_layers[row], problems.num_classes[row] = layers, classes
    problems.num_options[row] = tables.num_options
    problems.num_micro_batches[row] = kernel.num_micro_batches
    for name in _SHARED_FIELDS:
        value = np.asarray(getattr(kernel, name))
        target = getattr(problems, name)
        target[(row, *(slice(0, size) for size in value.shape))] = value
    problems.device_count[row, classes:] = 0
    bound_s, prices = price_bound(tables)
    if not np.isfinite(bound_s):
        raise HeterpsError("a problem has a layer that fits on no device")
    work_s = kernel.num_micro_batches * tables.compute_s + tables.optimizer_s
    group_price = prices[options.class_of_option] * options.devices_of_option
    _put_prefix(problems.value_prefix_s[row], (work_s * group_price).min(axis=1))
    _put_prefix(problems.dollars_prefix[row], (work_s * tables.price_usd_per_hour).min(axis=1))
    _put_prefix(problems.fastest_prefix_s[row], tables.compute_s.min(axis=1))
    # Replicas that share state hold it once among them.
    state = (options.state_bytes + options.sharded_bytes) * options.devices_of_option
    _put_prefix(problems.least_state_prefix_bytes[row], state.min(axis=1))
    kept = options.activation_bytes * options.devices_of_option
    _put_prefix(problems.least_activation_prefix_bytes[row], kept.min(axis=1))
    np.maximum.at(problems.class_memory_bytes[row], options.class_of_option, tables.memory_bytes)
    problems.class_usd_per_hour[row, options.class_of_option] = (
        tables.price_usd_per_hour / options.devices_of_option
    )
    problems.class_price[row, :classes] = prices
    problems.lower_bound_s[row] = bound_s


def kernel_tables_of(problems: StageProblems, row: int) -> KernelTables:
    """The kernel tables that `put_problem` has written, without the padding."""
    layers, classes, options = (
        int(getattr(problems, name)[row]) for name in ("num_layers", "num_classes", "num_options")
    )
    sizes: dict[str, tuple[int, ...]] = {
        name: (layers + 1, options) for name in _SHARED_FIELDS if "_prefix_" in name
    }
    sizes |= {"output_bytes": (layers,), "device_count": (classes,), "is_gpipe": ()}
    sizes |= {"holds_by_rule": ()}
    sizes |= dict.fromkeys(("latency_s", "inverse_bandwidth_s_per_byte"), (options, options))
    sizes |= dict.fromkeys(("ring_latency_s", "ring_inverse_bandwidth"), (options, 2))
    fields = {
        name: getattr(problems, name)[(row, *map(slice, sizes.get(name, (options,))))].copy()
        for name in _SHARED_FIELDS
    }
    return KernelTables(
        **{**fields, **{name: bool(fields[name]) for name in ("is_gpipe", "holds_by_rule")}},
        num_layers=layers,
        num_classes=classes,
        num_options=options,
        num_micro_batches=int(problems.num_micro_batches[row]),
    )


def _put_prefix(out: Floats, values: Floats) -> None:
    out[1 : len(values) + 1] = np.cumsum(values)


@checked
def kernel_of(p: Any, z: int) -> KernelTables:
    """One problem of many as the closed form takes it: views, nothing is copied.

    Args:
        p: `StageProblems`.
        z: Its row.
    """
    return KernelTables(
        p.num_layers[z], p.num_classes[z], p.num_options[z], p.num_micro_batches[z],
        p.is_gpipe[z], p.forward_prefix_s[z], p.compute_prefix_s[z], p.optimizer_prefix_s[z],
        p.state_prefix_bytes[z], p.sharded_prefix_bytes[z], p.gradient_prefix_bytes[z],
        p.activation_prefix_bytes[z], p.output_bytes[z], p.device_count[z],
        p.class_of_option[z], p.devices_of_option[z], p.shards_state[z], p.memory_bytes[z],
        p.price_usd_per_hour[z], p.latency_s[z], p.inverse_bandwidth_s_per_byte[z],
        p.node_size[z], p.ring_latency_s[z], p.ring_inverse_bandwidth[z], p.holds_by_rule[z],
    )  # fmt: skip


def pack_problems(
    tables: Sequence[CostTables], max_layers: int = 0, max_classes: int = 0
) -> StageProblems:
    """Packs problems of any sizes.

    Args:
        tables: The problems, at least one.
        max_layers: Room for layers; 0 for as many as the largest problem has.
        max_classes: The same for device classes, or options.

    Raises:
        HeterpsError: There is no problem, or one that does not fit into the given room.
    """
    if not tables:
        raise HeterpsError("there must be at least one problem")
    problems = empty_problems(
        len(tables),
        max_layers or max(entry.num_layers for entry in tables),
        max_classes or max(map(num_columns, tables)),
    )
    for row, entry in enumerate(tables):
        put_problem(problems, row, entry)
    return problems
