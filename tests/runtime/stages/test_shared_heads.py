"""Groups of more ranks than keys and values: several have the same, and train as one process.

Four queries of two keys and values, with biases, norms in float64, and one table in front and
behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_configs.documents.cluster import DeviceGroup
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.memory_check import measure_memory
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.run.verify import reference_training
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.layout import split_checkpoint_key
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.group_plans import grouped, sharing
from tests.runtime.local_states import loaded, save, save_stages, saved_tensors, specification_of
from tests.runtime.small_models import CONFIGS, TOKENS
from tests.runtime.small_runs import chain_of, on_four_devices

DEVICES = [f"d{index}" for index in range(8)]
KEY = "model.layers.0.self_attn.k_proj.weight"
STEPS = 2


@cache
def _profile() -> ModelProfile:
    config = {
        **CONFIGS["llama"],
        "model_type": "starcoder2",
        "num_hidden_layers": 2,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "tie_word_embeddings": True,
    }
    return trace_source(huggingface_source(config, sequence_length=TOKENS), "starcoder2")


def _problem(profile: ModelProfile | None = None, **job: Any) -> Problem:
    """Eight equal devices on one node."""
    settings = {"global_batch_size": 6, "micro_batch_size": 2, "optimizer": "sgd", **job}
    problem = on_four_devices(profile or _profile(), **settings)
    (node,), kind = problem.cluster.nodes, problem.cluster.device_types[0]
    node = node.changed(devices=tuple(DeviceGroup(name=n, type=kind.name) for n in DEVICES))
    cluster = problem.cluster.changed(device_types=(kind,), nodes=(node,))
    return Problem(profile=problem.profile, cluster=cluster, job=problem.job)


def _plan(
    problem: Problem, sizes: Sequence[int], shares: Sequence[float] = (), *, replicas: bool = False
) -> Plan:
    """Groups of so many devices, one after the other."""
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    named = {
        f"s{index}": DEVICES[end - size : end]
        for index, (size, end) in enumerate(zip(sizes, ends, strict=True))
    }
    return grouped(problem, named, shares, are_replicas=replicas)


def _float64(problem: Problem, plan: Plan, **settings: Any) -> LocalRun:
    job = plan.job.model_copy(update={"dtype": "float64"})  # no format of jobs
    specification = LocalRun.of(problem, plan).specification
    return LocalRun(specification.changed(plan=plan.changed(job=job), **settings))


def _holders(run: LocalRun) -> dict[Any, list[str]]:
    """Devices by their part of a layer's keys."""
    found: dict[Any, list[str]] = {}
    for device, owned in run.owned.items():
        if KEY in owned.parameters:
            found.setdefault(owned.slices.get(KEY), []).append(device)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sizes", "shares", "replicas", "max_gradient_norm"),
    [
        ((4,), (), False, 0.05),
        ((3,), (0.5, 0.25, 0.25), False, None),
        ((3,), (0.2, 0.3, 0.5), False, 0.05),
        ((4, 1), (), False, 0.05),
        ((3, 3), (0.25, 0.5, 0.25), True, 0.05),
        ((4, 1), (), True, None),
        ((4, 2), (), True, 0.05),
        ((3, 4), (0.25, 0.5, 0.25), True, 0.05),
    ],
)
def test_ranks_that_share_keys_and_values_train_as_one_process_to_the_last_digits(
    sizes: tuple[int, ...],
    shares: tuple[float, ...],
    replicas: bool,
    max_gradient_norm: float | None,
) -> None:
    problem = _problem()
    run = _float64(
        problem,
        _plan(problem, sizes, shares, replicas=replicas),
        max_gradient_norm=max_gradient_norm,
    )
    assert any(len(devices) > 1 for place, devices in _holders(run).items() if place is not None)
    losses, whole = reference_training(run.specification.changed(num_steps=STEPS))
    assert [run.step() for _ in range(STEPS)] == pytest.approx(losses, rel=0, abs=1e-12)
    expected = whole.parameters_by_name()
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            own = owned.slices.get(name)
            part = expected[name] if own is None else own.of(expected[name])
            torch.testing.assert_close(parameter, part, rtol=0, atol=1e-12, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("shares_state", [False, True])
def test_all_who_have_the_same_keys_and_values_step_them_alike(
    schedule: str, shares_state: bool
) -> None:
    """By AdamW, in two replicas that may share its state; bit by bit."""
    problem = _problem(optimizer="adamw", schedule=schedule)
    plan = _plan(problem, (4, 4), replicas=True)
    run = LocalRun.of(problem, sharing(plan) if shares_state else plan)
    for _ in range(STEPS):
        run.step()
    for devices in _holders(run).values():
        assert len(devices) == 4
        first, *others = (run.owned[device] for device in devices)
        for other in others:
            for name in first.parameters:
                if "k_proj" in name or "v_proj" in name:
                    assert torch.equal(first.parameters[name], other.parameters[name]), name


@pytest.mark.slow
def test_what_several_ranks_have_is_written_once_and_read_by_groups_of_any_size(
    tmp_path: Path,
) -> None:
    problem = _problem(optimizer="adamw")
    run = LocalRun.of(problem, _plan(problem, (4,)))
    run.step()
    written: dict[str, int] = {}
    for tensors in saved_tensors(run.owned).values():
        for key, tensor in tensors.items():
            written[key] = written.get(key, 0) + tensor.numel()
    path = save(run, tmp_path / "0", 1)
    expected = load_state_dict(path)
    assert len(written) > 3 * len(expected.optimizer)  # values, two moments, counts of steps
    for key, numel in written.items():
        name, _ = split_checkpoint_key(key)
        assert numel in (1, expected.model[name].numel()), key
    plans = [chain_of(problem), _plan(problem, (2,)), _plan(problem, (3,), (0.2, 0.3, 0.5))]
    for number, plan in enumerate([*plans, _plan(problem, (4,))], 1):
        specification = specification_of(problem, plan)
        stages = loaded(specification, path)
        path = save_stages(stages, specification, tmp_path / str(number), 1)
        found = load_state_dict(path)
        assert found.optimizer.keys() == expected.optimizer.keys()
        for name, tensor in expected.model.items():
            assert torch.equal(found.model[name], tensor)
        for name, states in expected.optimizer.items():
            for key, state in states.items():
                assert torch.equal(found.optimizer[name][key], state), (name, key)


def test_a_run_under_an_older_profile_splits_what_that_counts() -> None:
    """It knows only whole keys and values: a group of more ranks keeps the layer whole."""
    layers = [
        layer.changed(tensor_split=layer.tensor_split and layer.tensor_split.by_key_values())
        for layer in _profile().layers
    ]
    problem = _problem(_profile().changed(layers=layers))
    for size in (2, 4):
        plan = _plan(problem, (size,))
        run = _float64(problem, plan)
        counted = problem.at_degree(size).profile.layers
        for owned in run.owned.values():
            (module,) = owned.modules.values()
            assert (KEY in owned.slices) == (size == 2)
            for index, layer in enumerate(counted):
                own = [
                    p for n, p in owned.parameters.items() if index in module.parameter_layers[n]
                ]
                assert sum(parameter.numel() for parameter in own) == layer.num_parameters
        losses, _ = reference_training(run.specification.changed(num_steps=2))
        assert [run.step() for _ in range(2)] == pytest.approx(losses, rel=0, abs=1e-12)


@cache
def _wide_profile() -> ModelProfile:
    """Wide enough that its tensors, not what belongs to them, are its memory."""
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    config = {**CONFIGS["llama"], "model_type": "qwen2", "num_attention_heads": 8, **sizes}
    return trace_source(huggingface_source(config, sequence_length=64), "qwen2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "shares", "optimizer"),
    [(2, (), "adamw"), (4, (), "sgd"), (8, (), "adamw"), (3, (0.5, 0.25, 0.25), "sgd")],
)
def test_memory_is_predicted_as_closely_where_ranks_share_keys_and_values(
    size: int, shares: tuple[float, ...], optimizer: str
) -> None:
    """Of the rank with most, parameters, gradients, optimizer state and activations."""
    problem = _problem(
        _wide_profile(), global_batch_size=8, micro_batch_size=4, optimizer=optimizer
    )
    plan = _plan(problem, (size,), shares)
    lists = build_schedule(problem, plan)
    (predicted,) = memory_timeline(PreparedPlan(problem, plan, lists)).peak_bytes
    found = measure_memory(problem.profile, plan, problem.cluster, schedule=lists)
    most = max(report.peak_bytes for report, _ in found.values())
    assert predicted == pytest.approx(most, rel=0.04)
