"""Provisioning: how many units each stage of a given pipeline gets, exactly.

The cost model of HeterPS (Liu et al., FGCS 148, 2023) for stages that are already formed. Compute
and communication of a stage overlap, and each follows Amdahl's law:

    tau_i(k) = max(C_i (1 - a_i + a_i / k), D_i (1 - b_i + b_i / k))     seconds for a batch
    throughput = batch / max_i tau_i(k_i)
    cost = samples / throughput * sum_i price_i k_i

The optimum need not lie at the throughput limit: where a stage cannot have less than one unit,
going slower only keeps that unit for longer. But the slowest stage's `tau` is one of at most
`sum_i most_i` values, and for each of these periods every stage takes its smallest sufficient
count. So all of them are tried; no search in the reals and no rounding is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from heterps_configs.errors import InfeasibleError

# A period that is met but for the rounding of its sums is met.
ROUNDING = 1e-12


class AmdahlStage(NamedTuple):
    """One stage: what one unit takes for a batch, and which share of it units divide.

    Attributes:
        compute_s: Seconds of compute of one batch with one unit.
        compute_share: The share of it that k units divide by k, 0 to 1.
        communication_s: The same of communication.
        communication_share: The same.
        price_usd_per_hour: Of one unit.
        max_units: Units that the stage may have.
        kind: Stages of one kind share the units of `provision`'s `available`.
    """

    compute_s: float
    compute_share: float
    communication_s: float
    communication_share: float
    price_usd_per_hour: float
    max_units: int
    kind: str = ""

    def period_s(self, units: float) -> float:
        """Seconds of a batch with some units."""
        return max(seconds * (1 - share + share / units) for seconds, share in self._overlapping())

    @property
    def least_period_s(self) -> float:
        """What no number of units falls below: the throughput has a supremum."""
        return max(seconds * (1 - share) for seconds, share in self._overlapping())

    def units_for(self, period_s: float) -> float:
        """The real number of units, at least 1, that just keeps a period; inf where none does."""
        needed = 1.0
        for seconds, share in self._overlapping():
            room = period_s - seconds * (1 - share)
            if share * seconds > 0:
                needed = max(needed, share * seconds / room if room > 0 else math.inf)
            elif room < 0:
                return math.inf
        return needed

    def _overlapping(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return (
            (self.compute_s, self.compute_share),
            (self.communication_s, self.communication_share),
        )


class Provisioning(NamedTuple):
    """Units of each stage.

    Attributes:
        units: One count for each stage.
        throughput_samples_per_s: Of the slowest stage.
        cost_usd: Of all samples.
    """

    units: tuple[int, ...]
    throughput_samples_per_s: float
    cost_usd: float


def provision(
    stages: Sequence[AmdahlStage],
    *,
    batch: float,
    samples: float,
    min_throughput: float = 0.0,
    available: Mapping[str, int] | None = None,
) -> Provisioning:
    """The cheapest units of all stages that reach a throughput.

    Args:
        stages: In any order.
        batch: Samples that the stages' seconds are for.
        samples: How many are to be processed in all.
        min_throughput: Samples per second.
        available: Units of each kind that the stages of that kind have together; a kind that is
            not named is limited by `max_units` alone.

    Raises:
        InfeasibleError: No units reach it; names the stage, and what it reaches at best.
    """
    slowest_s = batch / min_throughput * (1 + ROUNDING) if min_throughput > 0 else math.inf
    for index, stage in enumerate(stages):
        if stage.period_s(stage.max_units) > slowest_s:
            raise InfeasibleError(_too_slow(index, stage, batch, min_throughput))
    periods = {stage.period_s(units) for stage in stages for units in range(1, stage.max_units + 1)}
    options = [
        option
        for period_s in periods
        if period_s <= slowest_s
        for option in [_at_period(stages, period_s, batch, samples, available or {})]
        if option is not None
    ]
    if not options:
        shared = ", ".join(f"{count} {kind}" for kind, count in (available or {}).items())
        raise InfeasibleError(
            f"{min_throughput:g} samples/s need more units of one kind than its stages share: "
            f"there are {shared}"
        )
    return min(options, key=lambda option: (option.cost_usd, sum(option.units)))


def cost_of(
    stages: Sequence[AmdahlStage], units: Sequence[int], *, batch: float, samples: float
) -> Provisioning:
    """Throughput and cost of given units."""
    pairs = list(zip(stages, units, strict=True))
    throughput = batch / max(stage.period_s(count) for stage, count in pairs)
    per_hour = sum(stage.price_usd_per_hour * count for stage, count in pairs)
    return Provisioning(tuple(units), throughput, samples / throughput / 3600 * per_hour)


def _at_period(
    stages: Sequence[AmdahlStage],
    period_s: float,
    batch: float,
    samples: float,
    available: Mapping[str, int],
) -> Provisioning | None:
    """The smallest sufficient counts for a period, if there are that many."""
    units = []
    for stage in stages:
        needed = stage.units_for(period_s * (1 + ROUNDING))
        if needed > stage.max_units:
            return None
        units.append(math.ceil(needed))
    for kind, most in available.items():
        used = sum(count for stage, count in zip(stages, units, strict=True) if stage.kind == kind)
        if used > most:
            return None
    return cost_of(stages, units, batch=batch, samples=samples)


def _too_slow(index: int, stage: AmdahlStage, batch: float, min_throughput: float) -> str:
    text = f"stage {index} cannot reach {min_throughput:g} samples/s: "
    supremum = math.inf if stage.least_period_s == 0 else batch / stage.least_period_s
    if supremum <= min_throughput:
        return text + f"no number of units exceeds {supremum:.6g}"
    at_most = batch / stage.period_s(stage.max_units)
    return text + f"its {stage.max_units} units reach {at_most:.6g}"
