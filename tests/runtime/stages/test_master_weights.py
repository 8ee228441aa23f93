"""Float32 copies of parameters in a smaller format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.documents.job import Optimizer
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.stages import master_weights
from heterps_runtime.stages.master_weights import MASTER, MasterWeights
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.state.checkpoint import load_state_dict, optimizer_state_dict, owned_tensors
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.migrate import held_by, load_optimizer_state
from tests.runtime.small_runs import chain_of, problem_of, sequential

SIZES = (5, 40, 3)


def _parameters(*formats: torch.dtype) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(n).to(f)) for n, f in zip(SIZES, formats, strict=True)]


def _built(name: Optimizer, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = build_optimizer(name, parameters)
    assert optimizer is not None
    return optimizer


def _train(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], seed: int = 1
) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(4):
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator).bfloat16()
            parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@pytest.mark.parametrize("name", ["adamw", "sgd", "sgd-momentum"])
@pytest.mark.parametrize("chunk_bytes", [1, 2**20])
def test_copies_are_trained_in_float32_and_parameters_are_rounded_from_them(
    name: Optimizer, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_weights, "_CHUNK_BYTES", chunk_bytes)
    reduced = _parameters(torch.bfloat16, torch.bfloat16, torch.float32)
    full = [nn.Parameter(p.detach().float().clone()) for p in reduced]
    optimizer = _built(name, reduced)
    _train(optimizer, reduced)
    _train(_built(name, full), full)
    for own, expected in zip(reduced, full, strict=True):
        assert torch.equal(own, expected.to(own.dtype))
        if own.dtype == torch.bfloat16:
            state = optimizer.state[own]
            assert torch.equal(state[MASTER], expected)
            assert all(value.dtype == torch.float32 for value in state.values())


def test_updates_below_the_rounding_of_a_weight_add_up() -> None:
    parameter = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = build_optimizer("sgd", [parameter], 1e-3)
    assert optimizer is not None
    for _ in range(100):  # bfloat16 has nothing between 1 and 1 - 2**-8
        parameter.grad = torch.ones(1, dtype=torch.bfloat16)
        optimizer.step()
    assert float(parameter.detach()) == pytest.approx(0.9, abs=2**-9)


def test_state_is_loaded_in_its_own_format_and_schedules_reach_the_inner_optimizer() -> None:
    parameters = _parameters(torch.bfloat16, torch.bfloat16, torch.bfloat16)
    optimizer = _built("adamw", parameters)
    _train(optimizer, parameters)
    others = [nn.Parameter(p.detach().clone()) for p in parameters]
    other = _built("adamw", others)
    saved = optimizer.state_dict()
    saved["state"] = {
        index: {key: value.clone() for key, value in state.items()}
        for index, state in saved["state"].items()
    }
    other.load_state_dict(saved)
    for own, found in ((optimizer, parameters), (other, others)):
        torch.optim.lr_scheduler.LambdaLR(own, lambda step: 0.5)
        _train(own, found, seed=2)
    for a, b in zip(parameters, others, strict=True):
        assert torch.equal(optimizer.state[a][MASTER], other.state[b][MASTER])
    assert other.param_groups[0]["lr"] == 0.5 * 3e-4


def _local_run(cut: int) -> LocalRun:
    problem = problem_of("sequential", dtype="bfloat16")
    return LocalRun.of(problem, chain_of(problem, cut))


def _masters(run: LocalRun) -> dict[str, Tensor]:
    return {
        name: state[MASTER]
        for owned in run.owned.values()
        for name, state in held_by(owned).tensors.items()
        if MASTER in state
    }


def test_copies_move_to_another_plan_with_their_parameters() -> None:
    old, new = _local_run(2), _local_run(4)
    old.step()
    held = {
        name: state
        for owned in old.owned.values()
        for name, state in held_by(owned).tensors.items()
    }
    for owned in new.owned.values():
        own = {name: held[name] for name in owned.parameters}
        for name, parameter in owned.parameters.items():
            parameter.data = own[name]["value"]
        load_optimizer_state(
            owned, {name: {k: v for k, v in s.items() if k != "value"} for name, s in own.items()}
        )
    for name, master in _masters(old).items():
        assert _masters(new)[name].data_ptr() == master.data_ptr()
    new.num_steps = 1
    assert new.step() < 2.0
    for owned in new.owned.values():
        for name, parameter in owned.parameters.items():
            assert torch.equal(parameter, _masters(new)[name].bfloat16())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoint_has_copies_for_plain_torch(tmp_path: Path) -> None:
    run = _local_run(3)
    run.step()
    specification = run.specification
    tensors = {
        key: tensor
        for owned in run.owned.values()
        for key, tensor in owned_tensors(owned, ()).items()
    }
    write_tensors(unfinished_path(tmp_path, 1), tensors, None, 0)
    document = CheckpointDocument(
        step=1, seed=0, learning_rate=None, plan=specification.plan, num_ranks=1,
        layers=layer_sizes(specification.profile),
    )  # fmt: skip
    publish(tmp_path, document, keep=1)
    state = load_state_dict(tmp_path)
    model = sequential()
    model.load_state_dict(state.float32_model)
    weight = next(model.parameters())
    assert state.model["0.weight"].dtype == torch.bfloat16
    assert torch.equal(weight, _masters(run)["0.weight"])
    plain = torch.optim.AdamW(model.parameters())
    plain.load_state_dict(optimizer_state_dict(state, model, plain))
    assert set(plain.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}
    model.to(torch.bfloat16)
    own = build_optimizer("adamw", model.parameters())
    assert isinstance(own, MasterWeights)
    own.load_state_dict(optimizer_state_dict(state, model, own))
    weight = next(model.parameters())
    assert torch.equal(own.state[weight][MASTER], state.float32_model["0.weight"])
