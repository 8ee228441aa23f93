"""How fast the closed form and the simulator are, and how far apart their step times.

    python benchmarks/cost_model/closed_form.py
    python benchmarks/cost_model/closed_form.py --quick --json closed_form.json

Speed: CPU seconds of one thread; random placements that keep the device counts, everything
compiled before.
Distance: simulated over closed-form step time for shipped models on shipped clusters; of random
placements that fit, and of the optimum of the closed form.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shared.common import interleaved_medians, parse_options, report
from heterps_agents.exact.solve import predicted_seconds, solve
from heterps_agents.plan_choices.in_flight_choice import with_more_in_flight
from heterps_configs.documents.job import Job
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, decode, encode
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.chains import generate
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import (
    estimate,
    prepared_is_feasible,
    prepared_step_time_s,
    simulate,
)

MODELS = ("llama-7b", "bert-large", "vit-large", "resnet-152", "ctr")
CLUSTERS = ("a100-v100", "a100-v100-t4", "eight-types", "gpu-cpu", "h100-pod", "spot-two-regions")
MOST_EXACT_S = 1.0  # predicted seconds of the exact solver, above which a problem is left out


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rng = np.random.default_rng(options.seed)
    rows, summary = closed_form_speed(rng, options.seed, repeats=5 if options.quick else 21)
    more_rows, more_summary = simulator_speed(repeats=5 if options.quick else 21)
    ratio_rows, ratio_summary = distance(rng, random_placements=2 if options.quick else 20)
    report(
        "Closed form and simulator, one thread",
        rows + more_rows + ratio_rows,
        summary | more_summary | ratio_summary,
        options,
    )


def closed_form_speed(
    rng: np.random.Generator, seed: int, repeats: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Placements for each second by number of layers."""
    cases = {}
    for layers in (32, 96, 512):
        kernel = kernel_tables(generate(1, seed, (layers,) * 2, (4, 4), (4, 4))[0])
        codes = np.stack([random_code(rng, kernel) for _ in range(4096)])
        cases[f"L {layers}, T 4, n 4"] = (codes, kernel)
    medians = interleaved_medians(
        {name: partial(evaluate, *case) for name, case in cases.items()},
        repeats,
        clock=time.process_time,
    )
    rows = [
        {"what": f"closed form, {name}", "value": len(cases[name][0]) / s, "unit": "placements/s"}
        for name, s in medians.items()
    ]
    summary = {
        f"placements_per_s_l{name.split(',')[0].removeprefix('L ')}": row["value"]
        for name, row in zip(medians, rows, strict=True)
    }
    return rows, summary


def simulator_speed(repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Milliseconds for one plan of 8 stages and 64 micro-batches."""
    problem = Problem(load_profile("llama-7b"), load_cluster("h100-pod"), Job(global_batch_size=64))
    edges = np.linspace(0, problem.profile.num_layers, 9).astype(int).tolist()
    stages = [PlacedStage(first, stop - 1, 0) for first, stop in pairwise(edges)]
    plan = bind(problem, stages, planner="even", seed=0)
    schedule = build_schedule(problem, plan)
    medians = interleaved_medians(
        {
            "schedule": lambda: build_schedule(problem, plan),
            "schedule and simulation": lambda: estimate(problem, plan),
            "simulation with timeline": lambda: simulate(problem, plan, schedule),
        },
        repeats,
        clock=time.process_time,
    )
    rows = [
        {"what": f"{name}, S 8, M 64", "value": 1e3 * s, "unit": "ms"}
        for name, s in medians.items()
    ]
    return rows, {"simulator_ms": 1e3 * medians["schedule and simulation"]}


def distance(
    rng: np.random.Generator, random_placements: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Quantiles of simulated over closed-form step time."""
    ratios: dict[str, list[float]] = {"random placements": [], "optimal placements": []}
    for model, cluster, batch in product(MODELS, CLUSTERS, (8, 32)):
        problem = Problem(load_profile(model), load_cluster(cluster), Job(global_batch_size=batch))
        kernel = kernel_tables(problem.tables)
        codes = np.stack([random_code(rng, kernel) for _ in range(200)])
        fitting = codes[evaluate(codes, kernel)[2] == FITS][:random_placements]
        ratios["random placements"] += [ratio(problem, code) for code in fitting]
        if predicted_seconds(kernel) < MOST_EXACT_S:
            best = solve(kernel).code
            if best is not None:
                ratios["optimal placements"].append(ratio(problem, best))
    rows, summary = [], {}
    for name, values in ratios.items():
        for quantile in (5, 50, 95):
            value = float(np.percentile(values, quantile))
            what = f"simulated / closed form, {name}, {quantile} %"
            rows.append({"what": what, "value": value, "unit": f"ratio, of {len(values)}"})
            summary[f"ratio_{name.split()[0]}_p{quantile}"] = value
    return rows, summary


def ratio(problem: Problem, code: NDArray[np.int32]) -> float:
    """Of a placement, with as many micro-batches in flight as planners give it."""
    plan = bind(problem, decode(code), planner="benchmark", seed=0)
    closed_form_s = estimate(problem, plan).closed_form_step_time_s
    assert closed_form_s is not None, "a placement"
    prepared = PreparedPlan(problem, plan)
    prepared = prepared.timed(prepared_step_time_s(prepared))
    step_time_s = prepared.plan.predicted_step_time_s
    assert step_time_s is not None, "it was simulated"
    more = with_more_in_flight(prepared)
    if more is not None and prepared_is_feasible(more):
        step_time_s = min(step_time_s, prepared_step_time_s(more))
    return step_time_s / closed_form_s


def random_code(rng: np.random.Generator, kernel: KernelTables) -> NDArray[np.int32]:
    """A random placement of up to eight stages that keeps the device counts."""
    left = kernel.device_count.copy()
    most = min(8, int(left.sum()), kernel.num_layers)
    num_cuts = int(rng.integers(most))
    cuts = np.sort(rng.choice(np.arange(1, kernel.num_layers), num_cuts, replace=False))
    stages, first = [], 0
    for position, stop in enumerate([*cuts.tolist(), kernel.num_layers]):
        kind = int(rng.choice(np.flatnonzero(left)))
        spare = int(left.sum()) - (num_cuts - position)
        replicas = int(rng.integers(1, min(int(left[kind]), spare, 4) + 1))
        left[kind] -= replicas
        stages.append(PlacedStage(first, stop - 1, kind, replicas))
        first = stop
    return encode(stages)


if __name__ == "__main__":
    main()
