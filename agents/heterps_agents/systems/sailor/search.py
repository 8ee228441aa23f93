"""The search for the best plan: boxes of (bottleneck, optimizer step, all-reduce), best first.

The sweep of `kernels` at the upper corner of a box finds the best stages, as if the three were
those of the lower corner. What it finds is a lower bound of every plan in the box, and a plan.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from heterps_agents.systems.sailor.candidates import Candidate
from heterps_agents.systems.sailor.cases import Case, Extremes, make_case
from heterps_agents.systems.sailor.cost import cost_of
from heterps_agents.systems.sailor.goal import Room, SailorGoal
from heterps_agents.systems.sailor.kernels import Sweep, best_stages
from heterps_configs.importers.sailor import SailorLinks, SailorModel
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage
from heterps_envs.arrays import Integers

# Stages that sweeps try, before what is found is the answer: three seconds or so.
MOST_TRIED = 200_000_000
# Limits are sums of numbers with rounding errors.
_ROUNDED = 1 + 1e-9


class _Box(NamedTuple):
    """Plans whose bottleneck, optimizer step and all-reduce lie between two corners.

    Attributes:
        bound: What is minimised is no less.
        found: Bottleneck, optimizer step and all-reduce of the best stages at the upper corner.
    """

    bound: float
    order: int
    lower: Extremes
    upper: Extremes
    found: Extremes


@dataclass
class Search:
    """The best plan so far, and what was spent.

    Attributes:
        tolerance: Relative difference to the optimum that is of no interest.
        value: What is minimised, of the best plan.
        skipped: The same of what was not looked at, at least.
        sweeps: How often the compiled sweep ran.
        tried: Stages that it has tried.
    """

    model: SailorModel
    links: SailorLinks
    zone: str
    global_batch_size: int
    goal: SailorGoal
    tolerance: float
    plan: SailorPlan | None = None
    value: float = math.inf
    skipped: float = math.inf
    sweeps: int = 0
    tried: int = 0
    order: Callable[[], int] = field(default_factory=lambda: itertools.count().__next__)

    @property
    def useful(self) -> float:
        """Only plans below this are worth looking for."""
        return self.value * (1 - self.tolerance)

    @property
    def is_over(self) -> bool:
        """Whether enough was tried for the plan that is there."""
        return self.tried >= MOST_TRIED and self.plan is not None

    def room(self, ceiling: float = math.inf) -> Room:
        """The job's limits, the best plan and a ceiling of what is minimised."""
        most_s, most_usd = self.goal.most_s * _ROUNDED, self.goal.most_usd * _ROUNDED
        if self.goal.is_by_usd:
            return Room(most_s, min(most_usd, self.useful, ceiling))
        return Room(min(most_s, self.useful, ceiling), most_usd)

    def offer(self, plan: SailorPlan) -> None:
        """Takes a plan if it keeps the limits and is better."""
        seconds = cost_of(self.model, self.links, plan).iteration_s
        value = self.goal.value(seconds, self.goal.usd(plan, seconds))
        if value < self.value:
            self.plan, self.value = plan, value

    def explore(self, candidate: Candidate, bound: float, ceiling: float) -> None:
        """Searches the plans of a candidate, which are at a bound or above, up to a ceiling."""
        room = self.room(ceiling)
        if candidate.leaves_out(self.goal, room):
            self.skipped = min(self.skipped, bound)
        counts = candidate.counts(self.goal, room)
        if counts is not None:
            self._branch(make_case(candidate, counts), ceiling)

    def _branch(self, case: Case, ceiling: float) -> None:
        boxes: list[_Box] = []
        self._push(boxes, case, ceiling, case.least, self._upper(case, ceiling))
        while boxes and boxes[0].bound < min(self.useful, ceiling):
            box = heapq.heappop(boxes)
            if self.is_over:
                self.skipped = min(self.skipped, box.bound)
                return
            high = tuple(map(min, box.upper, box.found))
            gaps = [
                weight * (top - bottom)
                for weight, top, bottom in zip(case.weights, high, box.lower, strict=True)
            ]
            axis = gaps.index(max(gaps))
            middle = (box.lower[axis] + high[axis]) / 2
            if not box.lower[axis] < middle < high[axis]:
                # Its stages miss a limit by a rounding error.
                self.skipped = min(self.skipped, box.bound)
                continue
            self._push(boxes, case, ceiling, box.lower, _replaced(box.upper, axis, middle))
            lower = _replaced(box.lower, axis, middle)
            if self.goal.is_by_usd or math.isfinite(self.goal.most_usd):
                self._push(boxes, case, ceiling, lower, box.upper)
                continue
            # The quickest stages at the upper corner are those of the other half, too.
            bound = box.bound + case.rest_s(lower) - case.rest_s(box.lower)
            heapq.heappush(boxes, box._replace(bound=bound, order=self.order(), lower=lower))

    def _upper(self, case: Case, ceiling: float) -> Extremes:
        """No plan with room has a larger bottleneck, optimizer step or all-reduce."""
        (_, update_s, reduce_s), upper = case.least, case.most
        room = self.room(ceiling)
        most_s = min(room.most_s, room.most_usd / case.counts.least_usd_per_s)
        rest_s = most_s - update_s - reduce_s - float(case.tables.least_s[-1])
        if not case.candidate.rounds or math.isinf(most_s):
            return upper
        return min(upper[0], rest_s / case.candidate.rounds), upper[1], upper[2]

    def _push(
        self, boxes: list[_Box], case: Case, ceiling: float, lower: Extremes, upper: Extremes
    ) -> None:
        """Sweeps at the upper corner of a box, and keeps the box if it can hold a better plan."""
        room, rest_s = self.room(ceiling), case.rest_s(lower)
        if rest_s >= room.most_s or any(map(operator.gt, lower, upper)):
            return
        self.sweeps += 1
        sweep = Sweep(upper, rest_s, case.usd_per_load(upper[0]), *room, self.goal.is_by_usd)
        coverable, load = case.coverable(upper[0]), case.candidate.options.load
        bound, stages, tried = best_stages(
            case.tables, case.work, case.counts.usd_per_s, coverable, load, sweep
        )
        self.tried += tried
        if not len(stages):
            return
        self.offer(self._plan(case.candidate, stages))
        heapq.heappush(boxes, _Box(bound, self.order(), lower, upper, case.extremes(stages)))

    def _plan(self, candidate: Candidate, stages: Integers) -> SailorPlan:
        options = candidate.options
        groups = [
            SailorGroup(gpu, degree, self.zone)
            for gpu, degree in (options.names[option] for option, _, _ in stages)
        ]
        return SailorPlan(
            tuple(
                SailorStage(int(first), int(end), (group,) * candidate.replicas)
                for group, (_, first, end) in zip(groups, stages, strict=True)
            ),
            options.micro_batch_size,
            self.global_batch_size,
        )


def _replaced(corner: Extremes, axis: int, value: float) -> Extremes:
    changed = list(corner)
    changed[axis] = value
    return changed[0], changed[1], changed[2]
