"""A search that tries every placement which could be better than some: plain Python, for proofs.

Stages are put in front of each other, back to front. A branch ends where the closed form of what
is built is no better already, where memory or devices do not suffice, or where the work that is
left costs more than the devices that are left can do. No placement is left out for any other
reason, so that a finished search without a find is a proof.
"""

from __future__ import annotations

from typing import NamedTuple

from heterps_envs.certificates.definition import PlainStage, closed_form_s, stage_bytes
from heterps_envs.cost_tables import CostTables

MAX_REPLICAS = 4096
ROUNDING = 1e-12


class Wanted(NamedTuple):
    """What is looked for.

    Attributes:
        below_s: A step time of at most this, and
        below_cost: a price per hour times step time of less than this.
    """

    below_s: float
    below_cost: float


class Found(NamedTuple):
    """What the search came to.

    Attributes:
        stages: A placement that is wanted; None where none was found.
        is_finished: All were tried.
        steps: Stages that were put in front of something.
    """

    stages: list[PlainStage] | None
    is_finished: bool
    steps: int


class _OutOfStepsError(Exception):
    """More stages were tried than allowed."""


def find_better(
    tables: CostTables, wanted: Wanted, prices: tuple[float, ...], max_steps: int
) -> Found:
    """Looks for a placement that fits and is wanted.

    Args:
        tables: Cost tables.
        wanted: Limits.
        prices: (T,) of a device-second, not negative; any are valid, good ones prune.
        max_steps: Gives up after so many stages.
    """
    search = _Search(tables, wanted, prices, max_steps)
    try:
        stages = search.front_of([], list(map(int, tables.device_count)))
    except _OutOfStepsError:
        return Found(None, False, search.steps)
    return Found(stages, True, search.steps)


class _Search:
    def __init__(
        self, tables: CostTables, wanted: Wanted, prices: tuple[float, ...], max_steps: int
    ) -> None:
        self.tables, self.wanted, self.prices = tables, wanted, prices
        self.max_steps, self.steps = max_steps, 0
        # Of the layers in front of each cut, at least: device-seconds at the prices, and one pass.
        self.work_before, self.pass_before = [0.0], [0.0]
        for compute_s in tables.compute_s:
            work = min(
                price * tables.num_micro_batches * float(seconds)
                for price, seconds in zip(prices, compute_s, strict=True)
            )
            self.work_before.append(self.work_before[-1] + work)
            self.pass_before.append(self.pass_before[-1] + float(min(compute_s)))

    def front_of(self, behind: list[PlainStage], left: list[int]) -> list[PlainStage] | None:
        """A wanted placement that ends with the stages `behind`, on the devices that are left."""
        stop = behind[0].start if behind else self.tables.num_layers
        if stop == 0:
            return behind
        devices = sum(stage.replicas for stage in behind)
        for kind, count in enumerate(left):
            for replicas in range(1, min(count, MAX_REPLICAS) + 1):
                room = float(self.tables.memory_bytes[kind]) * (1 + ROUNDING)
                rest = [n - replicas * (d == kind) for d, n in enumerate(left)]
                for start in range(stop - 1, -1, -1):
                    if stage_bytes(self.tables, start, stop, replicas, devices) > room:
                        break
                    self.steps += 1
                    if self.steps > self.max_steps:
                        raise _OutOfStepsError
                    stages = [PlainStage(start, stop, kind, replicas), *behind]
                    if self._is_hopeless(stages, rest):
                        continue
                    found = self.front_of(stages, rest)
                    if found is not None:
                        return found
        return None

    def _is_hopeless(self, stages: list[PlainStage], left: list[int]) -> bool:
        start = stages[0].start
        least_s = closed_form_s(self.tables, stages) + self.pass_before[start]
        per_hour = sum(
            stage.replicas * float(self.tables.price_usd_per_hour[stage.kind]) for stage in stages
        )
        can_do = sum(n * p for n, p in zip(left, self.prices, strict=True)) * self.wanted.below_s
        return (
            least_s > self.wanted.below_s
            or per_hour * least_s >= self.wanted.below_cost
            or self.work_before[start] > can_do * (1 + ROUNDING)
        )
