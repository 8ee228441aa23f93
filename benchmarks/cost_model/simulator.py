"""How fast schedules and the simulator are, and how far the closed form is from them.

    python benchmarks/cost_model/simulator.py
    python benchmarks/cost_model/simulator.py --quick --json simulator.json

Speed: CPU seconds of one thread for the lists and the times of a plan with 32 stages and 256
micro-batches (interleaved: 64 stages on 32 devices), everything compiled before; and how many
plans the simulator evaluates for each that the closed form does, in one run.
Distance: simulated step time over the closed form for random chains on devices and links of unlike
speed; for interleaved and zero-bubble plans, which have no closed form, over the lower bound of the
plan. The smallest ratio is at least 1 where the divisor is a lower bound.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from benchmarks.shared.common import interleaved_medians, parse_options, report
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.library import load_profile
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, closed_form_step_time_s, encode
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.plan_bound import least_step_time_s
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import estimate

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
NUM_STAGES, NUM_MICRO_BATCHES = 32, 256
PLANS_PER_PROBLEM = 25


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    repeats = 5 if options.quick else 21
    rows, summary = speed(repeats)
    more_rows, more_summary = evaluations(repeats)
    ratio_rows, ratio_summary = distance(options.seed, num_plans=200 if options.quick else 2000)
    report(
        "Schedules and simulator, one thread",
        rows + more_rows + ratio_rows,
        summary | more_summary | ratio_summary,
        options,
    )


def speed(repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Milliseconds for one plan by schedule."""
    cases: dict[str, Callable[[], object]] = {}
    for schedule in SCHEDULES:
        num_chunks = 2 if schedule == "interleaved" else 1
        problem = chain(np.ones(NUM_STAGES * num_chunks), NUM_STAGES, schedule)
        plan = looped_plan(problem, NUM_STAGES)
        cases[f"{schedule}, lists"] = partial(build_schedule, problem, plan)
        cases[f"{schedule}, lists and times"] = partial(simulated_s, problem, plan)
        cases[f"{schedule}, estimate"] = partial(estimate, problem, plan)
    medians = interleaved_medians(cases, repeats, clock=time.process_time)
    rows = [
        {"what": f"S 32, M 256, {name}", "value": 1e3 * s, "unit": "ms"}
        for name, s in medians.items()
    ]
    summary = {
        f"simulator_{schedule.replace('-', '_')}_32x256_ms": 1e3
        * medians[f"{schedule}, lists and times"]
        for schedule in SCHEDULES
    }
    return rows, summary


def evaluations(repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Plans for each second, of the simulator and of the closed form, in one run."""
    profile = load_profile("llama-7b")
    cluster = unlike_cluster(np.random.default_rng(0), 8)
    problem = Problem(profile, cluster, Job(global_batch_size=64, dtype="float32"))
    edges = np.linspace(0, profile.num_layers, 9).astype(int).tolist()
    stages = [PlacedStage(a, b - 1, i % 2) for i, (a, b) in enumerate(pairwise(edges))]
    plan = chain_plan(problem, [(s.first_layer, s.last_layer, s.device_class) for s in stages])
    kernel, codes = kernel_tables(problem.tables), np.stack([encode(stages)] * 4096)
    medians = interleaved_medians(
        {
            "simulator": partial(simulated_s, problem, plan),
            "closed form": partial(evaluate, codes, kernel),
            "estimate": partial(estimate, problem, plan),
            "estimate with interval and memory": partial(
                estimate, problem, plan, with_interval=True, with_memory=True
            ),
        },
        repeats,
        clock=time.process_time,
    )
    per_s = {
        "simulator": 1 / medians["simulator"],
        "closed form": len(codes) / medians["closed form"],
    }
    rows = [
        {"what": f"S 8, M 64, {name}", "value": value, "unit": "plans/s"}
        for name, value in per_s.items()
    ]
    estimates_ms = {name: 1e3 * s for name, s in medians.items() if name.startswith("estimate")}
    rows += [
        {"what": f"llama-7b, S 8, M 64, {name}", "value": value, "unit": "ms"}
        for name, value in estimates_ms.items()
    ]
    return rows, {
        **{f"{name.replace(' ', '_')}_llama_7b_ms": value for name, value in estimates_ms.items()},
        "simulations_per_s": per_s["simulator"],
        "closed_forms_per_s": per_s["closed form"],
        "closed_forms_per_simulation": per_s["closed form"] / per_s["simulator"],
    }


def distance(seed: int, num_plans: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Quantiles of the simulated step time over what bounds it."""
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for schedule in SCHEDULES:
        rng, ratios = np.random.default_rng(seed), list[float]()
        has_form = schedule in ("1f1b", "gpipe")
        for number in range(num_plans):
            if number % PLANS_PER_PROBLEM == 0:
                problem = random_problem(rng, schedule)
            plan = random_plan(rng, problem, is_looped=schedule == "interleaved")
            divisor_s = (
                closed_form_s(problem, plan)
                if has_form
                else least_step_time_s(PreparedPlan(problem, plan))
            )
            ratios.append(simulated_s(problem, plan) / divisor_s)
        what = "closed form" if has_form else "lower bound"
        for name, quantile in (("least", 0), ("5 %", 5), ("50 %", 50), ("95 %", 95), ("most", 100)):
            value = float(np.percentile(ratios, quantile))
            label = f"simulated / {what}, {schedule}, {name}"
            rows.append({"what": label, "value": value, "unit": f"ratio, of {num_plans}"})
            key = f"ratio_{schedule.replace('-', '_')}_p{quantile}"
            summary[key] = value
    return rows, summary


def simulated_s(problem: Problem, plan: Plan) -> float:
    """Simulated step time: action lists and times, no memory."""
    return action_times(PreparedPlan(problem, plan)).step_time_s


def closed_form_s(problem: Problem, plan: Plan) -> float:
    """Closed form of a chain with one stage on each device."""
    return closed_form_step_time_s(
        problem,
        [
            PlacedStage(stage.first_layer, stage.last_layer, problem.class_of[stage.devices[0]])
            for stage in plan.stages
        ],
    )


def chain(seconds: np.ndarray[Any, Any], num_devices: int, schedule: str) -> Problem:
    """Layers of given forward seconds on equal devices; backward passes take twice as long."""
    return problem_of(seconds, unlike_cluster(None, num_devices), NUM_MICRO_BATCHES, schedule)


def random_problem(rng: np.random.Generator, schedule: str) -> Problem:
    """Up to 16 unlike layers on devices of two speeds; no gradients and no optimizer."""
    seconds = rng.uniform(0.1, 2, int(rng.integers(2, 17)))
    return problem_of(seconds, unlike_cluster(rng, 16), int(rng.integers(1, 33)), schedule, rng)


def problem_of(
    seconds: np.ndarray[Any, Any],
    cluster: Cluster,
    num_micro_batches: int,
    schedule: str,
    rng: np.random.Generator | None = None,
) -> Problem:
    """A chain of layers with these forward seconds on the first type of the cluster."""
    outputs = rng.uniform(0, 2, len(seconds)) if rng else np.full(len(seconds), 0.1)
    factor, backward = (rng.uniform(1, 4), rng.uniform(1, 3)) if rng else (1.0, 2.0)
    layers = tuple(
        LayerProfile(
            name=f"layer{i}", kind="Layer", num_parameters=0, forward_flops=1, backward_flops=1,
            activation_bytes=0, output_bytes=float(output),
        )
        for i, output in enumerate(outputs)
    )  # fmt: skip
    measurements = tuple(
        Measurement(
            device_type=name,
            micro_batch_size=1,
            forward_s=tuple((seconds * scale).tolist()),
            backward_s=tuple((seconds * scale * backward).tolist()),
            optimizer_s=(0.0,) * len(layers),
            weight_gradient_s=tuple((seconds * scale * backward / 2).tolist()),
        )
        for name, scale in (("V100-16G", 1.0), ("T4", factor))
    )
    job = Job.from_mapping(
        {"global_batch_size": num_micro_batches, "dtype": "float32", "schedule": schedule}
    )
    return Problem(
        ModelProfile(name="chain", layers=layers, measurements=measurements), cluster, job
    )


def unlike_cluster(rng: np.random.Generator | None, num_devices: int) -> Cluster:
    """Two nodes of devices of two types, with a slower link between them."""
    latency_s, bandwidth = (rng.uniform(0, 0.2), rng.uniform(2, 8)) if rng else (0.0, 1e3)
    link = Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    slower = Link(latency_s=2 * latency_s, bandwidth_bytes_per_s=bandwidth / 2)
    nodes = tuple(
        Node(
            name=name,
            devices=(DeviceGroup(name=name, type=device_type, count=num_devices),),
            link=link,
        )
        for name, device_type in (("a", "V100-16G"), ("b", "T4"))
    )
    return Cluster(name="two-nodes", nodes=nodes, inter_node_link=slower)


def random_plan(rng: np.random.Generator, problem: Problem, is_looped: bool) -> Plan:
    """Random cuts and types; looped: one stage for each layer, the devices in turn."""
    num_layers = problem.profile.num_layers
    if is_looped:
        return looped_plan(problem, int(rng.integers(1, num_layers + 1)))
    num_cuts = int(rng.integers(0, num_layers))
    cuts = np.sort(rng.choice(np.arange(1, num_layers), num_cuts, replace=False)).tolist()
    return chain_plan(
        problem,
        [(a, b - 1, int(rng.integers(2))) for a, b in pairwise([0, *cuts, num_layers])],
    )


def looped_plan(problem: Problem, num_devices: int) -> Plan:
    """One stage for each layer, on the first devices in turn."""
    layers = range(problem.profile.num_layers)
    return plan_of(problem, [(i, i, f"a-{i % num_devices}") for i in layers])


def chain_plan(problem: Problem, stages: list[tuple[int, int, int]]) -> Plan:
    """Stages of (first layer, last layer, class), each on a device of its own."""
    return plan_of(
        problem,
        [(first, last, f"{'ab'[kind]}-{i}") for i, (first, last, kind) in enumerate(stages)],
    )


def plan_of(problem: Problem, stages: list[tuple[int, int, str]]) -> Plan:
    """One pipeline of stages (first layer, last layer, device)."""
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.layers_fingerprint,
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(
            Stage(name=f"s{i}", first_layer=first, last_layer=last, devices=(device,))
            for i, (first, last, device) in enumerate(stages)
        ),
        pipelines=(
            Pipeline(
                stages=tuple(f"s{i}" for i in range(len(stages))),
                micro_batches=tuple(range(problem.job.num_micro_batches)),
            ),
        ),
    )


if __name__ == "__main__":
    main()
