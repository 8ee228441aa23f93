"""Cost tables as the compiled kernels take them: sums over ranges of layers, found in two reads."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.cost_tables import CostTables, RingLinks, StageOptions


class KernelTables(NamedTuple):
    """The cost tables as compiled kernels take them, with prefix sums over the layers."""

    num_layers: int
    num_classes: int
    num_options: int
    num_micro_batches: int
    is_gpipe: bool
    forward_prefix_s: Floats  # (L + 1, O)
    compute_prefix_s: Floats  # (L + 1, O)
    optimizer_prefix_s: Floats  # (L + 1, O)
    state_prefix_bytes: Floats  # (L + 1, O)
    sharded_prefix_bytes: Floats  # (L + 1, O)
    gradient_prefix_bytes: Floats  # (L + 1, O)
    activation_prefix_bytes: Floats  # (L + 1, O)
    output_bytes: Floats  # (L,)
    device_count: NDArray[np.int64]  # (T,)
    class_of_option: NDArray[np.int64]  # (O,)
    devices_of_option: NDArray[np.int64]  # (O,)
    shards_state: NDArray[np.bool_]  # (O,)
    memory_bytes: Floats  # (O,)
    price_usd_per_hour: Floats  # (O,)
    latency_s: Floats  # (O, O)
    inverse_bandwidth_s_per_byte: Floats  # (O, O)
    node_size: NDArray[np.int64]  # (O,)
    ring_latency_s: Floats  # (O, 2)
    ring_inverse_bandwidth: Floats  # (O, 2)
    # Last: before the arrays it makes calls that copy them a third slower.
    holds_by_rule: bool


def kernel_tables(tables: CostTables) -> KernelTables:
    """Prepares the arrays once for each problem."""

    def prefix(values: Floats) -> Floats:
        out = np.zeros((values.shape[0] + 1, *values.shape[1:]))
        np.cumsum(values, axis=0, out=out[1:])
        return out

    rings = ring_links(tables)
    options = tables.stage_options
    return KernelTables(
        num_layers=tables.num_layers,
        num_classes=tables.num_classes,
        num_options=tables.num_options,
        num_micro_batches=tables.num_micro_batches,
        is_gpipe=tables.is_gpipe,
        forward_prefix_s=prefix(tables.forward_s),
        compute_prefix_s=prefix(tables.compute_s),
        optimizer_prefix_s=prefix(tables.optimizer_s),
        state_prefix_bytes=prefix(options.state_bytes),
        sharded_prefix_bytes=prefix(options.sharded_bytes),
        gradient_prefix_bytes=prefix(options.gradient_bytes),
        activation_prefix_bytes=prefix(options.activation_bytes),
        output_bytes=np.ascontiguousarray(tables.output_bytes, dtype=float),
        device_count=np.ascontiguousarray(tables.device_count, dtype=np.int64),
        class_of_option=np.ascontiguousarray(options.class_of_option, dtype=np.int64),
        devices_of_option=np.ascontiguousarray(options.devices_of_option, dtype=np.int64),
        shards_state=np.ascontiguousarray(options.shards_state, dtype=np.bool_),
        memory_bytes=np.ascontiguousarray(tables.memory_bytes, dtype=float),
        price_usd_per_hour=np.ascontiguousarray(tables.price_usd_per_hour, dtype=float),
        latency_s=np.ascontiguousarray(tables.latency_s, dtype=float),
        inverse_bandwidth_s_per_byte=np.ascontiguousarray(
            tables.inverse_bandwidth_s_per_byte, float
        ),
        node_size=rings.node_size,
        ring_latency_s=rings.latency_s,
        ring_inverse_bandwidth=rings.inverse_bandwidth_s_per_byte,
        holds_by_rule=tables.holds_by_rule,
    )


def ring_links(tables: CostTables) -> RingLinks:
    """The links of all-reduces; by default those between two devices of a class, however many."""
    links = (tables.latency_s, tables.inverse_bandwidth_s_per_byte)
    alike = RingLinks(
        tables.most_replicas, *(np.diagonal(link)[:, None].repeat(2, axis=1) for link in links)
    )
    node_size, *both = tables.rings or alike
    return RingLinks(
        np.ascontiguousarray(node_size, dtype=np.int64),
        *(np.ascontiguousarray(link, dtype=float) for link in both),
    )


def cost_tables(kernel: KernelTables) -> CostTables:
    """The cost tables that a kernel's prefix sums were made from."""
    forward_s = np.diff(kernel.forward_prefix_s, axis=0)
    options = StageOptions(
        class_of_option=kernel.class_of_option,
        devices_of_option=kernel.devices_of_option,
        state_bytes=np.diff(kernel.state_prefix_bytes, axis=0),
        sharded_bytes=np.diff(kernel.sharded_prefix_bytes, axis=0),
        shards_state=kernel.shards_state,
        gradient_bytes=np.diff(kernel.gradient_prefix_bytes, axis=0),
        activation_bytes=np.diff(kernel.activation_prefix_bytes, axis=0),
    )
    return CostTables(
        num_micro_batches=kernel.num_micro_batches,
        is_gpipe=kernel.is_gpipe,
        holds_by_rule=kernel.holds_by_rule,
        forward_s=forward_s,
        backward_s=np.diff(kernel.compute_prefix_s, axis=0) - forward_s,
        optimizer_s=np.diff(kernel.optimizer_prefix_s, axis=0),
        state_bytes=options.state_bytes[:, 0],
        gradient_bytes=options.gradient_bytes[:, 0],
        activation_bytes=options.activation_bytes[:, 0],
        output_bytes=kernel.output_bytes,
        device_count=kernel.device_count,
        memory_bytes=kernel.memory_bytes,
        price_usd_per_hour=kernel.price_usd_per_hour,
        latency_s=kernel.latency_s,
        inverse_bandwidth_s_per_byte=kernel.inverse_bandwidth_s_per_byte,
        rings=RingLinks(kernel.node_size, kernel.ring_latency_s, kernel.ring_inverse_bandwidth),
        options=options,
    )
