"""Why a plan leaves devices idle: what is found with more of them, now and in another world.

For each device class with idle devices a short search looks for the best placement that uses more
of that class than the plan does, and no more of any other; the simulator times it. Then the same is
asked with one limit lifted: more samples in a step, links that take next to no time, more memory.
What they pay without is what is in the way; where they never pay, the devices are too slow.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from heterps_agents.finishing.lifted_limits import LIMITS, Limit, lifted
from heterps_agents.finishing.more_of_class import placements_with_more, usage
from heterps_agents.finishing.near_plan import ways_of
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.divided_state import divided_by_stages
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.annealing import polish
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import OPTION_MASK
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import DOES_NOT_FIT, code_cost
from heterps_envs.closed_form.placement import PlacedStage, decode, encode, placement_of
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import estimate, minimised

# Of a search: placements of the closed form, and how many of the best are simulated.
EVALUATIONS, NUM_SIMULATED = 5_000, 3
# A plan that costs so much less is a better one.
BETTER = 0.999
# A limit is in the way where the devices save as much without it: searches are short.
HELPS = 0.01
# Classes behind it are not looked at.
MOST_SECONDS = 15.0

Why = Literal["missed", "limited", "slow", "memory", "none", "unknown"]


class Found(NamedTuple):
    """The best that was found with more devices of a class.

    Attributes:
        stage: What these devices do; of several stages the one that has most layers.
        num_devices: How many more than in the plan.
        cost: Simulated, in what the job minimises; inf where it does not fit.
        over_bytes: That the fullest device would lack.
        slowness: Seconds of the stage's layers on one of its replicas, over those where the plan
            has them.
    """

    stage: PlacedStage
    num_devices: int
    cost: float
    over_bytes: int = 0
    slowness: float = 1.0


class Lifted(NamedTuple):
    """A limit that was lifted, and what the idle devices then save.

    Attributes:
        limit: Which one.
        saves: Share of the cost without them, both without the limit; at most 0 where they do not
            pay.
    """

    limit: Limit
    saves: float


class IdleClass(NamedTuple):
    """Idle devices of a class, and why.

    Attributes:
        device_type: Of all of them.
        devices: Their names.
        why: `missed`: there is a better plan with them. `limited`: they would pay without a limit,
            the first of `lifted`. `slow`: they would not. `memory`: nothing fits that uses them.
            `none`: no plan with more of them is allowed: replicas are at most the micro-batches,
            groups are on one node, the floor is kept. `unknown`: there was no time, or no placement
            describes the plan.
        plan_cost: Of the plan, simulated, in what the job minimises.
        found: With more of them.
        lifted: What would help, the most first; then what would not.
    """

    device_type: str
    devices: tuple[str, ...]
    why: Why
    plan_cost: float
    found: Found | None = None
    lifted: tuple[Lifted, ...] = ()

    def to_mapping(self) -> dict[str, Any]:
        """Plain data, as `heterps place --explain --json` has it."""
        found = self.found
        return {
            "device_type": self.device_type,
            "devices": list(self.devices),
            "why": self.why,
            "plan_cost": self.plan_cost,
            "with_more": found
            and {
                "devices": found.num_devices,
                "cost": found.cost,
                "over_bytes": found.over_bytes,
                "slowness": found.slowness,
                "first_layer": found.stage.first_layer,
                "last_layer": found.stage.last_layer,
                "replicas": found.stage.replicas,
                "tensor_parallel": found.stage.degree,
            },
            "saves_without_limit": {each.limit: each.saves for each in self.lifted},
        }


def idle_classes(
    problem: Problem, plan: Plan, most_seconds: float = MOST_SECONDS
) -> tuple[IdleClass, ...]:
    """Why each class with idle devices has them, in the order of the cluster.

    Args:
        problem: Of the plan, with what may be chosen; where the plan goes beyond that, stages are
            carried out in the ways that the plan has.
        plan: That leaves devices idle.
        most_seconds: Begins no further search behind it.
    """
    end_s, used = time.monotonic() + most_seconds, set(plan.devices)
    if not keeps_to(plan, problem.strategy):
        problem = replace(problem, strategy=ways_of(plan, problem.strategy))
    idle = {
        kind: [device.name for device in entry.devices if device.name not in used]
        for kind, entry in enumerate(problem.views[-1].classes)
    }
    classes = {kind: names for kind, names in idle.items() if names}
    if not classes:
        return ()
    base = minimised(problem.job, estimate(problem, plan))
    blanks = {
        kind: IdleClass(problem.views[-1].classes[kind].type.name, tuple(names), "unknown", base)
        for kind, names in classes.items()
    }
    search = _Search.of(problem, plan)
    if search is None:
        return tuple(blanks.values())
    found = {kind: search.best_with(kind) for kind in blanks}
    saved = _saved(problem, plan, list(blanks), end_s)
    return tuple(
        _judged(blank, found[kind], saved[kind], search.has_options(kind))
        for kind, blank in blanks.items()
    )


def _saved(problem: Problem, plan: Plan, kinds: list[int], end_s: float) -> dict[int, list[Lifted]]:
    """What more of each class saves without a limit, as far as there is time for it."""
    saved: dict[int, list[Lifted]] = {kind: [] for kind in kinds}
    for limit in LIMITS:
        if time.monotonic() > end_s:
            break
        search = _Search.of(lifted(problem, limit), plan, asked=problem)
        without = math.inf if search is None else search.best_without()
        for kind in kinds:
            if search is None or math.isinf(without) or time.monotonic() > end_s:
                break
            best = search.best_with(kind)
            # Where nothing with them fits even so, they save nothing.
            saves = 0.0 if best is None or best.over_bytes else 1 - best.cost / without
            saved[kind].append(Lifted(limit, saves))
    return saved


def _judged(blank: IdleClass, found: Found | None, saved: list[Lifted], holds: bool) -> IdleClass:
    ranked = tuple(sorted(saved, key=lambda each: -each.saves))
    known = blank._replace(found=found, lifted=ranked)
    if not holds or (found is not None and found.over_bytes):
        return known._replace(why="memory")
    if found is not None and found.cost < blank.plan_cost * BETTER:
        return known._replace(why="missed")
    if ranked and ranked[0].saves > HELPS:
        return known._replace(why="limited")
    if found is None:
        return known._replace(why="none")
    asked = {each.limit for each in ranked}
    return known._replace(why="slow") if {"samples", "links"} <= asked else known


def _rank(found: Found) -> tuple[bool, float]:
    does_fit = found.over_bytes == 0
    return not does_fit, found.cost if does_fit else found.over_bytes


class _Search:
    """A plan's placement in a world, and short searches from it.

    Args:
        problem: The world.
        question: Of its view with the fastest links.
        code: The plan's placement.
    """

    def __init__(self, problem: Problem, question: Question, code: Code) -> None:
        self._problem, self._question, self._code = problem, question, code
        assert question.problem is not None
        self._view = question.problem
        self._used = usage(code, question.kernel)

    @classmethod
    def of(cls, world: Problem, plan: Plan, asked: Problem | None = None) -> _Search | None:
        """None where no placement describes the plan."""
        view = world.views[-1]
        placement = placement_of((asked or world).views[-1], divided_by_stages(plan))
        if placement is None:
            return None
        question = Question.of(view, Budget())
        try:
            return cls(world, question, encode(placement, question.options))
        except ValueError:  # an option that another one dominates here
            return None

    def has_options(self, kind: int) -> bool:
        """Whether a layer has room on a device of a class."""
        return bool((self._question.kernel.class_of_option == kind).any())

    def best_without(self) -> float:
        """The least simulated cost that is found with no more devices of any class."""
        kernel = self._question.kernel._replace(device_count=self._used)
        code = polish(self._code, kernel, EVALUATIONS, 0, self._question.goal)
        known = [self._simulated(each) for each in (self._code, code)]
        return min((each[0] for each in known if each and not each[1]), default=math.inf)

    def best_with(self, kind: int) -> Found | None:
        """The best with more devices of a class, and no more of any other; None without any."""
        question, most = self._question, self._used.copy()
        most[kind] = question.kernel.device_count[kind]
        kernel = question.kernel._replace(device_count=most)
        ranked = self._ranked(kernel, kind)
        if not ranked:
            return None
        codes = [code for cost, code in ranked[:NUM_SIMULATED] if cost < DOES_NOT_FIT]
        for code in codes[:1]:
            further = polish(code, kernel, EVALUATIONS, 0, question.goal)
            if usage(further, kernel)[kind] > self._used[kind]:
                codes.append(further)
        found = [self._found(code, kind) for code in codes or [ranked[0][1]]]
        known = [each for each in found if each is not None]
        return min(known, key=_rank, default=None)

    def _ranked(self, kernel: KernelTables, kind: int) -> list[tuple[float, Code]]:
        """Placements one change away, by the closed form; those that do not fit come last."""
        codes = placements_with_more(self._code, kernel, kind)
        goal = self._question.goal
        costs = [(float(code_cost(code, kernel, goal)), code) for code in codes]
        return sorted(costs, key=lambda entry: entry[0])

    def _found(self, code: Code, kind: int) -> Found | None:
        known = self._simulated(code)
        if known is None:
            return None
        placement = decode(code, self._question.options)
        before = decode(self._code, self._question.options)
        own = [stage for stage in placement if stage.device_class == kind]
        new = [stage for stage in own if stage not in before] or own
        more = usage(code, self._question.kernel)[kind] - self._used[kind]
        stage = max(new, key=lambda each: each.last_layer - each.first_layer)
        return Found(stage, int(more), *known, self._slowness(code, stage))

    def _slowness(self, code: Code, stage: PlacedStage) -> float:
        compute_s = np.diff(self._question.kernel.compute_prefix_s, axis=0)
        layers = np.arange(stage.first_layer, stage.last_layer + 1)
        now_s, then_s = (
            compute_s[layers, each[layers] & OPTION_MASK].sum() for each in (self._code, code)
        )
        return float(then_s / max(now_s, 1e-30))

    def _simulated(self, code: Code) -> tuple[float, int] | None:
        """Cost, and bytes over; None for a plan that is not allowed or cannot be run.

        No node has room for one of its groups, tied layers are held unlike, or the floor is missed.
        """
        problem = self._problem
        placement = decode(code, self._question.options)
        try:
            bound = bound_plan(self._view, placement, planner="", seed=0)
            shown = estimate(problem, choose_reduce(problem, bound))
        except HeterpsError:
            return None
        if not can_run(problem, bound):
            return None
        over = [used - shown.memory_limit_bytes[name] for name, used in shown.memory_bytes.items()]
        most = max(0, *over)
        return (minimised(problem.job, shown), most) if shown.feasible or most else None
