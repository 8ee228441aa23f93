"""More micro-batches in flight than the rule of 1F1B where the simulator finds that faster.

The rule keeps all devices busy where messages take no time. Behind a slow link a gradient comes
back late, and the stages in front of it stand still with all that they may hold; with a few more
they go on, as far as memory has room (eager 1F1B: Zhuang et al., On Optimizing the Communication
of Model Parallelism, 2023). How many round trips need is where searches begin; on a finished plan
more are tried, for stages of equal layers and for all, and what helps nothing is taken back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import (
    as_memory_allows,
    in_flight_micro_batches,
    in_flight_of_stages,
    round_trips_in_flight,
    routed_micro_batches,
)
from heterps_envs.simulator.plan_bound import CLOSE, least_step_time_s
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import prepared_is_feasible, prepared_step_time_s

# A plan with more in flight has to be this much faster.
GAIN = 1 - 1e-3
# How many more are tried at a time.
MORE = (1, 2, 4)
# Stages that may be simulated, replicas counted; and plans, however many stages they have.
MOST_STAGES, LEAST_TRIALS = 600, 6
# Of a limit in time, what it may take of what is left; and to take back what helps nothing, of the
# whole limit if no more is left.
TIME_PART, TRIMMING_PART = 1 / 4, 1 / 64

_Names = tuple[str, ...]


class _Best(NamedTuple):
    plan: Plan
    step_time_s: float
    more: dict[str, int]


def with_more_in_flight(prepared: PreparedPlan) -> PreparedPlan | None:
    """The plan with as many in flight as round trips need, as far as memory has room.

    None where the simulator cannot find that faster: there is no such choice, no stage may hold
    more, or the plan takes hardly longer than its devices are busy.

    Args:
        prepared: A plan that was simulated.
    """
    plan = prepared.plan
    step_time_s = plan.predicted_step_time_s
    assert step_time_s is not None, "it was simulated"
    if not _is_open(plan):
        return None
    if step_time_s <= CLOSE * least_step_time_s(prepared):
        return None
    arrays = prepared.arrays
    held = in_flight_of_stages(plan, arrays.shape)
    wanted = np.maximum(held, round_trips_in_flight(arrays))
    most = as_memory_allows(prepared.problem, plan, arrays, held, wanted)
    if (most == held).all():
        return None
    stages = tuple(
        stage.changed_unchecked(in_flight=more) if is_more else stage
        for stage, more, is_more in zip(plan.stages, most.tolist(), most > held, strict=True)
    )
    return prepared.changed(stages=stages)


def _is_open(plan: Plan) -> bool:
    is_alone = len(plan.device_groups) == len(plan.stages) > 1
    return plan.job.schedule == "1f1b" and is_alone


def choose_in_flight(problem: Problem, plan: Plan, budget: Budget) -> Plan:
    """The plan with `in_flight` set where that is faster, fits and keeps the floor.

    Args:
        problem: What was asked.
        plan: Any plan for it; only one for 1F1B that has a device, or group, for each stage is
            changed.
        budget: A part of its seconds ends this; simulations are none of its evaluations.
    """
    if not _is_open(plan):
        return plan
    chosen = {stage.name: stage.in_flight for stage in plan.stages if stage.in_flight is not None}
    by_rule = tuple(stage.changed_unchecked(in_flight=None) for stage in plan.stages)
    held = in_flight_micro_batches(plan.changed_unchecked(stages=by_rule))
    share = routed_micro_batches(plan)
    more = {name: min(number, share[name]) - held[name] for name, number in chosen.items()}
    prepared = PreparedPlan(problem, plan)
    best = _Best(plan, prepared_step_time_s(prepared), more)
    if best.step_time_s > CLOSE * least_step_time_s(prepared):
        best = _with_more(prepared, held, share, best, budget.apart(TIME_PART))
    return _trimmed(prepared, held, best, budget.at_least(TRIMMING_PART))


def _with_more(
    prepared: PreparedPlan, held: dict[str, int], share: dict[str, int], best: _Best, budget: Budget
) -> _Best:
    """The best of plans with more in flight, for stages of equal layers or for all."""
    plan, room = prepared.plan, _room(prepared)
    *columns, every = _columns(plan)
    trials = max(LEAST_TRIALS, MOST_STAGES // len(plan.stages))
    is_better = True
    while is_better:
        is_better = False
        for names in (every, *columns):
            for added in MORE:
                if trials == 0 or budget.time_share >= 1.0:
                    return best
                wanted = _raised(best.more, names, added, held, share)
                if names is every:  # whichever of them have room
                    wanted = _kept_in(room, best.more, wanted)
                if wanted == best.more:
                    break
                trials -= 1
                found = _faster(prepared, held, wanted, best)
                if found is not None:
                    best, is_better = found, True
    return best


def _trimmed(prepared: PreparedPlan, held: dict[str, int], best: _Best, budget: Budget) -> Plan:
    """The best plan without what helps nothing: it would only take memory."""
    for names in reversed(_columns(prepared.plan)[:-1]):
        most = max(best.more.get(name, 0) for name in names)
        for kept in sorted({0, most // 4, most // 2, most - 1} if most > 0 else ()):
            less = {
                name: more if name not in names else min(more, kept)
                for name, more in best.more.items()
            }
            if budget.time_share >= 1.0:
                return best.plan
            found = None
            if kept < most:
                found = _faster(prepared, held, less, best, gain=1 + 1e-9)
            if found is not None:
                best = found
                break
    return best.plan


def _faster(
    prepared: PreparedPlan,
    held: dict[str, int],
    more: dict[str, int],
    best: _Best,
    gain: float = GAIN,
) -> _Best | None:
    """The plan with so many more in flight, where it is better than the best by a factor."""
    stages = tuple(
        stage.changed_unchecked(in_flight=held[stage.name] + more[stage.name])
        if more.get(stage.name, 0) != 0
        else stage.changed_unchecked(in_flight=None)
        for stage in prepared.plan.stages
    )
    trial = prepared.changed(stages=stages)
    step_time_s = prepared_step_time_s(trial)
    if step_time_s >= best.step_time_s * gain:
        return None
    plan = prepared.plan.changed(stages=stages, predicted_step_time_s=step_time_s)
    fits = prepared_is_feasible(trial.timed(step_time_s))
    return _Best(plan, step_time_s, more) if fits else None


def _room(prepared: PreparedPlan) -> dict[str, int]:
    """How many more than by the rule each stage may hold, by the planners' count of memory."""
    by_rule = tuple(stage.changed_unchecked(in_flight=None) for stage in prepared.plan.stages)
    plan, arrays = prepared.plan.changed_unchecked(stages=by_rule), prepared.arrays
    held = in_flight_of_stages(plan, arrays.shape)
    most = as_memory_allows(prepared.problem, plan, arrays, held, arrays.shape.routed)
    names = [stage.name for stage in plan.stages]
    return dict(zip(names, (most - held).tolist(), strict=True))


def _kept_in(
    room: dict[str, int], before: dict[str, int], wanted: dict[str, int]
) -> dict[str, int]:
    """What is wanted as far as there is room, and at least what was there before."""
    kept = {name: max(before.get(name, 0), min(more, room[name])) for name, more in wanted.items()}
    return {name: more for name, more in kept.items() if more > 0}


def _raised(
    before: dict[str, int],
    names: _Names,
    more: int,
    held: dict[str, int],
    share: dict[str, int],
) -> dict[str, int]:
    """So many more for some stages, and no more than all of a stage's micro-batches."""
    after = dict(before)
    for name in names:
        own = min(before.get(name, 0) + more, share[name] - held[name])
        if own > 0:
            after[name] = own
    return after


def _columns(plan: Plan) -> list[_Names]:
    """The stages of equal layers from front to back, and all together."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    for stage in plan.stages:
        found[stage.first_layer, stage.last_layer].append(stage.name)
    columns = [tuple(found[key]) for key in sorted(found)]
    return [*columns, tuple(stage.name for stage in plan.stages)]
