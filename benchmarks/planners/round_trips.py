"""How near plans are to their best numbers of micro-batches in flight, without looking for these.

    python benchmarks/planners/round_trips.py
    python benchmarks/planners/round_trips.py --quick --json round_trips.json

Placements are those that walks by the clock pass on development problems of the field, 1F1B. Each
is simulated with what 1F1B's rule lets stages hold, with three more on all of them, with what round
trips need (`heterps_envs.closed_form.round_trips`), and it is clocked with the last. The closed
form says what it takes with as many as fit and, as `formula_by_rule`, with what the rule says. All
are divided by the best plan that `choose_in_flight` finds from any of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.shared.common import parse_options, report
from heterps_agents.finishing.clock_walk import best_by_clock, clocked_costs
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight, with_more_in_flight
from heterps_agents.search.greedy import greedy_code
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import CASES, field_problem
from heterps_envs.schedule.in_flight import as_memory_allows, in_flight_of_stages
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import prepared_is_feasible, prepared_step_time_s

# Development problems have this seed, if none is given; of each family those of so many devices.
SEED, DEVICES, QUICK_DEVICES = 2210, range(4, 65), range(4, 9)
# Changes of a walk, and seconds for the choice of each placement.
CHANGES, CHOICE_CPU_S = 4000, 4.0
# More on all stages, as before round trips were counted.
MORE = 3
WAYS = ("rule", "three_more", "round_trips", "clock", "formula", "formula_by_rule")


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    devices = QUICK_DEVICES if options.quick else DEVICES
    found: dict[str, list[dict[str, float]]] = {}
    for case in CASES:
        problem = field_problem(case, options.seed or SEED)
        if len(problem.cluster.devices) in devices:
            found.setdefault(case.family, []).extend(_over_best(problem))
    rows = [{"family": family, **_summary(own)} for family, own in found.items()]
    every = _summary([each for own in found.values() for each in own])
    report("Step times over those with the best numbers in flight", rows, every, options)


def _over_best(problem: Problem) -> Iterator[dict[str, float]]:
    """Of some placements, each way over the best."""
    view = problem.by_each_node or problem.views[0]
    question = Question.of(view, Budget())
    start = greedy_code(question)
    if start is None or not math.isfinite(question.cost(start)):
        return
    for code in best_by_clock(view, question, [start], CHANGES):
        prepared = _timed(PreparedPlan(problem, question.plan_of(code)))
        if len(prepared.plan.stages) == 1 or not prepared_is_feasible(prepared):
            continue
        ways = [prepared, _timed(_three_more(prepared))]
        needed = with_more_in_flight(prepared)
        ways.append(prepared if needed is None else _timed(needed))
        chosen = [
            choose_in_flight(problem, way.plan, Budget(cpu_seconds=CHOICE_CPU_S))
            for way in ways
            if prepared_is_feasible(way)
        ]
        best_s = min(_step_time_s(_timed(PreparedPlan(problem, plan))) for plan in chosen)
        # A plan keeps to the rule where more in flight makes it longer, or does not fit.
        by_rule_s = _step_time_s(prepared)
        seconds = [
            min(by_rule_s, _step_time_s(way)) if prepared_is_feasible(way) else by_rule_s
            for way in ways
        ]
        seconds += clocked_costs(view, question, [code])
        kernel = question.kernel
        for by_rule in (False, True):
            own = kernel._replace(holds_by_rule=by_rule)
            seconds.append(float(evaluate(code[None], own)[0][0]))
        yield {way: each / best_s for way, each in zip(WAYS, seconds, strict=True)}


def _three_more(prepared: PreparedPlan) -> PreparedPlan:
    plan, arrays = prepared.plan, prepared.arrays
    held = in_flight_of_stages(plan, arrays.shape)
    most = as_memory_allows(prepared.problem, plan, arrays, held, held + MORE)
    return prepared.changed(
        stages=tuple(
            stage.changed_unchecked(in_flight=number)
            for stage, number in zip(plan.stages, most.tolist(), strict=True)
        )
    )


def _timed(prepared: PreparedPlan) -> PreparedPlan:
    return prepared.timed(prepared_step_time_s(prepared))


def _step_time_s(prepared: PreparedPlan) -> float:
    assert prepared.plan.predicted_step_time_s is not None, "it was simulated"
    return prepared.plan.predicted_step_time_s


def _summary(found: list[dict[str, float]]) -> dict[str, Any]:
    columns: dict[str, Any] = {"number": len(found)}
    for way in WAYS:
        percent = [100 * (each[way] - 1) for each in found]
        columns[f"{way} %"] = round(statistics.mean(percent), 1)
        columns[f"{way} ±"] = round(statistics.pstdev(percent), 1)
    return columns


if __name__ == "__main__":
    main()
