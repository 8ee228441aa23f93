"""Plans of lanes that are simulated in less than the best chain: what `auto` asks for.

Two ways lead to them. The best chain, or whatever is known, is changed by small steps: a stage gets
another device beside its own, with fewer micro-batches, or one more behind it. And whole pipelines
are put side by side: the best ones for all multisets of devices, chosen by a knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterps_agents.asymmetric.descent import Descent, Patience
from heterps_agents.asymmetric.devices import on_devices
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.mixes import good_mixes
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.pipes import Effort, Stages, View, pipes_of
from heterps_agents.asymmetric.shares import least_longest
from heterps_agents.asymmetric.weave import (
    Group,
    Lane,
    Weave,
    plan_of_weave,
    weave_of_plan,
)
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.options import Memory
from heterps_envs.problem import Problem

# Shares of the seconds of sums that are counted: little where passes hide most, and all.
COUNTED = (0.2, 1.0)
# What pipelines promise by their closed form is simulated where it is below so many times the best.
PROMISING = 1.05
# Small changes begin at the best pipelines where they take so many times the best plan's time.
NEAR = 1.15


class Trial(NamedTuple):
    """How much is tried.

    Attributes:
        pipes: How many pipelines are looked at.
        patience: How long small changes go on.
        mixes: Plans of pipelines that are simulated, for each way to look at the problem.
        seconds: Of all that, of either kind.
    """

    pipes: Effort
    patience: Patience
    mixes: int
    seconds: float


QUICK = Trial(Effort(4e5, 32, 2), Patience(1_200, 10), 8, 0.4)
THOROUGH = Trial(Effort(5e6, 64, 4), Patience(30_000, 40), 30, math.inf)


def candidates(
    problem: Problem, budget: Budget, known: Plan, seed: int = 0, trial: Trial = QUICK
) -> list[Plan]:
    """Plans that are simulated in less than one that is known, the best first.

    All of them fit, have their predicted step times, and can be run. None where the job minimises
    the price, or asks for the schedule interleaved.

    Args:
        problem: What was asked, with the options of its strategy.
        budget: Simulations are its evaluations; its end ends this.
        known: The best chain, simulated, or another plan.
        seed: That plans carry.
        trial: How much is tried.
    """
    if problem.job.objective == "price" or problem.job.schedule == "interleaved":
        return []
    assert known.predicted_step_time_s is not None, "it was simulated"
    own = budget.part(10**9, trial.seconds)
    judge = Judge(problem, own)
    search = _Search(problem, judge, trial, Judged(known.predicted_step_time_s, known))
    found = search.from_known()
    found += search.from_pipes()
    budget.spend(own.evaluations_used)
    better = sorted(
        (each for each in found if each.cost < known.predicted_step_time_s),
        key=lambda each: each.cost,
    )
    return [each.plan.changed(seed=seed) for each in better]


class _Search:
    """What was found so far, and where to go on."""

    def __init__(self, problem: Problem, judge: Judge, trial: Trial, known: Judged) -> None:
        self._problem, self._judge, self._trial = problem, judge, trial
        self._known = self._best = known
        self._estimates = Estimates(problem)
        self._descent = Descent(
            judge,
            self._estimates,
            Moves(self._estimates, _groups(problem, known.plan), _memories(problem)),
            trial.patience,
        )

    def from_known(self) -> list[Judged]:
        """What small changes make of the plan that is known."""
        weave = weave_of_plan(self._known.plan)
        if weave is None:
            return []
        # As it is before its micro-batches in flight are chosen one by one.
        start = self._judge.judged(plan_of_weave(weave, self._known.plan))
        if math.isinf(start.cost):
            start = self._known
        return self._noted(self._descent.best_from(weave, start))

    def from_pipes(self) -> list[Judged]:
        """The best plan of whole pipelines, and what small changes make of it."""
        mixes = list(self._mixes())
        if not mixes:
            return []
        weave, best = min(mixes, key=lambda entry: entry[1].cost)
        found = self._noted(best)
        if best.cost <= NEAR * self._best.cost:
            found += self._noted(self._descent.best_from(weave, best))
        return found

    def _noted(self, found: Judged) -> list[Judged]:
        self._best = min(self._best, found, key=lambda each: each.cost)
        return [found] if found.plan is not self._known.plan else []

    def _mixes(self) -> Iterator[tuple[Weave, Judged]]:
        """Plans of two pipelines or more, simulated; those that promise most first."""
        total = self._problem.job.num_micro_batches
        if total < 2:
            return
        seen, limit_s = set[Weave](), PROMISING * self._best.cost
        for counted in COUNTED:
            for view in self._views():
                pipes = pipes_of(view, limit_s, counted, self._trial.pipes)
                if pipes is None or self._judge.is_exhausted:
                    continue
                mixes = good_mixes(pipes, view.kernel.device_count, total, limit_s)
                chosen = [] if mixes is None else mixes.found
                weaves = (
                    self._weave(view, [pipes.stages[index] for index in mix], counted)
                    for mix in chosen[: self._trial.mixes]
                )
                for weave in weaves:
                    if weave is None or weave in seen or self._judge.is_exhausted:
                        continue
                    seen.add(weave)
                    plan = plan_of_weave(weave, self._known.plan)
                    judged = self._judge.judged(plan, NEAR * self._best.cost)
                    if math.isfinite(judged.cost):
                        yield weave, judged

    def _views(self) -> list[View]:
        return [View.of(view) for view in self._problem.views]

    def _weave(self, view: View, pipes: Sequence[Stages], counted: float) -> Weave | None:
        """Pipelines on devices, with their micro-batches."""
        total = self._problem.job.num_micro_batches
        steps = [view.steps_s(stages, len(pipes) - 1, counted, total) for stages in pipes]
        shares = least_longest(steps, total)
        parts = on_devices(view, pipes)
        if shares is None or parts is None:
            return None
        return Weave((tuple(map(Lane, shares, parts)),))


def _groups(problem: Problem, known: Plan) -> Iterator[Group]:
    """Single devices, and groups as large as those of the plan, each on one node."""
    degrees = {1, *(stage.degree for stage in known.stages)}
    allowed = problem.strategy.tensor_parallel
    by_kind: dict[tuple[int, str], list[str]] = {}
    for name, device in problem.device_named.items():
        by_kind.setdefault((problem.class_of[name], device.node), []).append(name)
    for names in by_kind.values():
        for degree in sorted(degrees):
            if allowed and degree not in allowed:
                continue
            for first in range(0, len(names) - degree + 1, degree):
                yield tuple(names[first : first + degree])


def _memories(problem: Problem) -> list[Memory]:
    """What stages may do with their activations."""
    recompute = problem.strategy.recompute
    kept: list[Memory] = [] if recompute == "full" else ["keep"]
    return kept + (["recompute"] if recompute != "never" else [])
