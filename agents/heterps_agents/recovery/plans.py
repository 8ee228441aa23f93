"""All plans that a run could go on with after devices were lost or came back, by rule."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.finishing.near_plan import ways_of
from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.interleaving import interleave
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.recovery.model import Prediction, Situation, best_of, predict
from heterps_agents.recovery.rules import RULES, fits
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError, NotEnoughDevicesError
from heterps_envs.closed_form.bounds import plans_bound_s
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# The name of planning anew, beside those of the rules.
FULL = "re-placement"
# The plan that ran, where no device of it is lost.
UNCHANGED = "unchanged"
# A plan that ran earlier, all of whose devices are there again.
BEFORE = "as before"
# Below this many seconds planning anew is not worth trying.
LEAST_PLANNING_S = 0.02


def rule_plans(problem: Problem, plan: Plan, lost: Collection[str]) -> dict[str, Plan]:
    """The plans of the rules of recovery; a rule that has none is missing.

    Args:
        problem: Without the lost devices, with those that came back.
        plan: What ran.
        lost: Devices that are gone.
    """
    if not set(plan.devices) & set(lost):  # it runs, so it fits, whatever the prediction
        step_s = estimate(problem, plan).step_time_s
        return {UNCHANGED: plan.changed(predicted_step_time_s=step_s)}
    found = {name: rule(problem, plan, lost) for name, rule in RULES.items()}
    return {name: _finished(problem, new) for name, new in found.items() if new is not None}


def with_ways_of(problem: Problem, plan: Plan) -> Problem:
    """The problem where stages may be carried out as those of a plan are: a run has no other ways.

    A plan file does not keep what was left open when it was made. Groups may be smaller: fewer
    devices are left for them.
    """
    if not problem.strategy.is_plain:
        return problem
    ways = ways_of(plan, problem.strategy)
    degrees = tuple(range(1, max(ways.tensor_parallel) + 1))
    return replace(problem, strategy=ways.changed(tensor_parallel=degrees))


def full_plan(
    problem: Problem, plan: Plan, seconds: float | None = None, seed: int = 0, effort: str = "fast"
) -> Plan | None:
    """A new placement on what is left, made without regard to the plan that ran.

    A throughput floor that nothing reaches any more does not end a run: the plan is then made
    without it.

    Args:
        problem: Without the lost devices.
        plan: What ran; its job is kept.
        seconds: That planning may take; None for no limit.
        seed: Of the planner.
        effort: Name of an effort, see `heterps_configs.documents.effort.Effort`.

    Returns:
        The plan, or None where no plan was found.
    """
    problem = with_ways_of(problem, plan)
    for job in dict.fromkeys([plan.job, plan.job.changed(min_throughput_samples_per_s=None)]):
        asked = replace(problem, job=job)
        budget = Budget(seconds=seconds)
        try:
            found = AutoPlanner(seed, effort, is_patient=False).plan(asked, budget)
            found = interleave(asked, found, budget)
        except InfeasibleError:
            continue
        found = _finished(problem, found.changed(job=plan.job))
        if fits(problem, found):
            return found
    return None


def _finished(problem: Problem, plan: Plan) -> Plan:
    """With gradient sums as they are faster for it, and its simulated step time."""
    plan = choose_reduce(problem, plan)
    return plan.changed(predicted_step_time_s=estimate(problem, plan).step_time_s)


def recovery_predictions(
    situation: Situation,
    planning_s: float | None = 0.5,
    seed: int = 0,
    *,
    whatever_it_takes: bool = False,
) -> list[Prediction]:
    """Every plan that the run could go on with, and what is predicted of each.

    Planning anew takes time in which nothing is trained. It is left out where even a plan at the
    lower bound of the step time would not win that time back.

    Args:
        situation: What is lost, and how far the run is.
        planning_s: Seconds that planning anew may take; None for no limit.
        seed: Of the planner.
        whatever_it_takes: Plan anew in any case: nobody waits.

    Raises:
        NotEnoughDevicesError: No plan fits; the message says what is missing.
    """
    started = time.perf_counter()
    plans = rule_plans(situation.left, situation.plan, situation.lost)
    found = [predict(situation, rule, plan) for rule, plan in plans.items()]
    limit_s = planning_s if whatever_it_takes else _worth_s(situation, found, planning_s)
    if limit_s is None or limit_s >= LEAST_PLANNING_S:
        plan = full_plan(situation.left, situation.plan, limit_s, seed)
        if plan is not None:
            found.append(predict(situation, FULL, plan))
    if not found:
        left = with_ways_of(situation.left, situation.plan)
        raise NotEnoughDevicesError(why_not(left, situation.lost))
    # Once it is spent, the time of planning is the same for every plan.
    spent_s = 0.0 if whatever_it_takes else time.perf_counter() - started
    return [replace(each, replanning_s=spent_s) for each in found]


def earlier_predictions(situation: Situation, ran: Iterable[Plan]) -> list[Prediction]:
    """What is predicted of plans that ran earlier, where their devices are all there.

    Planning anew need not find again what a plan had, least of all one that was given.

    Args:
        situation: What is lost, and how far the run is.
        ran: Plans of the same run.
    """
    there = situation.left.device_named.keys()
    return [
        predict(situation, BEFORE, _finished(situation.left, plan))
        for plan in ran
        if there >= set(plan.devices)
        and plan.job == situation.plan.job
        and not plan.runs_like(situation.plan)
        and fits(situation.left, plan)
    ]


def _worth_s(
    situation: Situation, found: list[Prediction], planning_s: float | None
) -> float | None:
    """Seconds that planning anew may take: no more than it could save at best."""
    if not found:
        return planning_s
    steps = situation.num_steps - situation.step + situation.repeated_steps
    left = with_ways_of(situation.left, situation.plan)
    saved_s = steps * (best_of(found).step_s - plans_bound_s(left))
    return max(0.0, saved_s) if planning_s is None else max(0.0, min(planning_s, saved_s))


def why_not(left: Problem, lost: Collection[str]) -> str:
    """Why a run cannot go on without some devices: one sentence with the bytes that are missing."""
    names = ", ".join(sorted(lost)) or "no device"
    try:
        reason = explain_infeasible(left)
    except HeterpsError as error:
        reason = str(error)
    return f"without {names}: {reason}"
