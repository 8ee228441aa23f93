"""A plan that goes round stragglers, from slow-down ratios alone: Malleus' steps for our plans.

The pipelines of the plan that runs stay; stragglers move to their front, layers are split anew, and
hopeless devices are suspended, the slowest first. Micro-batches are shared anew among pipelines and
replicas. The simulator chooses, and the plan that runs is among the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from heterps_agents.finishing.chains import Chain
from heterps_agents.finishing.reduce_choice import choose_reduce
from heterps_agents.recovery.chains import chain_sets, plan_of_chains, without
from heterps_agents.recovery.rules import fits
from heterps_agents.recovery.templates import template
from heterps_agents.systems.malleus.straggler import STRAGGLER_RATIO
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.online.correction import StageMeasurement, correct
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Stragglers that are suspended one by one; more are suspended together with the last of these.
MAX_SUSPENDED = 8


class StragglerAnswer(NamedTuple):
    """A plan round stragglers.

    Attributes:
        plan: What to run.
        problem: As the ratios say it is.
        suspended: Devices that ran and have no work now.
        stale_s: A step of the plan that ran, with the stragglers.
        step_s: A step of the new plan.
    """

    plan: Plan
    problem: Problem
    suspended: tuple[str, ...]
    stale_s: float
    step_s: float


def plan_round_stragglers(
    problem: Problem, plan: Plan, ratios: Mapping[str, float]
) -> StragglerAnswer:
    """Re-plans from measured over normal seconds of each device.

    Args:
        problem: As it was believed to be.
        plan: What runs.
        ratios: By device; those that are missing are normal.

    Raises:
        HeterpsError: A ratio is not above 0, or there is no such device.
    """
    slowed = slowed_problem(problem, ratios)
    best, best_s = plan, estimate(slowed, plan).step_time_s
    stale_s = best_s
    for chains in _candidates(slowed, plan, ratios):
        found = plan_of_chains(slowed, plan, chains, planner="straggler")
        if found is None or not fits(slowed, found):
            continue
        step_s = estimate(slowed, found).step_time_s
        if step_s < best_s:
            best, best_s = found, step_s
    if best is not plan:
        best = choose_reduce(slowed, best)
        best_s = estimate(slowed, best).step_time_s
        best = best.changed(predicted_step_time_s=best_s)
    suspended = tuple(name for name in plan.devices if name not in best.devices)
    return StragglerAnswer(best, slowed, suspended, stale_s, best_s)


def slowed_problem(problem: Problem, ratios: Mapping[str, float]) -> Problem:
    """The problem with every layer of a device slower by its ratio.

    Raises:
        HeterpsError: A ratio is not above 0, or there is no such device.
    """
    for name, ratio in ratios.items():
        if name not in problem.device_named:
            known = ", ".join(problem.device_named)
            raise HeterpsError(f"ratios: no device is called {name!r}; there are {known}")
        if not ratio > 0:
            raise HeterpsError(f"ratios.{name}: {ratio:g} is not above 0")
    # Normal devices count as measured, too: otherwise one slow device speaks for all of its type.
    measurements = []
    for name in problem.device_named:
        ratio = ratios.get(name, 1.0)
        kind, last = problem.class_of[name], problem.profile.num_layers - 1
        forward_s = float(problem.tables.forward_s[:, kind].sum())
        backward_s = float(problem.tables.backward_s[:, kind].sum())
        measurements.append(StageMeasurement(name, 0, last, ratio * forward_s, ratio * backward_s))
    return correct(problem, measurements)


def _candidates(problem: Problem, plan: Plan, ratios: Mapping[str, float]) -> Iterator[list[Chain]]:
    """Chains split anew, with ever more stragglers suspended, as they stand or slow ones first."""
    slow = [name for name in plan.devices if ratios.get(name, 1.0) >= STRAGGLER_RATIO]
    slow.sort(key=lambda name: -ratios[name])
    for count in range(min(len(slow), MAX_SUSPENDED) + 1):
        for chains in chain_sets(plan):
            left = [without(chain, slow[:count]) for chain in chains]
            rows = [[column.devices for column in chain if column.devices] for chain in left]
            for ordered in (rows, [_slow_first(columns, ratios) for columns in rows]):
                found = [chain for columns in ordered if (chain := template(problem, columns))]
                if found:
                    yield found


def _slow_first(
    columns: Sequence[Sequence[str]], ratios: Mapping[str, float]
) -> list[Sequence[str]]:
    """Columns with a straggler in front, the slowest first; the others keep their order."""

    def worst(column: Sequence[str]) -> float:
        ratio = max(ratios.get(name, 1.0) for name in column)
        return ratio if ratio >= STRAGGLER_RATIO else 1.0

    return sorted(columns, key=lambda column: -worst(column))
