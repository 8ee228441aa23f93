"""Reduced formats: what is computed, what is kept, and that no plan changes the result."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.stage_memory import SCALAR_BYTES_OF_LAYER, SCALAR_BYTES_OF_STAGE
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.memory_check import measure_memory
from heterps_runtime.models.build import arguments
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.mixed_precision import SharedCopies, use_tensor_cores
from heterps_runtime.models.recording import select_output
from heterps_runtime.run.hooks import PlanUpdate
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.verify import reference_training
from heterps_runtime.specification.build import build_specification
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_runs import chain_of, plan_of, problem_of, profile_of

MIXED: Dtype = "mixed-bfloat16"


@cache
def _traced(model: str, dtype: Dtype) -> ModelProfile:
    source = profile_of(model).source
    assert source is not None
    return trace_source(source, model, dtype)


def _differences(
    model: str, dtype: Dtype, schedule: str = "1f1b", *, is_replicated: bool = False
) -> tuple[float, float, list[float]]:
    """Largest difference of losses and of parameters to one process, and the losses."""
    problem = problem_of(model, dtype=dtype, schedule=schedule)
    plan = chain_of(problem, 2, 4)
    if is_replicated:
        stages = {"a": (0, 1, "d0"), "b": (0, 1, "d1"), "c": (2, -1, "d2")}
        plan = plan_of(problem, stages, {("a", "c"): (0, 2), ("b", "c"): (1, 3)})
    specification = build_specification(
        problem,
        plan,
        build_schedule(problem, plan),
        RunSettings(steps=3, seed=1),
        devices=plan.devices,
    )
    run = LocalRun(specification)
    losses = [run.step() for _ in range(3)]
    expected, module = reference_training(specification)
    own = {name: p for owned in run.owned.values() for name, p in owned.parameters.items()}
    pairs = [(own[name], p) for name, p in module.parameters_by_name().items()]
    return (
        max(abs(a - b) for a, b in zip(losses, expected, strict=True)),
        max(float((a.float() - b.float()).detach().abs().max()) for a, b in pairs),
        losses,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "dtype", "schedule"),
    [
        ("llama", "bfloat16", "1f1b"),
        ("resnet", "bfloat16", "zero-bubble"),
        ("llama", "float16", "zero-bubble"),
        ("resnet", "float16", "1f1b"),
        ("llama", MIXED, "1f1b"),
        ("llama", MIXED, "zero-bubble"),
        ("resnet", MIXED, "1f1b"),
    ],
)
@pytest.mark.filterwarnings("ignore:batch normalisation")
def test_a_pipeline_trains_bit_by_bit_what_one_process_trains(
    model: str, dtype: Dtype, schedule: str
) -> None:
    losses, parameters, _ = _differences(model, dtype, schedule)
    assert losses == pytest.approx(0, abs=1e-6)  # sums of the same numbers in float64 and float32
    assert parameters == 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", MIXED])
def test_tied_and_replicated_weights_differ_by_the_rounding_of_their_sums(dtype: Dtype) -> None:
    losses, parameters, found = _differences("gpt2", dtype, is_replicated=True)
    assert losses < 1e-3
    assert parameters < 3 * 3 * 3e-4  # AdamW moves a weight by at most its learning rate
    assert found[-1] < found[0]


@pytest.mark.parametrize("model", ["gpt2", "sequential"])
def test_the_reference_is_plain_torch_under_autocast(model: str) -> None:
    profile = _traced(model, MIXED)
    assert profile.source is not None
    stage = build_stage(
        profile.source, profile, StagePart(0, profile.num_layers - 1, 4, 0, dtype=MIXED)
    )
    inputs, target = make_batch(profile.source, 0, 4, seed=0)
    torch.autograd.backward(loss_sum(profile.source, stage(inputs)[0], target))
    found = {name: p.grad for name, p in stage.parameters_by_name().items()}
    stage.zero_grad(set_to_none=True)
    args, kwargs = arguments(profile.source, inputs)
    stage._pass._numbers = {}  # no call is steered: the module's own forward
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = select_output(stage.module(*args, **kwargs))
    torch.autograd.backward(loss_sum(profile.source, output, target))
    for name, parameter in stage.parameters_by_name().items():
        assert parameter.dtype == torch.float32
        expected = found[name]
        assert parameter.grad is not None
        assert expected is not None
        assert torch.equal(parameter.grad, expected), name


def test_tf32_is_float32_on_a_cpu_and_changes_no_bytes() -> None:
    assert _differences("sequential", "tf32")[2] == _differences("sequential", "float32")[2]
    full, fast = _traced("sequential", "float32"), _traced("sequential", "tf32")
    assert [layer.output_bytes for layer in fast.layers] == [
        layer.output_bytes for layer in full.layers
    ]
    assert fast.cast_bytes("tf32") == (0.0,) * fast.num_layers


@pytest.mark.parametrize(
    ("dtype", "device_type", "precision"),
    [("tf32", "cuda", "high"), ("tf32", "cpu", "highest"), ("float32", "cuda", "highest")],
)
def test_tf32_is_turned_on_where_it_is_asked_for_and_a_gpu_computes(
    dtype: Dtype, device_type: str, precision: str
) -> None:
    try:
        use_tensor_cores(dtype, device_type)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_cuts_and_copies_are_what_autocast_makes_of_them() -> None:
    full, mixed = _traced("sequential", "float32"), _traced("sequential", MIXED)
    for layer, entry in zip(full.layers, mixed.layers, strict=True):
        assert entry.output_bytes == layer.output_bytes / 2
        assert entry.cast_bytes == 2 * layer.num_parameters
        assert entry.forward_flops == layer.forward_flops
    residual = _traced("llama", MIXED).layers[1]  # sums of float32 and bfloat16 are float32
    assert residual.output_bytes == profile_of("llama").layers[1].output_bytes
    assert residual.activation_bytes < profile_of("llama").layers[1].activation_bytes


def test_micro_batches_share_the_copies_of_a_step() -> None:
    profile = _traced("sequential", MIXED)
    assert profile.source is not None
    stage = build_stage(
        profile.source, profile, StagePart(0, profile.num_layers - 1, 4, 0, dtype=MIXED)
    )
    inputs, target = make_batch(profile.source, 0, 4, seed=0)
    saved: set[int] = set()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.shape in ((8, 24), (24, 8)):  # the first layer's weight
            saved.add(tensor.untyped_storage().data_ptr())
        return tensor

    copies, losses = SharedCopies(MIXED), []
    received = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    copies.hold()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for _ in range(3):
            losses.append(loss_sum(profile.source, stage(received)[0], target))
    for loss in losses:
        torch.autograd.backward(loss)
    copies.release()
    assert len(saved) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", MIXED])
@pytest.mark.parametrize("model", ["sequential", "llama"])
def test_peaks_are_predicted_within_three_per_cent(model: str, dtype: Dtype) -> None:
    usual = problem_of(model, dtype=dtype)
    problem = Problem(profile=_traced(model, dtype), cluster=usual.cluster, job=usual.job)
    plan = chain_of(problem, 1, 3)
    lists = build_schedule(problem, plan)
    timeline = memory_timeline(PreparedPlan(problem, plan, lists))
    found = measure_memory(problem.profile, plan, problem.cluster, schedule=lists)
    for index, device in enumerate(lists.devices):
        report, _ = found[device]
        scalars = SCALAR_BYTES_OF_STAGE + SCALAR_BYTES_OF_LAYER * len(plan.stages[index].layers)
        assert timeline.peak_bytes[index] == pytest.approx(
            report.peak_bytes, rel=0.03, abs=scalars
        ), (device, report)
        state = problem.job.optimizer_bytes_per_parameter
        parameters = sum(
            problem.profile.layers[i].num_parameters for i in plan.stages[index].layers
        )
        assert report.at_peak.optimizer == pytest.approx(state * parameters, abs=scalars)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", MIXED])
def test_a_clipped_run_goes_on_under_another_plan_bit_by_bit(dtype: Dtype) -> None:
    problem = problem_of("sequential", dtype=dtype)
    before, after = (chain_of(problem, cut, devices=("d0", "d1")) for cut in (3, 5))
    result = run_plan(
        problem,
        before,
        RunSettings(steps=6, verify=True, max_gradient_norm=0.2, timeout_s=100),
        updates=(PlanUpdate(after, problem, 3),),
    )
    assert result.max_loss_difference == pytest.approx(0, abs=1e-6)
    (replan,) = result.replans
    # Two linear layers move, with weights, AdamW's moments and what stands beside them.
    parameters = sum(layer.num_parameters for layer in problem.profile.layers[3:5])
    state = problem.job.weight_bytes_per_parameter + problem.job.optimizer_bytes_per_parameter
    counts = 12 if dtype == "float16" else 4  # a step count for each of two tensors; a loss scale
    assert replan.bytes_moved == parameters * state + counts * 2
