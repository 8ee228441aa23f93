"""One own run: a plan under the real launcher, beside what was predicted before it started."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.fidelity.own_errors import (
    TOLERATED_OVERRUNS,
    activation_errors,
    measured_by_kind,
    memory_errors,
    predicted_by_kind,
    predicted_largest,
    relative_error,
    spread,
    worst,
)
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.results.result import DeviceReport, RunResult
from heterps_runtime.run.hooks import RunHooks
from heterps_runtime.run.run_plan import run_plan

# Real steps are repeated for about this long, emulated ones just a few times.
PLAIN_RUN_S = 4.0
MIN_PLAIN_STEPS, MAX_PLAIN_STEPS = 12, 60
EMULATED_STEPS = 5
TIMEOUT_S = 300.0

Ticker = Callable[[str], None]


def plain_steps(step_time_s: float) -> int:
    """Steps of a run on plain processes, warm-up included."""
    wanted = round(PLAIN_RUN_S / max(step_time_s, 1e-6))
    return WARM_UP_STEPS + min(max(wanted, MIN_PLAIN_STEPS), MAX_PLAIN_STEPS)


def run_row(problem: Problem, plan: Plan, *, steps: int, seed: int, tick: Ticker) -> dict[str, Any]:
    """Predicts, runs, and compares: step time, memory of each rank, overruns."""
    predicted = estimate(problem, plan, with_memory=True)
    result = run_plan(
        problem,
        plan,
        RunSettings(steps=steps, seed=seed, timeout_s=TIMEOUT_S),
        hooks=RunHooks(on_progress=lambda step: tick(f"step {step.step + 1} of {steps}")),
    )
    measured = result.step_times_s[WARM_UP_STEPS:]
    ranks = memory_rows(predicted, result.devices)
    overruns = overrun_share(result.devices)
    return {
        "predicted_s": predicted.step_time_s,
        "measured_s": statistics.median(measured),
        "error": relative_error(predicted.step_time_s, statistics.median(measured)),
        "spread": spread(measured),
        "memory_error": worst(memory_errors(ranks)),
        "activation_error": worst(activation_errors(ranks)),
        "overruns": overruns,
        "worst_overrun_s": max(device.worst_overrun_s for device in result.devices),
        "is_flagged": overruns > TOLERATED_OVERRUNS,
        "steps_s": list(measured),
        "memory": ranks,
        "stages": stage_rows(problem, plan, result),
    }


def overrun_share(devices: tuple[DeviceReport, ...]) -> float:
    """Share of the emulated actions that the host could not finish in time."""
    actions = sum(device.num_actions for device in devices)
    return sum(device.num_overruns for device in devices) / actions if actions else 0.0


def memory_rows(predicted: Estimate, devices: tuple[DeviceReport, ...]) -> list[dict[str, Any]]:
    """Predicted and measured bytes of each rank by kind: at its peak, and each at its own."""
    curves = {curve.device: curve for curve in predicted.memory_curves}
    return [
        {
            "device": device.device,
            "predicted": predicted_by_kind(curves[device.device]),
            "measured": measured_by_kind(device.memory.at_peak),
            "predicted_largest": predicted_largest(curves[device.device]),
            "measured_largest": measured_by_kind(device.memory.largest),
        }
        for device in devices
        if device.memory is not None
    ]


def stage_rows(problem: Problem, plan: Plan, result: RunResult) -> list[dict[str, Any]]:
    """Predicted and measured seconds of each stage's passes: where an error comes from."""
    layers = {stage.name: list(stage.layers) for stage in plan.stages}
    rows = []
    for entry in result.stages:
        column = problem.class_of[entry.device]
        mine: Mapping[str, float] = {
            direction: float(table[layers[entry.stage], column].sum())
            for direction, table in (
                ("forward", problem.tables.forward_s),
                ("backward", problem.tables.backward_s),
            )
        }
        rows.append(
            {
                "device": entry.device,
                "stage": entry.stage,
                "predicted_forward_s": mine["forward"],
                "measured_forward_s": entry.forward_s,
                "predicted_backward_s": mine["backward"],
                "measured_backward_s": entry.backward_s,
            }
        )
    return rows
