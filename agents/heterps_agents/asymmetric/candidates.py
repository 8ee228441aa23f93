"""Plans of lanes that are simulated in less than the best chain: what `auto` asks for.

Two ways lead to them. The best chain, or whatever is known, is changed by small steps: a stage gets
another device beside its own, with fewer micro-batches, or one more behind it. And whole pipelines
are put side by side: the best ones for all multisets of devices, chosen by a knapsack.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from heterps_agents.asymmetric.descent import Descent, Patience
from heterps_agents.asymmetric.devices import Parts, on_devices
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.islands import islands
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

# What pipelines promise by their closed form is simulated where it is below so many times the best.
PROMISING = 1.05
# Small changes begin at the best pipelines where they take so many times the best plan's time.
NEAR = 1.15


class Trial(NamedTuple):
    """How much is tried; no clock has a part in it, so that the answer is always the same.

    Attributes:
        pipes: How many pipelines are looked at.
        patience: How long small changes go on.
        mixes: Plans of pipelines that are simulated, for each way to look at the problem.
        counted: Shares of the seconds of sums that are counted; little where passes hide most.
        rooms: Times the memory that the rule of planners leaves. It is above what plans take, and
            the simulator knows what they take. Patience is less for the later ones.
        stages: That may be simulated in all, replicas counted.
        sees_all: Whether pipelines are sought in every view of the problem, or in the first and the
            last: with a class for each node, and with the fastest links.
        islands: Parts of the cluster in which pipelines are sought as if there were no others.
    """

    pipes: Effort
    patience: Patience
    mixes: int
    counted: tuple[float, ...]
    rooms: tuple[float, ...]
    stages: int
    sees_all: bool
    islands: int = 0


QUICK = Trial(Effort(2e5, 24, (2,)), Patience(24_000, 10, 1.02), 6, (0.2,), (1.0, 1.3), 300, False)
LONGER = Trial(
    Effort(5e5, 32, (2,)), Patience(100_000, 40, 1.05), 20, (0.2, 1.0), (1.0, 1.3), 3_000, False, 4
)
THOROUGH = Trial(
    Effort(5e6, 64, (1, 4)),
    Patience(200_000, 40, 1.05),
    30,
    (0.2, 1.0),
    (1.0, 1.3),
    6_000,
    True,
    12,
)


def candidates(
    problem: Problem,
    budget: Budget,
    known: Plan,
    seed: int = 0,
    trial: Trial = QUICK,
    near: float = 1.0,
) -> list[Plan]:
    """Plans that are simulated in less than one that is known, or near it, the best first.

    All of them fit, have their predicted step times, and can be run. None where the job minimises
    the price, or asks for the schedule interleaved.

    Args:
        problem: What was asked, with the options of its strategy.
        budget: Simulations are its evaluations; its end ends this.
        known: The best chain, simulated, or another plan.
        seed: That plans carry.
        trial: How much is tried.
        near: Plans take less than so many times what the known one takes. That may have chosen its
            micro-batches in flight, which they have not: those above it may be below it then.
    """
    if problem.job.objective == "price" or problem.job.schedule == "interleaved":
        return []
    assert known.predicted_step_time_s is not None, "it was simulated"
    judge = Judge(problem, budget, trial.stages)
    best, found = Judged(known.predicted_step_time_s, known), list[Judged]()
    for index, room in enumerate(trial.rooms):
        patience = trial.patience._replace(parts=trial.patience.parts // (1 + index))
        search = _Search(problem, judge, trial._replace(patience=patience), best, room)
        found += search.from_known()
        found += search.from_pipes()
        best = search.best
        if not search.lacks_room:
            break
    better = sorted(
        (each for each in found if each.cost < near * known.predicted_step_time_s),
        key=lambda each: each.cost,
    )
    return [each.plan.changed(seed=seed) for each in better]


class _Search:
    """What was found so far, and where to go on.

    Attributes:
        best: Of what was simulated.
    """

    def __init__(
        self, problem: Problem, judge: Judge, trial: Trial, known: Judged, room: float
    ) -> None:
        self._problem, self._judge, self._trial, self._room = problem, judge, trial, room
        self._known = self.best = known
        self._estimates = Estimates(problem, room)
        self._descent = Descent(
            judge,
            self._estimates,
            Moves(
                self._estimates,
                groups_of(problem, known.plan),
                memories_of(problem),
                shards=problem.strategy.shard_state == "auto",
            ),
            trial.patience,
        )

    @property
    def lacks_room(self) -> bool:
        """Whether more memory would make a difference."""
        return self._estimates.lacked_room

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
        best, start = Judged(math.inf, self._known.plan), None
        for weave in self._mixes():
            if self._judge.is_exhausted:
                break
            plan = plan_of_weave(weave, self._known.plan)
            judged = self._judge.judged(plan, NEAR * self.best.cost)
            if judged.cost < best.cost:
                best, start = judged, weave
        if start is None or best.cost > NEAR * self.best.cost:
            return []
        return self._noted(best) + self._noted(self._descent.best_from(start, best))

    def _noted(self, found: Judged) -> list[Judged]:
        self.best = min(self.best, found, key=lambda each: each.cost)
        return [found] if found.plan is not self._known.plan else []

    def _mixes(self) -> list[Weave]:
        """Plans of two pipelines or more, those that are best by the formula."""
        total = self._problem.job.num_micro_batches
        if total < 2:
            return []
        found, limit_s, views = dict[Weave, float](), PROMISING * self.best.cost, self._views()
        for counted in self._trial.counted:
            for view in views:
                if self._judge.is_exhausted:
                    continue
                pipes = pipes_of(view, limit_s, counted, self._trial.pipes)
                if pipes is None:
                    continue
                mixes = good_mixes(pipes, view.kernel.device_count, total, limit_s)
                for mix in [] if mixes is None else mixes.found:
                    weave = self._weave(view, [pipes.stages[index] for index in mix], counted)
                    if weave is not None and weave not in found:
                        found[weave] = self._estimates.step_s(weave)
        promising = [weave for weave, seconds in found.items() if seconds <= limit_s]
        return sorted(promising, key=found.__getitem__)[: self._trial.mixes]

    def _views(self) -> list[View]:
        views = self._problem.views
        chosen = views if self._trial.sees_all or len(views) < 3 else (views[0], views[-1])
        alone = islands(self._problem, self._trial.islands)
        return [View.of(view, self._room) for view in (*chosen, *alone)]

    def _weave(self, view: View, pipes: Sequence[Stages], counted: float) -> Weave | None:
        """Pipelines on devices, with their micro-batches."""
        total = self._problem.job.num_micro_batches
        steps = [view.steps_s(stages, len(pipes) - 1, counted, total) for stages in pipes]
        shares = least_longest(steps, total)
        parts = on_devices(view, pipes)
        if shares is None or parts is None:
            return None
        return Weave((tuple(map(_lane, shares, parts)),))


def _lane(share: int, parts: Parts) -> Lane:
    """A lane without replicas that no micro-batch would reach."""
    return Lane(share, tuple(part._replace(groups=part.groups[:share]) for part in parts))


def groups_of(problem: Problem, known: Plan, degrees: Iterable[int] = ()) -> Iterator[Group]:
    """Single devices, and groups as large as those of the plan, each on one node.

    Args:
        problem: Whose devices.
        known: The plan.
        degrees: Of other groups that count.
    """
    degrees = {1, *(stage.degree for stage in known.stages), *degrees}
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


def memories_of(problem: Problem) -> list[Memory]:
    """What stages may do with their activations."""
    recompute = problem.strategy.recompute
    kept: list[Memory] = [] if recompute == "full" else ["keep"]
    return kept + (["recompute"] if recompute != "never" else [])
