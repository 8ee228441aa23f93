"""Section `runs`: plans whose stages share one GPU, predicted against measured.

    python -m benchmarks.gpu.runs

GPT-2 in bfloat16: four stages of one process under each schedule, recomputed, offloaded; then
stages of several processes, which the prediction takes for as many GPUs. Losses of all of them are
compared with those of a single stage: the same numbers in another order.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.fidelity.own_runs import memory_rows
from benchmarks.gpu.cases import (
    Rows,
    chain_of,
    device_type,
    is_wanted,
    measured,
    problem_of,
    run_section,
)
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.run.run_plan import run_plan

SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved", "zero-bubble")
MODEL: tuple[str, Dtype] = ("gpt2", "bfloat16")
QUICK_MODEL: tuple[str, Dtype] = ("llama-tiny", "float32")
STEPS, TIMEOUT_S = 14, 120.0


def one_process(options: argparse.Namespace) -> Rows:
    """Stages of one process; cases are schedules, `recompute_layers` and `offloaded_layers`."""
    rows = [_row("one stage", *_case(options, ["d0"]), options)]
    for schedule in SCHEDULES[: 1 if options.quick else None]:
        if is_wanted(schedule, options):
            case = _case(options, ["d0"] * 4, schedule)
            rows.append(_row(f"four stages, {schedule}", *case, options))
    for field in ("offloaded_layers", "recompute_layers"):
        if is_wanted(field, options):
            case = _case(options, ["d0"] * 4, "1f1b", **{field: tuple})
            rows.append(_row(f"four stages, 1f1b, {field}", *case, options))
    return rows


def several_processes(options: argparse.Namespace) -> Rows:
    """Stages of two and of four processes, messages through pinned host memory."""
    if not is_wanted("processes", options):
        return []
    rows = [_row("two processes, 1f1b", *_case(options, ["d0", "d1"]), options)]
    if not options.quick:
        case = _case(options, ["d0", "d1", "d2", "d3"], "zero-bubble")
        rows.append(_row("four processes, zero-bubble", *case, options))
    return rows


def _case(
    options: argparse.Namespace, devices: Sequence[str], schedule: Schedule = "1f1b", **fields: Any
) -> tuple[Problem, Plan]:
    profile, dtype = _profile(options)
    types = [device_type(options).name] * len(set(devices))
    problem = problem_of(profile, types, schedule=schedule, micro_batch_size=4, dtype=dtype)
    return problem, chain_of(problem, devices, **fields)


def _profile(options: argparse.Namespace) -> tuple[ModelProfile, Dtype]:
    name, dtype = QUICK_MODEL if options.quick else MODEL
    if name not in _profiles:
        profile = load_profile(name)
        # Without its times the catalogue's numbers predict.
        if not options.cases or "unmeasured" not in options.cases:
            profile = measured(profile, options, [4], dtype)
        _profiles[name] = profile
    return _profiles[name], dtype


_profiles: dict[str, ModelProfile] = {}
_losses: list[Sequence[float]] = []


def _row(what: str, problem: Problem, plan: Plan, options: argparse.Namespace) -> dict[str, Any]:
    predicted = estimate(problem, plan, with_memory=True)
    result = run_plan(
        problem,
        plan,
        RunSettings(steps=STEPS, device="auto", timeout_s=TIMEOUT_S, num_threads=2),
    )
    _losses.append(result.losses)
    step_s = result.measured_step_time_s
    row = {
        "what": what,
        "predicted_s": predicted.step_time_s,
        "measured_s": step_s,
        "error": predicted.step_time_s / step_s - 1,
        "loss_difference": max(abs(a - b) for a, b in zip(result.losses, _losses[0], strict=True)),
        "samples_per_s": result.throughput_samples_per_s,
        "first_loss": result.losses[0],
        "last_loss": result.losses[-1],
        "memory": memory_rows(predicted, result.devices),
        "allocated_bytes": [d.memory and d.memory.allocated_bytes for d in result.devices],
    }
    print({key: value for key, value in row.items() if key != "memory"}, flush=True)
    return row


if __name__ == "__main__":
    run_section(__doc__ or "", [one_process, several_processes])
