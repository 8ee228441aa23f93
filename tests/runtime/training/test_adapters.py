"""Adapters (LoRA, by peft) train in a plan: what is frozen has neither gradient nor state."""

from __future__ import annotations

from functools import cache

import pytest
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.layer_costs.roofline import layer_work
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.run.verify import max_difference, reference_training
from heterps_runtime.tracing.trace import trace_source
from tests.runtime.small_runs import chain_of, on_four_devices

RANK = 4


def adapted() -> nn.Module:
    """A small Llama whose attention has adapters; all else is frozen."""
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, use_cache=False,
    )  # fmt: skip
    adapters = LoraConfig(r=RANK, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(LlamaForCausalLM(config), adapters)


@cache
def profile() -> ModelProfile:
    inputs = ["input_ids=12:int64<64", "target=12:int64<64"]
    return trace_source(factory_source(f"{__name__}:adapted", inputs), "adapted")


def test_a_trace_knows_what_is_frozen() -> None:
    embedding, *blocks, head = profile().layers
    assert embedding.trained_parameters == head.trained_parameters == 0
    assert [layer.trained_parameters for layer in blocks] == [RANK * (2 * 32 + 32 + 16)] * 3
    assert profile().num_trained_parameters == 3 * RANK * 112
    # Nobody needs the gradient of what the frozen front returns.
    assert embedding.backward_flops == 0


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_adapters_learn_in_a_plan_what_they_learn_in_one_process(schedule: str) -> None:
    problem = on_four_devices(profile(), schedule=schedule, optimizer="adamw")
    plan = chain_of(problem, 2, 3)
    run = LocalRun.of(problem, plan)
    found = [run.step() for _ in range(3)]
    losses, module = reference_training(run.specification.changed(num_steps=3))
    assert max_difference(found, losses) < 1e-5
    expected = module.parameters_by_name()
    for owned in run.owned.values():
        has_state = set(map(id, owned.optimizer.state)) if owned.optimizer else set()
        for name, parameter in owned.parameters.items():
            assert parameter.detach().sub(expected[name].detach()).abs().max() < 1e-4, name
            assert (id(parameter) in has_state) == ("lora_" in name), name


def test_frozen_parameters_take_the_memory_of_weights_alone() -> None:
    problem = on_four_devices(profile(), optimizer="adamw")
    trained = profile().changed(
        layers=tuple(layer.changed(frozen_parameters=0) for layer in profile().layers)
    )
    own = estimate(problem, chain_of(problem))
    whole = on_four_devices(trained, optimizer="adamw")
    full = estimate(whole, chain_of(whole))
    frozen = profile().num_parameters - profile().num_trained_parameters
    # Two moments; gradients are beside activations, which may already be gone.
    (less,) = (full.memory_bytes[name] - own.memory_bytes[name] for name in own.memory_bytes)
    assert 4 * 2 * frozen <= less <= 4 * 3 * frozen
    (kind, *_) = problem.cluster.device_types
    steps_s = layer_work(profile(), kind, problem.job).optimizer_s
    assert [own_s > 0 for own_s in steps_s] == [False, True, True, True, False]
