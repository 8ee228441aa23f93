"""Measured throughput of our plans beside the even split, on emulated devices of unequal speed.

    python benchmarks/planners/even_split.py
    python benchmarks/planners/even_split.py --quick --json even_split.json

Speeds 1, 1, 2 and 4. The even split gives every device equally many layers, as torch's pipelining
does unless it is told otherwise. Five models are profiled here; for each, both plans are executed
by four processes under the same schedule (1F1B, 16 micro-batches), in turns. `ideal` is the
throughput of four devices that are never idle, in proportion to the sum of their speeds: no plan
can be faster. The devices are emulated (real computation, then sleep until the emulated time), so
the ratios say how good the plans are; they are no hardware results.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from benchmarks.fidelity.own_models import EMULATED, Case
from benchmarks.fidelity.own_plans import HOST
from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_runtime.profiling.profiler import measure
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.run.run_plan import run_plan

SPEEDS = (1, 1, 2, 4)
NUM_MICRO_BATCHES = 16
LINK = Link(latency_s=2e-4, bandwidth_bytes_per_s=1e8)
STEPS, ROUNDS = 4, 2
NUM_MODELS = 5
TIMEOUT_S = 300.0


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    rows = []
    for case in EMULATED[: 1 if options.quick else NUM_MODELS]:
        print(f"{case.name} ...", file=sys.stderr)
        rows.append(row_of(case, options.seed, rounds=1 if options.quick else ROUNDS))
    summary = {
        "geometric_mean_over_even": statistics.geometric_mean(r["over_even"] for r in rows),
        "geometric_mean_of_ideal": statistics.geometric_mean(r["ideal_over_even"] for r in rows),
        "worst_prediction_error": max(r["worst_prediction_error"] for r in rows),
        "speeds": ", ".join(str(speed) for speed in SPEEDS),
    }
    report("Plans over the even split, four emulated devices", rows, summary, options)


def row_of(case: Case, seed: int, rounds: int) -> dict[str, Any]:
    """Profiles one model, and runs both plans in turns."""
    problem = _problem(case)
    plans = {name: place(problem, name, seed=seed) for name in ("even", "auto")}
    measured_s: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(rounds):
        for name, placed in plans.items():
            result = run_plan(
                problem,
                placed.plan,
                RunSettings(steps=WARM_UP_STEPS + STEPS, seed=seed, timeout_s=TIMEOUT_S),
            )
            measured_s[name].append(result.measured_step_time_s)
    step_time_s = {name: statistics.median(seconds) for name, seconds in measured_s.items()}
    batch = problem.job.global_batch_size
    errors = [
        abs(plans[name].estimate.step_time_s / seconds - 1) for name, seconds in step_time_s.items()
    ]
    return {
        "model": case.name,
        "layers": problem.profile.num_layers,
        "even_samples_per_s": batch / step_time_s["even"],
        "ours_samples_per_s": batch / step_time_s["auto"],
        "over_even": step_time_s["even"] / step_time_s["auto"],
        "ideal_over_even": step_time_s["even"] / _ideal_step_time_s(problem),
        "planner": plans["auto"].plan.planner,
        "worst_prediction_error": max(errors),
    }


def _ideal_step_time_s(problem: Problem) -> float:
    """All devices busy from the first to the last moment, without messages or optimizer."""
    whole_s = problem.tables.compute_s.sum(axis=0)
    samples_per_s = sum(
        problem.job.micro_batch_size / whole_s[problem.class_of[device.name]]
        for device in problem.cluster.devices
    )
    return float(problem.job.global_batch_size / samples_per_s)


def _problem(case: Case) -> Problem:
    job = Job(
        global_batch_size=NUM_MICRO_BATCHES * case.micro_batch_size,
        micro_batch_size=case.micro_batch_size,
        dtype="float32",
        optimizer="adamw",
    )
    profile = measure(case.profile(), HOST, (case.micro_batch_size,))
    return Problem(profile, _cluster(case.slowdown), job)


def _cluster(slowdown: float) -> Cluster:
    """One node; the fastest device is `slowdown` times slower than this machine."""
    types = tuple(
        DeviceType(
            name=f"speed-{speed}",
            kind="cpu",
            memory_bytes=2**31,
            peak_flops_per_s={"float32": 1e10},
            memory_bandwidth_bytes_per_s=1e10,
            price_usd_per_hour=0.0,
            emulation=Emulation(host_device_type=HOST, slowdown=slowdown * max(SPEEDS) / speed),
        )
        for speed in sorted(set(SPEEDS))
    )
    devices = tuple(
        DeviceGroup(name=f"d{number}", type=f"speed-{speed}") for number, speed in enumerate(SPEEDS)
    )
    node = Node(name="node", devices=devices, link=LINK)
    return Cluster(name="speeds 1, 1, 2, 4", device_types=types, nodes=(node,))


if __name__ == "__main__":
    main()
