"""Predicted against measured memory: the model's timeline, action by action, and the ledger."""

from __future__ import annotations

from functools import cache

import pytest

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.stage_memory import SCALAR_BYTES_OF_LAYER, SCALAR_BYTES_OF_STAGE
from heterps_runtime.execution.memory_check import measure_memory
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.profiling.profiler import Conditions, measure
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_models import CONFIGS
from tests.runtime.small_runs import chain_of, problem_of


@cache
def measured(model: str) -> ModelProfile:
    """A profile that knows what layers really keep, on all of the devices."""
    problem = problem_of(model)
    profile = measure(
        problem.profile,
        "type-d0",
        [problem.job.micro_batch_size],
        Conditions(repeats=3, layer_limit_s=0.01),
    )
    entry = profile.measurements[-1]
    everywhere = tuple(entry.changed(device_type=f"type-d{index}") for index in range(4))
    return profile.changed(measurements=everywhere)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("model", ["sequential", pytest.param("llama", marks=pytest.mark.slow)])
def test_every_peak_is_within_two_per_cent_of_the_ledger(model: str, schedule: str) -> None:
    usual = problem_of(model, schedule=schedule)
    problem = Problem(profile=measured(model), cluster=usual.cluster, job=usual.job)
    plan = chain_of(problem, 1, 3)
    lists = build_schedule(problem, plan)
    timeline = memory_timeline(PreparedPlan(problem, plan, lists))
    found = measure_memory(problem.profile, plan, problem.cluster, schedule=lists)
    for index, device in enumerate(lists.devices):
        report, _ = found[device]
        # Losses and the optimizer's step counts are predicted in round numbers.
        scalars = SCALAR_BYTES_OF_STAGE + SCALAR_BYTES_OF_LAYER * len(plan.stages[index].layers)
        assert timeline.peak_bytes[index] == pytest.approx(
            report.peak_bytes, rel=0.02, abs=scalars
        ), (device, report)


@pytest.mark.slow
def test_attention_with_learned_distances_keeps_its_matrix_and_its_masks() -> None:
    """T5 at 64 tokens, as traced: no flash kernel makes the gradient of distances."""
    usual = problem_of("t5")
    source = huggingface_source(CONFIGS["t5"], sequence_length=64)
    profile, size = trace_source(source, "t5"), usual.job.micro_batch_size
    job = usual.job.changed(global_batch_size=size, schedule="gpipe")
    problem = Problem(profile=profile, cluster=usual.cluster, job=job)
    plan = chain_of(problem)
    timeline = memory_timeline(PreparedPlan(problem, plan, build_schedule(problem, plan)))
    (report, _), *_ = measure_memory(profile, plan, problem.cluster).values()
    assert timeline.peak_bytes[0] == pytest.approx(report.peak_bytes, rel=0.06)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_with_dropout_keeps_its_matrix_on_a_cpu(dtype: Dtype) -> None:
    """As traced: a flash kernel of a CPU makes no random mask, so it is done step by step there."""
    peaks = {}
    for dropout in (0.0, 0.1):
        source = huggingface_source({**CONFIGS["gpt2"], "attn_pdrop": dropout}, sequence_length=64)
        usual = problem_of("gpt2")
        profile, size = trace_source(source, "gpt2", dtype), usual.job.micro_batch_size
        job = usual.job.changed(global_batch_size=size, schedule="gpipe", dtype=dtype)
        problem = Problem(profile=profile, cluster=usual.cluster, job=job)
        plan = chain_of(problem)
        timeline = memory_timeline(PreparedPlan(problem, plan, build_schedule(problem, plan)))
        (report, _), *_ = measure_memory(profile, plan, problem.cluster).values()
        peaks[dropout] = timeline.peak_bytes[0], report.peak_bytes
    (plain, plain_measured), (random, random_measured) = peaks.values()
    assert random - plain == pytest.approx(random_measured - plain_measured, rel=0.02)
    assert random == pytest.approx(random_measured, rel=0.03)


def test_what_zero_bubble_puts_off_is_never_predicted_too_small() -> None:
    usual = problem_of("sequential", schedule="zero-bubble")
    problem = Problem(profile=measured("sequential"), cluster=usual.cluster, job=usual.job)
    plan = chain_of(problem, 1, 3)
    lists = build_schedule(problem, plan)
    timeline = memory_timeline(PreparedPlan(problem, plan, lists))
    found = measure_memory(problem.profile, plan, problem.cluster, schedule=lists)
    for index, device in enumerate(lists.devices):
        measured_bytes = found[device][0].peak_bytes
        assert 0.98 * measured_bytes <= timeline.peak_bytes[index] <= 1.25 * measured_bytes
