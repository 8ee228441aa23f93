"""A plan prepared for the simulator: what its times, its memory and its bound have in common.

Planners simulate a plan several times over, with more micro-batches in flight and with gradient
sums in other places. What those do not change is found once (`PreparedPlan.changed`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_envs.schedule.action_lists import ActionLists
from heterps_envs.schedule.actions import ReduceBucket, Schedule
from heterps_envs.schedule.build import passes_of, with_sums
from heterps_envs.schedule.known_runs import KnownRun, known_run
from heterps_envs.schedule.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.schedule.reduce_buckets import Rings, reduce_buckets, reduce_s
from heterps_envs.simulator.messages import Messages, messages

Part = TypeVar("Part")
# What a plan keeps when its step time is known.
_PARTS = ("arrays", "schedule", "messages", "known")
# Lists of a plan as it is, and with more in flight.
_MOST_KEPT = 2


@dataclass(frozen=True, eq=False)
class PreparedPlan:
    """One plan of a problem; every part is made once, when it is first asked for.

    Attributes:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        given: Its action lists; None: those of `build_schedule`.
        shared: Parts that plans have in common which differ as `changed` allows.

    Raises:
        PlanMismatchError: By all parts: the plan belongs to another model, cluster or job.
    """

    problem: Problem
    plan: Plan
    given: Schedule | None = None
    shared: dict[str, dict[Hashable, Any]] = field(default_factory=dict, repr=False)

    def changed(self, **fields: Any) -> PreparedPlan:
        """The plan with other fields, unchecked, which shares what they do not change.

        Args:
            fields: Of the plan: `overlaps_reduce`, and `stages` that differ by `in_flight` alone.
        """
        plan = self.plan.changed_unchecked(**fields)
        return PreparedPlan(self.problem, plan, None, self.shared)

    def timed(self, step_time_s: float) -> PreparedPlan:
        """The plan with its predicted step time, which has all parts that are made already."""
        plan = self.plan.changed_unchecked(predicted_step_time_s=step_time_s)
        found = PreparedPlan(self.problem, plan, self.given, self.shared)
        made = {name: part for name, part in self.__dict__.items() if name in _PARTS}
        found.__dict__.update(made)
        return found

    @cached_property
    def known(self) -> KnownRun:
        """What was said of plans that run like this one; nothing where action lists are given."""
        return known_run(self.problem, self.plan) if self.given is None else KnownRun()

    @cached_property
    def arrays(self) -> PlanArrays:
        """Costs and routes of the plan."""
        return self._once("arrays", (), lambda: plan_arrays(self.problem, self.plan))

    @cached_property
    def schedule(self) -> Schedule:
        """The action list of every device."""
        if self.given is not None:
            return self.given
        buckets = self._once("buckets", self.plan.sums_overlap, self._buckets)
        return with_sums(self.problem, self.plan, self.arrays, self._passes, buckets)

    def _buckets(self) -> tuple[ReduceBucket, ...]:
        return reduce_buckets(self.problem, self.plan, self.arrays.shape)

    @property
    def reduce_s(self) -> Floats:
        """(K,) seconds of the all-reduce of each bucket."""
        if self.given is not None:
            return self._sum_seconds()
        return self._once("reduce_s", self.plan.sums_overlap, self._sum_seconds)

    def _sum_seconds(self) -> Floats:
        rings: Rings = {}
        buckets = self.schedule.buckets
        return np.array([reduce_s(self.problem, bucket, rings) for bucket in buckets], float)

    @cached_property
    def _passes(self) -> ActionLists:
        held = tuple([stage.in_flight for stage in self.plan.stages])
        return self._once("passes", held, lambda: passes_of(self.problem, self.plan, self.arrays))

    @cached_property
    def messages(self) -> Messages:
        """What the action lists send and receive."""
        return messages(self.schedule, self.arrays)

    def _once(self, name: str, key: Hashable, make: Callable[[], Part]) -> Part:
        """Of each part the last few are kept: lists of many passes are large."""
        known = self.shared.setdefault(name, {})
        if key not in known:
            if len(known) == _MOST_KEPT:
                del known[next(iter(known))]
            known[key] = make()
        found: Part = known[key]
        return found
