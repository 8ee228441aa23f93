"""Plans of lanes beside every plan of pipelines side by side, and what they are worth to `auto`.

    python benchmarks/planners/asymmetric.py
    python benchmarks/planners/asymmetric.py --quick --json asymmetric.json

Enumerated: three to five drawn layers on three or four devices of one to three classes. Every plan
of pipelines side by side is simulated: which devices are in which, their orders, cuts and shares of
the micro-batches, sums of gradients beside passes or after them. Beside the best of them stand the
planner `asymmetric`, its search without the enumeration, and the best chain of `auto`; all of these
may hold more micro-batches in flight, and so be below. Field: the development problems of up to 24
devices, placed by `auto` with chains only, and with all plans.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise, permutations, product
from typing import Any

import numpy as np

from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps_agents.asymmetric.planner import AsymmetricPlanner
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import CASES, SEEDS, SIZES, FieldCase, described, field_problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import feasible_step_time_s

COUNT, QUICK_COUNT = 60, 6
MOST_DEVICES = 24
COUNTS = ((1, 1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 2), (3,))
LAYERS, BATCHES, SCHEDULES = (3, 4, 5), (5, 6, 8), ("1f1b", "gpipe")
MEMORIES, BYTES_PER_S = (0.8, 1.2, 3.0), (1e9, 1e10, 1e11)
# Steps are sums with rounding errors.
ROUNDING = 1e-9

Row = tuple[str, ...]


def main() -> None:
    """Runs the benchmark and prints its tables."""
    options = parse_options(__doc__ or "", count="enumerated problems (60)")
    count = int(options.count or (QUICK_COUNT if options.quick else COUNT))
    small = [row for index in range(count) if (row := _enumerated(drawn(options.seed, index)))]
    summary: dict[str, Any] = {"enumerated_problems": len(small)}
    for name in ("planner", "search", "chain"):
        above = [row[f"{name}_over_best"] for row in small]
        summary |= {
            f"{name}_above_the_best": sum(value > 1 + ROUNDING for value in above),
            f"{name}_over_the_best_worst": max(above),
        }
    cases = [] if options.quick else [c for c in CASES if SIZES[c.family][c.number] <= MOST_DEVICES]
    field = [row for case in cases if (row := _with_lanes(case))]
    if field:
        over = [row["lanes_over_chain"] for row in field]
        summary |= {
            "field_problems": len(field),
            "field_faster_by_over_0.1_percent": sum(value < 0.999 for value in over),
            "field_lanes_over_chain_least": min(over),
            "field_lanes_over_chain_mean": statistics.mean(over),
            "field_cpu_s_chains_only": sum(row["chain_cpu_s"] for row in field),
            "field_cpu_s": sum(row["lanes_cpu_s"] for row in field),
        }
    table_alone = argparse.Namespace(**{**vars(options), "json": None})
    report("Every plan of pipelines side by side", small, {}, table_alone)
    report("auto with chains only and with lanes", field, summary, options)


def drawn(seed: int, index: int) -> Problem:
    """A small problem."""
    rng = np.random.default_rng([seed, index])

    def one(choices: Sequence[Any]) -> Any:
        return choices[int(rng.integers(len(choices)))]

    return small_problem(
        one(LAYERS),
        one(COUNTS),
        seed=int(rng.integers(2**31)),
        memory=one(MEMORIES),
        bandwidth_bytes_per_s=one(BYTES_PER_S),
        global_batch_size=one(BATCHES),
        schedule=one(SCHEDULES),
    )


def small_problem(
    num_layers: int = 4,
    counts: tuple[int, ...] = (1, 2),
    *,
    seed: int = 0,
    memory: float = 1.2,
    bandwidth_bytes_per_s: float = 1e10,
    **job: Any,
) -> Problem:
    """Drawn layers; a node for each class of devices, each half as fast as the one before.

    Args:
        num_layers: Of the model.
        counts: Devices of each class.
        seed: Of the layers.
        memory: Of a device, as a multiple of what the whole model holds with a micro-batch.
        bandwidth_bytes_per_s: Between nodes; inside it is four times as much.
        job: Fields of the job.
    """
    rng = np.random.default_rng(seed)
    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            kind="block",
            num_parameters=int(rng.integers(1, 8) * 1e6),
            forward_flops=float(rng.uniform(2, 12)) * 1e9,
            backward_flops=float(rng.uniform(4, 24)) * 1e9,
            activation_bytes=float(rng.uniform(1, 8)) * 1e6,
            output_bytes=float(rng.uniform(0.5, 4)) * 1e6,
        )
        for index in range(num_layers)
    )
    whole = sum(16 * layer.num_parameters + 4 * layer.activation_bytes for layer in layers)
    types = [
        {
            "name": f"kind{number}",
            "memory_bytes": int(memory * whole),
            "peak_flops_per_s": {"float32": 2e13 / 2**number},
            "memory_bandwidth_bytes_per_s": 1e12 / 2**number,
            "price_usd_per_hour": 1.0,
        }
        for number in range(len(counts))
    ]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 4 * bandwidth_bytes_per_s}
    nodes = [
        {
            "name": f"node{number}",
            "devices": [{"name": f"d{number}", "type": f"kind{number}", "count": count}],
            "link": link,
        }
        for number, count in enumerate(counts)
    ]
    cluster = {
        "name": "small",
        "device_types": types,
        "nodes": nodes,
        "inter_node_link": {**link, "bandwidth_bytes_per_s": bandwidth_bytes_per_s},
    }
    settings = {"global_batch_size": 8, "dtype": "float32", **job}
    return Problem(
        ModelProfile(name="small", layers=layers),
        Cluster.from_mapping(cluster),
        Job.from_mapping(settings),
    )


def best_of_all_s(problem: Problem) -> float:
    """The least simulated step of all plans, with sums beside passes or after them."""
    return min(
        (
            feasible_step_time_s(problem, plan.changed_unchecked(overlaps_reduce=is_early))
            for plan in all_plans(problem)
            for is_early in (True, False)
        ),
        default=math.inf,
    )


def all_plans(problem: Problem) -> Iterator[Plan]:
    """Plans of one pipeline or more on some or all devices; devices of a class are alike."""
    num_layers, total = problem.profile.num_layers, problem.job.num_micro_batches
    for rows in _distinct(problem, _rows(list(problem.device_named))):
        if len(rows) > total or any(len(row) > num_layers for row in rows):
            continue
        cuts = [
            [(0, *inner, num_layers) for inner in combinations(range(1, num_layers), len(row) - 1)]
            for row in rows
        ]
        for edges in product(*cuts):
            for shares in _compositions(total, len(rows)):
                yield _plan(problem, rows, edges, shares)


def _rows(names: Sequence[str]) -> Iterator[tuple[Row, ...]]:
    """Sets of rows of devices, each device in one of them or idle."""
    if not names:
        yield ()
        return
    first, *rest = names
    yield from _rows(rest)
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = [name for name in rest if name not in others]
            for row in permutations((first, *others)):
                for more in _rows(left):
                    yield (row, *more)


def _distinct(problem: Problem, sets: Iterator[tuple[Row, ...]]) -> Iterator[tuple[Row, ...]]:
    """Those that differ in classes; a set without any row is none."""
    seen = set[tuple[tuple[int, ...], ...]]()
    for rows in sets:
        kinds = tuple(sorted(tuple(problem.class_of[name] for name in row) for row in rows))
        if rows and kinds not in seen:
            seen.add(kinds)
            yield rows


def _compositions(total: int, size: int) -> Iterator[tuple[int, ...]]:
    if size == 1:
        yield (total,)
        return
    for first in range(1, total - size + 2):
        for rest in _compositions(total - first, size - 1):
            yield (first, *rest)


def _plan(
    problem: Problem, rows: Sequence[Row], cuts: Sequence[tuple[int, ...]], shares: Sequence[int]
) -> Plan:
    stages, pipelines, taken = list[Stage](), list[Pipeline](), 0
    for number, (row, edges, share) in enumerate(zip(rows, cuts, shares, strict=True)):
        own = [
            Stage.unchecked(
                name=f"p{number}s{at}", first_layer=first, last_layer=stop - 1, devices=(name,)
            )
            for at, (name, (first, stop)) in enumerate(zip(row, pairwise(edges), strict=True))
        ]
        stages += own
        route = tuple(stage.name for stage in own)
        own_share = tuple(range(taken, taken + share))
        pipelines.append(Pipeline.unchecked(stages=route, micro_batches=own_share))
        taken += share
    return plan_of(problem, tuple(stages), tuple(pipelines), planner="all", seed=0)


def best_chain(problem: Problem, seed: int = 0) -> Plan:
    """The chain that `auto` finds.

    Raises:
        InfeasibleError: It finds none.
    """
    planner = AutoPlanner(seed)
    planner.chains_only = True
    return planner.plan(problem, Budget())


def _enumerated(problem: Problem) -> dict[str, Any] | None:
    """None where no chain fits by the rule of planners."""
    try:
        chain = best_chain(problem)
    except InfeasibleError:
        return None
    best_s = best_of_all_s(problem)
    start = time.process_time()
    plan = AsymmetricPlanner().plan(problem, Budget())
    cpu_s = time.process_time() - start
    search = AsymmetricPlanner()
    search.enumerates = False
    seconds = {
        "planner": _step_s(plan),
        "search": _step_s(search.plan(problem, Budget())),
        "chain": _step_s(chain),
    }
    counts = " + ".join(str(len(entry.devices)) for entry in problem.classes)
    job = problem.job
    return {
        "problem": f"{problem.profile.num_layers} layers on {counts}, {job.schedule}",
        "micro_batches": job.num_micro_batches,
        "plans": sum(1 for _ in all_plans(problem)),
        "best_ms": 1000 * best_s,
        **{f"{name}_over_best": own_s / best_s for name, own_s in seconds.items()},
        "planner_cpu_s": cpu_s,
    }


def _step_s(plan: Plan) -> float:
    assert plan.predicted_step_time_s is not None, "it was simulated"
    return plan.predicted_step_time_s


def _with_lanes(case: FieldCase) -> dict[str, Any] | None:
    """None where nothing fits."""
    problem, row = field_problem(case, SEEDS["development"]), dict[str, Any]()
    for name in ("chain", "lanes"):
        planner = AutoPlanner()
        planner.chains_only = name == "chain"
        start = time.process_time()
        try:
            found = place(problem, planner)
        except HeterpsError:
            return None
        row[f"{name}_ms"] = 1000 * found.estimate.step_time_s
        row[f"{name}_cpu_s"] = time.process_time() - start
    over = row["lanes_ms"] / row["chain_ms"]
    return {"problem": f"{case.name}: {described(problem)}", **row, "lanes_over_chain": over}


if __name__ == "__main__":
    main()
