"""What the sweep of `heterps_agents.exact.kernels` works on, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form.kernel_tables import KernelTables


class Ports(NamedTuple):
    """How options change a state, and which of them have the same links.

    Attributes:
        shift, port_of_option, option_of_port: See `Space`.
        counts_replicas: Whether the last column of `Space.used` does.
    """

    shift: NDArray[np.int64]
    port_of_option: NDArray[np.int64]
    option_of_port: NDArray[np.int64]
    counts_replicas: bool

    def totals(self, used: NDArray[np.int64]) -> NDArray[np.int64]:
        """(S,) replicas of stages that the devices used carry."""
        # In one order of its numbers: kernels are compiled for each.
        return np.ascontiguousarray(used[:, -1] if self.counts_replicas else used.sum(axis=1))


def state_shape(kernel: KernelTables) -> NDArray[np.int64]:
    """How many values each column of `Space.used` has."""
    shape = kernel.device_count + 1
    if (kernel.devices_of_option > 1).any():
        shape = np.append(shape, kernel.device_count.sum() + 1)
    return shape


def ports_of(kernel: KernelTables) -> Ports:
    """The ports of a problem's options."""
    shape = state_shape(kernel)
    strides = np.concatenate([[1], np.cumprod(shape[:-1])]).astype(np.int64)
    counts_replicas = len(shape) > kernel.num_classes
    shift = kernel.devices_of_option * strides[kernel.class_of_option]
    if counts_replicas:
        shift += strides[-1]
    keys = np.stack([kernel.class_of_option, kernel.devices_of_option], axis=1)
    _, first, port = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    return Ports(shift, port.reshape(-1).astype(np.int64), first.astype(np.int64), counts_replicas)


def can_be_reached(kernel: KernelTables, used: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(S,) whether some stages have as many devices of each class, and as many replicas.

    Args:
        kernel: Cost tables.
        used: See `Space`.
    """
    possible = np.ones(len(used), np.bool_)
    if used.shape[1] == kernel.num_classes:
        return possible
    fewest, most = np.zeros((2, len(used)), np.int64)
    for kind in range(kernel.num_classes):
        sizes, devices = kernel.devices_of_option[kernel.class_of_option == kind], used[:, kind]
        if len(sizes) == 0:
            possible &= devices == 0
            continue
        possible &= devices % np.gcd.reduce(sizes) == 0
        fewest += -(-devices // sizes.max())
        most += devices // sizes.min()
    return possible & (fewest <= used[:, -1]) & (used[:, -1] <= most)


class Space(NamedTuple):
    """The devices used, as one integer, and what no completion of them can fall below.

    A placement costs `weight * step time`: 1 for the objective throughput, the price for `price`.

    Attributes:
        used: (S, T) devices used of each class; (S, T + 1) where there are groups of devices: then
            the last column is how many replicas of stages they carry.
        shift: (O,) what one more replica of an option adds to the integer.
        port_of_option: (O,) options of one class with as many devices have one port: the same
            links to all others.
        option_of_port: (P,) one of them.
        by_port: (O,) options, those of a port together.
        totals: (S,) replicas of stages that the devices used carry.
        order: (S,) states by `totals`.
        option_weight: (O,) what a replica adds to the weight.
        price_usd_per_hour: (S,) of the devices used.
        latest_s: (L, S) largest step time that is of use, by the cut and the devices behind it.
        delay_s: (L, P, S) that the layers before a cut add to it at least, by the port behind.
        most_fill_s: (L, P, S) largest fill behind a cut with which they keep the limits.
        least_fill_s: (L + 1,) seconds that the layers before a cut delay the rest at least.
        least_cost: (L + 1,) what they add to the cost at least.
        limit_s: Largest step time that is of use.
        limit_cost: Largest cost that is of use.
        work: Stages that were tried for these bounds.
    """

    used: NDArray[np.int64]
    shift: NDArray[np.int64]
    port_of_option: NDArray[np.int64]
    option_of_port: NDArray[np.int64]
    by_port: NDArray[np.int64]
    totals: NDArray[np.int64]
    order: NDArray[np.int64]
    option_weight: NDArray[np.float64]
    price_usd_per_hour: NDArray[np.float64]
    latest_s: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    most_fill_s: NDArray[np.float64]
    least_fill_s: NDArray[np.float64]
    least_cost: NDArray[np.float64]
    limit_s: float
    limit_cost: float
    work: int


class Labels(NamedTuple):
    """The Pareto sets of (step time, fill), as lists in one pool, least step time first.

    Attributes:
        first: (L, P, S) first label by the cut, the port of the stage behind it and the state
            behind it; 0 where there is none.
        behind_s: (N,) step time of what is built.
        fill_s: (N,) its fill.
        following: (N,) the next label; 0 at the end.
    """

    first: NDArray[np.int32]
    behind_s: NDArray[np.float64]
    fill_s: NDArray[np.float64]
    following: NDArray[np.int32]


class Reached(NamedTuple):
    """Labels behind a cut as a stage of one port sees them, through its links.

    Attributes:
        state: (N,) devices used.
        link: (N,) the port at the other end of the link.
        behind_s: (N,) message and back, and the step time behind.
        round_trip_s: (N,) message and back, and the fill behind.
    """

    state: NDArray[np.int64]
    link: NDArray[np.int64]
    behind_s: NDArray[np.float64]
    round_trip_s: NDArray[np.float64]
