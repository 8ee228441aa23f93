"""Re-checking what is claimed of a plan's optimality, see `heterps_envs.certificates.plan`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.certificates.definition import PlainStage, closed_form_s
from heterps_envs.certificates.plain_bounds import OwnBound, own_bound
from heterps_envs.certificates.plain_search import Wanted, find_better
from heterps_envs.closed_form.objective import TIE_BREAK_USD_PER_HOUR
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.stage_tables import has_strategies

# Sums may be taken in another order than here.
TOLERANCE = 1e-6
# Of one addition, as a share of the sum.
EPSILON = 2.0**-52


@dataclass(frozen=True)
class Findings:
    """What has been found so far, one line each.

    Attributes:
        problems: What is wrong.
        checked: What was re-checked.
        unchecked: What was not.
    """

    problems: list[str] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


class TimedStages(NamedTuple):
    """A plan as a placement, and its closed form, which may be off by `rounding_s`."""

    stages: Sequence[PlainStage]
    step_time_s: float
    rounding_s: float


class BoundCheck:
    """Re-checks what a bound claims of a plan.

    Args:
        problem: What the plan answers.
        plan: The plan.
        bound: What is claimed.
        found: Where it writes what it finds.
    """

    def __init__(self, problem: Problem, plan: Plan, bound: Bound, found: Findings) -> None:
        self.problem, self.plan, self.bound, self.found = problem, plan, bound, found
        self.tables = problem.bounding_tables
        # Whether a placement may fit, as far as `own_bound` has seen.
        self.has_room = True

    def own_bound(self, prices: Sequence[float] | None) -> OwnBound:
        """What is known here, whatever is claimed.

        Args:
            prices: (T,) of a device-second of each class; None: they are derived.
        """
        own = own_bound(self.tables, prices)
        # What is searched here has stages on one device alone.
        if self._has_options():
            return own._replace(step_time_s=0.0)
        if own.step_time_s == math.inf:
            self.has_room = False
            self.found.unchecked.append(
                "the bound: by the rule of planners no placement has room in memory, so theirs say "
                "nothing of this plan"
            )
            return own._replace(step_time_s=0.0)
        return own

    def _has_options(self) -> bool:
        """Whether stages may be more than layers on one device that keep all that they save."""
        return has_strategies(self.plan) or not self.problem.strategy.is_plain

    def optimality(self, timed: TimedStages | None, own: OwnBound, max_steps: int) -> str:
        """What can be confirmed of the claim; writes why.

        Args:
            timed: The plan as a placement; None where it is none.
            own: From `own_bound`.
            max_steps: Stages that the search for a better placement may try.
        """
        claimed_s, is_proof = self.bound.step_time_s, self.bound.status == "proven"
        by_price = self.problem.job.objective == "price"
        is_said = self.bound.status != "unknown"
        if claimed_s is None or (timed is None and not is_said):
            return "unknown"
        if timed is None:
            self.found.unchecked.append("the bound: the plan has no closed form")
            return "not re-checked"
        wrong = self._contradiction(claimed_s, timed)
        if wrong is not None:
            self.found.problems.append(wrong)
            return "not re-checked"
        if not (is_said and self.has_room):
            return "unknown"
        if self._has_options():
            self.found.unchecked.append(
                "the bound: placements with other groups, recomputing, offloading or sharding are "
                "not searched"
            )
            return "not re-checked"
        if not is_proof and by_price:
            self.found.unchecked.append(
                "the gap of the price; the bound on the step time is re-checked"
            )
        if claimed_s <= own.step_time_s * (1 + TOLERANCE) and not (is_proof and by_price):
            self.found.checked.append(
                f"the bound: no placement takes less than {own.step_time_s:.9g} s"
            )
            return self.bound.status
        return self._search(timed.stages, claimed_s, own, is_proof and by_price, max_steps)

    def _contradiction(self, claimed_s: float, timed: TimedStages) -> str | None:
        step_time_s = timed.step_time_s
        if claimed_s > step_time_s * (1 + TOLERANCE) + timed.rounding_s:
            return f"the bound of {claimed_s:.9g} s is above the plan's own {step_time_s:.9g} s"
        gap, status = self.bound.gap or 0.0, self.bound.status
        by_price = self.problem.job.objective == "price"
        if status == "unknown" or (by_price and status != "proven"):
            return None
        if step_time_s > claimed_s * (1 + gap) * (1 + TOLERANCE) + timed.rounding_s:
            return (
                f"the plan takes {step_time_s:.9g} s, more than the bound of {claimed_s:.9g} s and "
                f"the gap of {100 * gap:.4g} % allow"
            )
        return None

    def _search(
        self,
        stages: Sequence[PlainStage],
        claimed_s: float,
        own: OwnBound,
        by_price: bool,
        max_steps: int,
    ) -> str:
        """Tries every placement that could contradict the claim."""
        floor = self.problem.job.min_throughput_samples_per_s
        slowest_s = math.inf if floor is None else self.problem.job.global_batch_size / floor
        below = self._weight(stages, by_price) * claimed_s * (1 - TOLERANCE)
        wanted = Wanted(
            below_s=slowest_s if by_price else min(below, slowest_s),
            below_cost=below if by_price else math.inf,
        )
        better = find_better(self.tables, wanted, own.prices, max_steps)
        if better.stages is not None:
            step_time_s = closed_form_s(self.tables, better.stages)
            text = f"{step_time_s:.9g} s with the stages {[tuple(each) for each in better.stages]}"
            most_s = step_time_s + rounding_s(self.tables, better.stages)
            if self._weight(better.stages, by_price) * most_s < below:
                self.found.problems.append(f"another placement is better: {text}")
            else:
                self.found.unchecked.append(f"the bound: within the rounding of sums, it is {text}")
            return "not re-checked"
        if better.is_finished:
            self.found.checked.append(
                f"the bound: no placement is better ({better.steps} stages tried)"
            )
            return self.bound.status
        self.found.unchecked.append(
            f"the bound: the search did not end within {better.steps} stages; no placement takes "
            f"less than {own.step_time_s:.9g} s"
        )
        return "not re-checked"

    def _weight(self, stages: Sequence[PlainStage], by_price: bool) -> float:
        """What a second counts as: with the objective price, what all devices cost an hour.

        And a little, so that of equally cheap placements (free devices) the faster one is meant.
        """
        if not by_price:
            return 1.0
        prices = self.tables.price_usd_per_hour
        per_hour = sum(each.replicas * float(prices[each.kind]) for each in stages)
        return per_hour + TIE_BREAK_USD_PER_HOUR


def rounding_s(tables: CostTables, stages: Sequence[PlainStage]) -> float:
    """By how much the kernels' step time may be off.

    Their seconds of a stage are differences of sums over all layers in front: where one of those
    takes far longer on the stage's devices than its own layers do, its last digits are missing.
    """
    longest_s = max(float(tables.compute_s[:, stage.kind].sum()) for stage in stages)
    return _digits_s(tables, len(stages), longest_s)


def rounding_of_groups_s(problem: Problem, plan: Plan) -> float:
    """The same of a plan whose stages are carried out in other ways than tables of classes say."""
    if not has_strategies(plan):
        return 0.0
    stages = plan.stages
    longest_s = max(
        float(
            problem.for_stage(stage).tables.compute_s[:, problem.class_of[stage.devices[0]]].sum()
        )
        for stage in stages
    )
    # Recomputing takes another forward pass.
    return _digits_s(problem.bounding_tables, len(stages), 2 * longest_s)


def _digits_s(tables: CostTables, num_stages: int, longest_s: float) -> float:
    passes = tables.num_micro_batches + 2 * num_stages
    return EPSILON * tables.num_layers * passes * longest_s
