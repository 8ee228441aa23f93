"""What one simulated placement costs a planner, part by part.

    python benchmarks/cost_model/simulation_parts.py
    python benchmarks/cost_model/simulation_parts.py --quick --json parts.json

CPU milliseconds of one thread for a placement, everything compiled before. The placements of a
problem are simple ones and small moves from these, as planners simulate them: `whole` is what
`SimulatedCosts.add` takes for each that it has not seen, plan and more in flight included. The
other lines are its parts, a simulation of the same plan with gradient sums elsewhere, and what is
asked of few: memory, and where gradient sums are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from benchmarks.shared.common import interleaved_medians, parse_options, report
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_moves import moves
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.in_flight_choice import with_more_in_flight
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.starts import simple_codes
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import PlacedStage, decode, encode
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.problem_sets.scale import SCALE_SETS
from heterps_envs.schedule.plan_arrays import plan_arrays
from heterps_envs.schedule.reduce_buckets import reduce_buckets
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import (
    is_feasible,
    prepared_step_time_s,
    simulated_step_time_s,
)

# Placements of a problem; the parts are those of all of them, one after the other.
NUM_CODES = 12
MOST_CODES = 400


class Case(NamedTuple):
    """Placements of one problem."""

    name: str
    problem: Problem
    question: Question
    codes: list[Code]


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for case in cases():
        plans = [bound(case, code) for code in case.codes]
        stages = float(np.mean([len(plan.stages) for plan in plans]))
        repeats = 3 if options.quick or stages > 200 else 9
        medians = interleaved_medians(parts(case, plans), repeats, clock=time.process_time)
        for part, seconds in medians.items():
            each_ms = 1e3 * seconds / len(plans)
            row = {"case": case.name, "stages": stages, "part": part, "ms": each_ms}
            rows.append(row)
            summary[f"{case.name}, {part}, ms"] = each_ms
    report("A simulated placement, one thread", rows, summary, options)


def cases() -> list[Case]:
    """Few devices, hundreds, and a thousand or two; of the sets that choices are made on."""
    field = SEEDS["development"]
    named = {
        "8 stages x 32": None,
        "field, 64 devices": field_problem(FieldCase("two-type-racks", 8), field),
        "field, 256 devices": field_problem(FieldCase("two-type-racks", 9), field),
    }
    scale = SCALE_SETS["development-scale"].problems()
    chosen = [each for each in scale if 1000 <= len(each.cluster.devices) <= 2048][:1]
    found = [eight_stages()]
    for name, problem in named.items():
        if problem is not None:
            found.append(case_of(name, problem))
    found += [case_of(f"scale, {len(p.cluster.devices):,} devices", p) for p in chosen]
    return found


def eight_stages() -> Case:
    """Chains of eight stages on devices of two types, 32 micro-batches."""
    problem = Problem(
        load_profile("llama-7b"), load_cluster("a100-v100-t4"),
        Job(global_batch_size=32, dtype="float16"),
    )  # fmt: skip
    question = Question.of(problem, Budget())
    rng, codes = np.random.default_rng(0), list[Code]()
    counts = [entry.count for entry in problem.classes]
    kinds = np.repeat(np.arange(len(counts)), counts)
    while len(codes) < NUM_CODES:
        cuts = np.sort(rng.choice(np.arange(1, problem.profile.num_layers), 7, replace=False))
        edges = [0, *cuts.tolist(), problem.profile.num_layers]
        chosen = np.sort(rng.choice(kinds, 8, replace=False)).tolist()
        stages = [
            PlacedStage(first, stop - 1, kind)
            for (first, stop), kind in zip(pairwise(edges), chosen, strict=True)
        ]
        codes.append(encode(stages, question.options))
    return Case("8 stages x 32", problem, question, codes)


def case_of(name: str, problem: Problem) -> Case:
    """Simple placements of a problem, and moves from each of them in turn."""
    question = Question.of(problem, Budget())
    starts = simple_codes(problem, question)
    lists = [[start, *moves(start, question.kernel, question.goal)] for start in starts]
    found: dict[bytes, Code] = {}
    for place in range(MOST_CODES):
        for each in lists:
            if place < len(each) and len(found) < NUM_CODES:
                found.setdefault(each[place].tobytes(), each[place])
    case = Case(name, problem, question, [])
    for code in found.values():
        try:
            bound(case, code)
        except InfeasibleError:
            continue
        case.codes.append(code)
    return case


def bound(case: Case, code: Code) -> Plan:
    """The plan of a placement, with its step time."""
    placement = decode(code, case.question.options)
    plan = bound_plan(case.problem, placement, planner="", seed=0)
    step_time_s = simulated_step_time_s(case.problem, plan)
    return plan.changed_unchecked(predicted_step_time_s=step_time_s)


def parts(case: Case, plans: list[Plan]) -> dict[str, Callable[[], object]]:
    """What is timed, by name; each for all placements."""
    problem, question = case.problem, case.question

    def whole() -> None:
        costs = SimulatedCosts(problem, question, "")
        for code in case.codes:
            costs.add(code)

    def bind_all() -> None:
        for code in case.codes:
            placement = decode(code, question.options)
            bound_plan(problem, placement, planner="", seed=0)

    def each(one: Callable[[Problem, Plan], object]) -> Callable[[], object]:
        # What a document has found out about itself is not known of a new plan.
        return lambda: [one(problem, plan.changed_unchecked()) for plan in plans]

    known = [PreparedPlan(problem, plan) for plan in plans]

    def again() -> None:
        for prepared in known:
            prepared_step_time_s(prepared.changed(overlaps_reduce=False))

    return {
        "whole": whole,
        "decode and bind": bind_all,
        "step time": each(simulated_step_time_s),
        "again, other sums": again,
        "of it plan arrays": each(plan_arrays),
        "of it buckets": each(reduce_buckets),
        "of it schedule": each(lambda p, plan: PreparedPlan(p, plan).schedule),
        "can run": each(can_run),
        "more in flight": each(lambda p, plan: with_more_in_flight(PreparedPlan(p, plan))),
        "feasible": each(is_feasible),
        "choose sums": each(choose_reduce),
    }


if __name__ == "__main__":
    main()
