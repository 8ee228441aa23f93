"""Chains whose stages get as many units as they need: what they cost and how fast they are.

A stage of k units passes one micro-batch every `tau(k) = A + B / k` seconds: Amdahl's law, A and B
sums over its layers. The link behind it has such a form too. `elastic_counts` finds the cheapest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.cost_tables import CostTables

# A period that is kept but for the rounding of sums is kept.
ROUNDING = 1e-9
MAX_UNITS = 1 << 20


class ElasticChain(NamedTuple):
    """L layers, T classes; seconds of one micro-batch.

    Attributes:
        fixed_s: (L, T) A of each layer: what more units do not shorten; inf where it cannot run.
        shared_s: (L, T) B of each layer: what k units share. May be negative, as that of a ring
            all-reduce is, but not below `-fixed_s`.
        link_fixed_s: (L, T, T) the same of the message over the cut behind a layer, by the classes
            before and behind it.
        link_shared_s: (L, T, T) what the units before the cut share.
        price_usd_per_hour: (T,) of one unit.
        max_units: (T,) units that one stage may have.
    """

    fixed_s: Floats
    shared_s: Floats
    link_fixed_s: Floats
    link_shared_s: Floats
    price_usd_per_hour: Floats
    max_units: Integers


class ElasticPlan(NamedTuple):
    """Stages with their units.

    Attributes:
        stages: Front first; `replicas` are the units.
        period_s: Seconds from one micro-batch to the next.
        price_usd_per_hour: Of all units.
    """

    stages: Placement
    period_s: float
    price_usd_per_hour: float

    @property
    def usd_per_micro_batch(self) -> float:
        """What one micro-batch costs."""
        return self.price_usd_per_hour / 3600 * self.period_s


def steady_chain(tables: CostTables, max_units: int = MAX_UNITS) -> ElasticChain:
    """The steady state of a training pipeline: what the closed form tends to with M.

    Units share the micro-batches; each step ends with an optimizer step and a ring all-reduce of
    `2 (k - 1) / k * bytes / bandwidth` seconds, shared by the M micro-batches of the step. Its
    latency, which grows with k, is left out: the period is never above the closed form's.
    """
    micro_batches = tables.num_micro_batches
    inside = np.diagonal(tables.inverse_bandwidth_s_per_byte)
    reduce_s = 2 * tables.gradient_bytes[:, None] * inside / micro_batches
    message_s = tables.output_bytes[:, None, None] * tables.inverse_bandwidth_s_per_byte
    return ElasticChain(
        fixed_s=tables.optimizer_s / micro_batches + reduce_s,
        shared_s=tables.compute_s - reduce_s,
        link_fixed_s=np.zeros_like(message_s),
        link_shared_s=message_s,
        price_usd_per_hour=np.asarray(tables.price_usd_per_hour, dtype=float),
        max_units=np.full(tables.num_classes, min(max_units, micro_batches), np.int64),
    )


def plan_of(chain: ElasticChain, stages: Sequence[PlacedStage]) -> ElasticPlan:
    """Period and price of stages with their units, from the definition."""
    period_s = price = 0.0
    for stage, behind in zip(stages, [*stages[1:], None], strict=True):
        part = slice(stage.first_layer, stage.last_layer + 1)
        kind, units = stage.device_class, stage.replicas
        fixed, shared = chain.fixed_s[part, kind].sum(), chain.shared_s[part, kind].sum()
        period_s = max(period_s, stage_period_s(float(fixed), float(shared), units))
        price += units * float(chain.price_usd_per_hour[kind])
        if behind is not None:
            cut = (stage.last_layer, kind, behind.device_class)
            message = stage_period_s(
                float(chain.link_fixed_s[cut]), float(chain.link_shared_s[cut]), units
            )
            period_s = max(period_s, message)
    return ElasticPlan(tuple(stages), period_s, price)


def explain_period(chain: ElasticChain, period_s: float) -> str:
    """Why no plan keeps a period: the layer that limits most, or the links."""
    least = least_periods(chain)
    slowest = int(least.argmax())
    if least[slowest] > period_s * (1 + ROUNDING):
        return (
            f"no plan passes a micro-batch every {period_s:.6g} s: the stage with layer {slowest} "
            f"takes {least[slowest]:.6g} s at least, {least[slowest] - period_s:.6g} s more, "
            "whatever its class and units"
        )
    return (
        f"no plan passes a micro-batch every {period_s:.6g} s, although each layer alone can "
        f"(layer {slowest} in {least[slowest]:.6g} s): the links between their classes, or what "
        "units of a stage do not share, take longer"
    )


def stage_period_s(fixed_s: float, shared_s: float, units: int) -> float:
    """Seconds that one micro-batch takes of a stage with k units: `tau(k)`."""
    return fixed_s + shared_s / units


def least_periods(chain: ElasticChain) -> Floats:
    """(L,) the shortest period of each layer alone."""
    few = chain.fixed_s + chain.shared_s
    many = chain.fixed_s + chain.shared_s / chain.max_units
    return np.asarray(np.minimum(few, many).min(axis=1))
