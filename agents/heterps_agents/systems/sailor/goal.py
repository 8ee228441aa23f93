"""What a plan is chosen by: seconds or dollars of an iteration, under a floor and a budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from heterps_configs.importers.sailor_runs import SailorPlan

_SECONDS_PER_HOUR = 3600
# What a free GPU costs: of two free plans the quicker one with fewer GPUs is the better one.
LEAST_USD_PER_HOUR = 1e-6


class SailorGoal(NamedTuple):
    """What is asked of a plan; by default the fewest seconds.

    Attributes:
        minimises: Seconds or dollars of an iteration.
        usd_per_hour: Of one GPU of each type; a type that is not named is free.
        most_s: No iteration may take longer: what a floor on the throughput says.
        most_usd: No iteration may cost more: the budget.
    """

    minimises: Literal["seconds", "usd"] = "seconds"
    usd_per_hour: Mapping[str, float] = MappingProxyType({})
    most_s: float = math.inf
    most_usd: float = math.inf

    @property
    def is_by_usd(self) -> bool:
        """Whether dollars are minimised."""
        return self.minimises == "usd"

    @property
    def is_plain(self) -> bool:
        """Whether prices do not matter, nor is there a limit on the seconds."""
        return not self.is_by_usd and math.isinf(self.most_s) and math.isinf(self.most_usd)

    def usd_per_s(self, gpu: str) -> float:
        """Of one GPU of a type."""
        return max(self.usd_per_hour.get(gpu, 0.0), LEAST_USD_PER_HOUR) / _SECONDS_PER_HOUR

    def usd(self, plan: SailorPlan, seconds: float) -> float:
        """What one iteration costs: the GPUs that the plan uses, for as long as it takes."""
        groups = (group for stage in plan.stages for group in stage.groups)
        return seconds * sum(group.tensor_parallel * self.usd_per_s(group.gpu) for group in groups)

    def value(self, seconds: float, usd: float) -> float:
        """What is minimised; inf of what breaks a limit."""
        if seconds > self.most_s or usd > self.most_usd:
            return math.inf
        return usd if self.is_by_usd else seconds


class Room(NamedTuple):
    """What is worth finding: plans below both.

    Attributes:
        most_s: Of an iteration.
        most_usd: Of an iteration.
    """

    most_s: float = math.inf
    most_usd: float = math.inf
