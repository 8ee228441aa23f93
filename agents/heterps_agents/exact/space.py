"""The states of the exact solver, and how far placements of a limited cost may go in each."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.front import Needs, completions
from heterps_agents.exact.state import Space, ports_of, state_shape
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.kernel_tables import KernelTables, cost_tables
from heterps_envs.closed_form.layer_needs import option_work_s
from heterps_envs.closed_form.memory_bounds import class_memory_bytes
from heterps_envs.closed_form.objective import ROUNDING, TIE_BREAK_USD_PER_HOUR, Goal
from heterps_envs.cost_tables import CostTables


def search_space(kernel: KernelTables, goal: Goal, limit_cost: float) -> Space:
    """The states, and the bounds of `Space` for placements of a cost up to the limit."""
    shape, ports = state_shape(kernel), ports_of(kernel)
    strides = np.concatenate([[1], np.cumprod(shape[:-1])]).astype(np.int64)
    used = np.arange(int(np.prod(shape)))[:, None] // strides % shape
    tables = cost_tables(kernel)
    price = kernel.price_usd_per_hour if goal.is_price else np.zeros(kernel.num_options)
    least_cost = _prefix((option_work_s(tables) * price).min(axis=1))
    per_hour = used[:, : kernel.num_classes] @ _class_price(kernel)
    limits = _limits(kernel, goal, per_hour, least_cost, limit_cost)
    needs = _needs(tables, used[:, : kernel.num_classes], limits.limit_s)
    delay_s, most_fill_s, tried = completions(
        kernel, used, ports, limits.latest_s, needs, limits.limit_s
    )
    totals = ports.totals(used)
    return Space(
        used=used,
        shift=ports.shift,
        port_of_option=ports.port_of_option,
        option_of_port=ports.option_of_port,
        by_port=np.argsort(ports.port_of_option, kind="stable"),
        totals=totals,
        order=np.argsort(totals, kind="stable"),
        option_weight=np.ascontiguousarray(price, dtype=float),
        price_usd_per_hour=per_hour,
        latest_s=limits.latest_s,
        delay_s=delay_s,
        most_fill_s=most_fill_s,
        least_fill_s=_prefix(tables.compute_s.min(axis=1)),
        least_cost=least_cost,
        limit_s=limits.limit_s,
        limit_cost=limits.limit_cost,
        work=tried,
    )


def limited(space: Space, kernel: KernelTables, goal: Goal, limit_cost: float) -> Space:
    """The same with a lower limit; the bounds stay those of the higher one."""
    limits = _limits(kernel, goal, space.price_usd_per_hour, space.least_cost, limit_cost)
    return space._replace(**limits._asdict())


class _Limits(NamedTuple):
    """See `Space`."""

    latest_s: Floats
    limit_s: float
    limit_cost: float


def _limits(
    kernel: KernelTables,
    goal: Goal,
    per_hour: Floats,
    least_cost: Floats,
    limit_cost: float,
) -> _Limits:
    limit_cost *= 1 + ROUNDING
    limit_s = goal.floor_s
    if goal.is_price:
        price = kernel.price_usd_per_hour
        weight = per_hour + TIE_BREAK_USD_PER_HOUR
        # The cheapest placement uses at least the cheapest device for the entire step.
        limit_s = min(limit_s, limit_cost / (price.min() + TIE_BREAK_USD_PER_HOUR))
    else:
        weight = np.ones(len(per_hour))
        limit_s = min(limit_s, limit_cost)
    latest_s = np.minimum(limit_s, (limit_cost - least_cost[:-1, None]) / weight)
    return _Limits(latest_s, limit_s, limit_cost)


def _needs(tables: CostTables, used: NDArray[np.int64], limit_s: float) -> Needs:
    """What the layers behind each cut take: memory somewhere, and at any prices their work."""

    def behind(values: Floats) -> Floats:
        return np.concatenate([np.cumsum(values[::-1])[::-1], [0.0]])

    _, prices = price_bound(tables)
    options = tables.stage_options
    work = option_work_s(tables) * options.devices_of_option * prices[options.class_of_option]
    priced = behind(work.min(axis=1)) * (1 - ROUNDING)
    memory = behind(_least_bytes_in_all(tables)) * (1 - ROUNDING)
    # Both fall from the front to the back.
    earliest = np.searchsorted(-memory, -(used @ class_memory_bytes(tables)))
    if math.isfinite(limit_s):
        earliest = np.maximum(earliest, np.searchsorted(-priced, -(used @ prices) * limit_s))
    return Needs(
        earliest, behind(tables.compute_s.min(axis=1)) * (1 - ROUNDING), priced, used @ prices
    )


def _least_bytes_in_all(tables: CostTables) -> Floats:
    """(L,) bytes that each layer takes at least of all devices."""
    options = tables.stage_options
    whole = options.state_bytes + options.sharded_bytes + options.activation_bytes
    return np.asarray((options.devices_of_option * whole).min(axis=1))


def _class_price(kernel: KernelTables) -> Floats:
    """(T,) US dollars per hour of one device."""
    price = np.zeros(kernel.num_classes)
    price[kernel.class_of_option] = kernel.price_usd_per_hour / kernel.devices_of_option
    return price


def _prefix(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])
