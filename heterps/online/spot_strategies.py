"""Strategies that a spot trace is replayed for: restart, templates, ours, and the ceiling of all.

Every strategy begins with the same plan, and plans anew in the same way; what differs is where the
state comes from, and which plans a change is answered with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from heterps_agents.recovery.model import Situation, best_of, predict
from heterps_agents.recovery.plans import FULL, full_plan, rule_plans
from heterps_agents.recovery.rules import templates
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.spot.availability import SpotMoment
from heterps_envs.spot.costs import SpotSettings
from heterps_envs.spot.records import SpotAnswer, SpotChange, SpotStrategy

Rules = Callable[[Problem, Plan, Collection[str]], dict[str, Plan]]

# A plan out of the book of precomputed ones needs only to be handed out.
BOOK_S = 0.05


class FullPlans:
    """The best plan for each set of devices, planned once for all sets that are alike.

    Args:
        problem: With all devices.
        plan: What its devices run, as long as all of them are there.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self._problem, self.plan = problem, plan
        self._plans: dict[frozenset[str], Plan | None] = {}
        self._ruled: dict[tuple[object, ...], dict[str, Plan]] = {}
        self._seen: dict[tuple[object, ...], tuple[frozenset[str], float]] = {}
        nodes = {node.name: node for node in problem.cluster.nodes}
        self._alike: dict[tuple[object, ...], list[str]] = {}
        for device in problem.cluster.devices:
            # Where the order of a node's devices decides about links, none is like another.
            directed = nodes[device.node].reverse_link is not None
            kind = problem.class_of[device.name], device.node, device.name if directed else ""
            self._alike.setdefault(kind, []).append(device.name)

    def __call__(self, devices: Sequence[str]) -> Plan | None:
        """The best plan for some devices; None where none fits."""
        there = set(devices)
        if len(there) == len(self._problem.device_named):
            return self.plan
        renamed: dict[str, str] = {}
        for names in self._alike.values():
            own = [name for name in names if name in there]
            renamed.update(zip(names, own, strict=False))
        key = frozenset(renamed)
        if key not in self._plans:
            left = without_devices(self._problem, self._problem.device_named.keys() - key)
            self._plans[key] = full_plan(left, self.plan)
        plan = self._plans[key]
        return None if plan is None else _with_devices(plan, renamed)

    def ruled(self, change: SpotChange, plan: Plan, rules: Rules) -> dict[str, Plan]:
        """The plans of rules, worked out once for each change from one plan to some devices."""
        left = frozenset(change.left.device_named)
        key = rules, left, plan.stages, plan.pipelines, change.lost
        if key not in self._ruled:
            self._ruled[key] = rules(change.left, plan, change.lost)
            for found in self._ruled[key].values():
                self._saw(found)
        return self._ruled[key]

    def _saw(self, plan: Plan) -> None:
        key = (plan.stages, plan.pipelines)
        if key not in self._seen:
            step_s = estimate(self._problem, plan).step_time_s
            self._seen[key] = frozenset(plan.devices), step_s

    def best_step_s(self, devices: Sequence[str]) -> float | None:
        """The shortest step of all plans for these devices that were seen; None: there is none."""
        plan = self(devices) if devices else None
        if plan is not None:
            self._saw(plan)
        there = set(devices)
        times = [step_s for used, step_s in self._seen.values() if used <= there]
        return min(times, default=None)


def _with_devices(plan: Plan, renamed: dict[str, str]) -> Plan:
    stages = tuple(
        stage.changed(devices=tuple(renamed[name] for name in stage.devices))
        for stage in plan.stages
    )
    return plan.changed(stages=stages)


@dataclass
class Restart:
    """All processes start again from remote storage, as torchrun does; the plan is the best."""

    full: FullPlans
    settings: SpotSettings
    name: str = "restart from storage"
    restarts: bool = True

    def answer(self, change: SpotChange) -> SpotAnswer | None:
        """The best plan for the devices that are left."""
        plan = self.full(list(change.left.device_named))
        return None if plan is None else SpotAnswer(plan, FULL, self.settings.planning_s)


@dataclass
class Templates:
    """Oobleck's way: groups of survivors get the pipeline template of their size."""

    full: FullPlans
    settings: SpotSettings
    name: str = "templates (Oobleck)"
    restarts: bool = False

    def answer(self, change: SpotChange) -> SpotAnswer | None:
        """The plan of the templates; where nothing runs, the best plan."""
        if change.plan is None:
            return Restart(self.full, self.settings).answer(change)
        plan = self.full.ruled(change, change.plan, _templates).get("templates")
        return None if plan is None else SpotAnswer(plan, "templates", BOOK_S)


def _templates(left: Problem, plan: Plan, lost: Collection[str]) -> dict[str, Plan]:
    found = templates(left, plan, lost)
    return {} if found is None else {"templates": found}


@dataclass
class Ours:
    """The best of all rules and of planning anew, by predicted time to finish; live state first.

    Attributes:
        tolerated: Losses of so many devices at once, and of any one node, are in the book.
    """

    full: FullPlans
    settings: SpotSettings
    tolerated: int = 1
    name: str = "ours"
    restarts: bool = False
    rules: dict[str, int] = field(default_factory=dict)

    def answer(self, change: SpotChange) -> SpotAnswer | None:
        """The plan that is predicted to finish the next while first."""
        if change.plan is None:
            return Restart(self.full, self.settings).answer(change)
        planning_s = self._planning_s(change)
        situation = self._situation(change, change.plan)
        plans = {
            name: (plan, min(planning_s, BOOK_S))
            for name, plan in self.full.ruled(change, change.plan, rule_plans).items()
        }
        best = self.full(list(change.left.device_named))
        if best is not None:
            plans[FULL] = (best, planning_s)
        if not plans:
            return None
        chosen = best_of(
            [
                replace(predict(situation, name, plan), replanning_s=seconds)
                for name, (plan, seconds) in plans.items()
            ]
        )
        self.rules[chosen.rule] = self.rules.get(chosen.rule, 0) + 1
        return SpotAnswer(chosen.plan, chosen.rule, chosen.replanning_s)

    def _planning_s(self, change: SpotChange) -> float:
        nodes = {change.problem.device_named[name].node for name in change.lost}
        in_book = len(change.lost) <= self.tolerated or len(nodes) == 1
        return BOOK_S if in_book else self.settings.planning_s

    def _situation(self, change: SpotChange, plan: Plan) -> Situation:
        """The rest of the run is the time that the next change is expected in."""
        step_s = estimate(change.problem, plan).step_time_s
        return Situation(
            problem=change.problem,
            left=change.left,
            plan=plan,
            lost=change.lost,
            step=change.step,
            num_steps=change.step + math.ceil(self.settings.horizon_s / step_s),
            checkpoint_step=change.checkpoint_step,
            overhead_s=self.settings.overhead_s,
            storage_bytes_per_s=self.settings.storage_bytes_per_s,
        )


def strategies(full: FullPlans, settings: SpotSettings, tolerated: int = 1) -> list[SpotStrategy]:
    """All that are compared, ours last."""
    return [Restart(full, settings), Templates(full, settings), Ours(full, settings, tolerated)]


def ceiling_samples(
    full: FullPlans, moments: Sequence[SpotMoment], duration_s: float, samples_per_step: int
) -> float:
    """Samples of a run that has the best plan seen at every moment, and loses no second for it.

    Call it after the replays, so that their plans are among those.
    """
    ends = [*(moment.time_s for moment in moments[1:]), duration_s]
    steps = 0.0
    for moment, end_s in zip(moments, ends, strict=True):
        seconds = min(end_s, duration_s) - min(moment.time_s, duration_s)
        step_s = full.best_step_s(moment.available)
        steps += seconds / step_s if step_s else 0.0
    return steps * samples_per_step
