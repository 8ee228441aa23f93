"""The loss scale of float16: torch's rules, one decision for all ranks, and part of every state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from heterps_configs.documents.job import Optimizer
from heterps_envs.problem import Problem
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages import loss_scale
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.loss_scale import LOSS_SCALE, LossScale
from heterps_runtime.stages.master_weights import MASTER, MasterWeights
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.stages.stage import StagePart
from heterps_runtime.state.migrate import held_by, load_optimizer_state
from tests.runtime.small_runs import chain_of, plan_of, problem_of

STEPS = 6


def _problem(optimizer: Optimizer = "adamw") -> Problem:
    problem = problem_of("sequential", dtype="float16")
    job = problem.job.changed(optimizer=optimizer)
    return Problem(problem.profile, problem.cluster, job)


def _run(problem: Problem, *cuts: int, max_norm: float | None = None) -> LocalRun:
    specification = LocalRun.of(problem, chain_of(problem, *cuts)).specification
    return LocalRun(specification.changed(max_gradient_norm=max_norm))


def _scales(run: LocalRun) -> set[float]:
    return {owned.loss_scale.value for owned in run.owned.values() if owned.loss_scale}


def _masters(run: LocalRun) -> dict[str, Tensor]:
    return {
        name: state[MASTER]
        for owned in run.owned.values()
        for name, state in held_by(owned).tensors.items()
    }


def _with_grad_scaler(
    specification: RunSpecification, scaler: torch.amp.GradScaler
) -> tuple[list[float], dict[str, Tensor], list[float]]:
    """One process, plain torch: a model in float16, its float32 copies, torch's own scaler."""
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    module = build_stage(
        profile.source,
        profile,
        StagePart(
            0, profile.num_layers - 1, job.micro_batch_size, specification.seed, dtype=job.dtype
        ),
    )
    named = module.parameters_by_name()
    masters = {name: nn.Parameter(p.detach().float()) for name, p in named.items()}
    optimizer = build_optimizer(job.optimizer, masters.values(), specification.learning_rate)
    assert optimizer is not None
    losses, scales = [], []
    for step in range(STEPS):
        total = 0.0
        batches = micro_batches(specification, step, range(job.num_micro_batches))
        for _, (inputs, target) in sorted(batches.items()):
            loss = loss_sum(profile.source, module(inputs)[0], target) / job.global_batch_size
            torch.autograd.backward(scaler.scale(loss))
            total += float(loss.detach())
        for name, parameter in named.items():
            assert parameter.grad is not None
            masters[name].grad = parameter.grad.float()
            parameter.grad = None
        scaler.unscale_(optimizer)
        if specification.max_gradient_norm is not None:
            nn.utils.clip_grad_norm_(masters.values(), specification.max_gradient_norm)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for name, parameter in named.items():
                parameter.copy_(masters[name])
        losses.append(total)
        scales.append(scaler.get_scale())
    return losses, {name: master.detach() for name, master in masters.items()}, scales


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd-momentum"])
@pytest.mark.parametrize("max_norm", [None, 0.05])
@pytest.mark.parametrize("initial", [2.0**10, 2.0**30])
def test_a_pipeline_trains_what_one_process_trains_with_the_scaler_of_torch(
    optimizer: Optimizer, max_norm: float | None, initial: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2**30 every gradient overflows at first; from 2**10 the scale grows every two steps."""
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", initial)
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 2)
    monkeypatch.setattr(loss_scale, "BACKOFF_FACTOR", 2.0**-4)
    run = _run(_problem(optimizer), 2, 5, max_norm=max_norm)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=initial, growth_interval=2, backoff_factor=2.0**-4
    )
    expected, masters, scales = _with_grad_scaler(run.specification, scaler)
    found = []
    for scale in scales:
        found.append(run.step())
        assert _scales(run) == {scale}
    assert found == pytest.approx(expected, abs=1e-5)
    assert (min(scales) < initial) == (initial > 2.0**20)
    assert max(scales[1:]) != scales[0]
    for name, master in _masters(run).items():
        assert torch.allclose(master, masters[name], rtol=0, atol=1e-6)


def test_small_gradients_would_be_lost_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(scale: float) -> int:
        monkeypatch.setattr(loss_scale, "INITIAL_SCALE", scale)
        problem = _problem("sgd")
        run = _run(problem, 3)
        before = {name: master.clone() for name, master in _started(run).items()}
        run.step()
        after = _masters(run)
        return sum(int((after[name] == value).sum()) for name, value in before.items())

    # A loss that is nearly constant, as late in training.
    small = 2.0**-14
    assert untouched(small) > untouched(small * 2**16) + 100


def _started(run: LocalRun) -> dict[str, Tensor]:
    return {
        name: parameter.detach().float()
        for owned in run.owned.values()
        for name, parameter in owned.parameters.items()
    }


def test_an_overflow_on_one_rank_skips_the_step_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "INITIAL_SCALE", 8.0)
    problem = _problem()
    stages = {"a": (0, 3, "d0"), "b": (0, 3, "d1"), "c": (4, -1, "d2")}
    plan = plan_of(problem, stages, {("a", "c"): (0, 2), ("b", "c"): (1, 3)})
    run = LocalRun.of(problem, plan)
    run.step()
    before = {
        name: p.detach().clone() for o in run.owned.values() for name, p in o.parameters.items()
    }
    first = run.owned["d0"]
    parameter = next(iter(first.parameters.values()))
    handle = parameter.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: torch.full_like(gradient, torch.inf)
    )
    run.step()
    handle.remove()
    assert _scales(run) == {4.0}
    for owned in run.owned.values():
        assert all(torch.equal(p, before[name]) for name, p in owned.parameters.items())
        assert all(p.grad is None for p in owned.parameters.values())
    run.step()
    assert not torch.equal(parameter, before[next(iter(first.parameters))])


def test_other_formats_have_none() -> None:
    assert LossScale.for_format("bfloat16") is None
    assert LossScale.for_format("float32") is None
    run = LocalRun.of(problem_of("sequential"), chain_of(problem_of("sequential"), 3))
    run.step()
    states = [state for owned in run.owned.values() for state in held_by(owned).tensors.values()]
    assert all(LOSS_SCALE not in state for state in states)


def test_the_scale_moves_to_another_plan_and_reaches_a_rank_without_parameters() -> None:
    """Whoever has no state learns of the scale when the first step begins."""
    problem = _problem()
    old, new = _run(problem, 2, 4), _run(problem, 5)
    old.step()
    for owned in old.owned.values():
        assert owned.loss_scale is not None
        owned.loss_scale.state.copy_(torch.tensor([512.0, 3.0]))
    held = {
        name: dict(s) for owned in old.owned.values() for name, s in held_by(owned).tensors.items()
    }
    receiver = next(iter(new.owned.values()))
    for name, parameter in receiver.parameters.items():
        parameter.data = held[name]["value"]
    own = {name: held[name] for name in receiver.parameters}
    load_optimizer_state(
        receiver, {name: {k: v for k, v in s.items() if k != "value"} for name, s in own.items()}
    )
    new.num_steps = 1
    new.step()
    assert _scales(new) == {512.0}
    assert {float(o.loss_scale.state[1]) for o in new.owned.values() if o.loss_scale} == {4.0}


def test_state_dicts_of_the_optimizer_carry_it() -> None:
    def built() -> tuple[MasterWeights, LossScale]:
        optimizer = MasterWeights(
            [nn.Parameter(torch.ones(3).half())], lambda masters: torch.optim.SGD(masters, lr=0.1)
        )
        scale = LossScale()
        optimizer.use(scale)
        return optimizer, scale

    (optimizer, scale), (other, other_scale) = built(), built()
    assert not optimizer.state_dict()["state"]
    scale.update(is_skipped=True)
    other.load_state_dict(optimizer.state_dict())
    assert other_scale.value == scale.value == 2.0**15
    assert other_scale.state is not scale.state


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5), st.sampled_from([1.0, 2.0**126]))
def test_the_scale_is_that_of_torch_after_any_steps(
    skipped: list[bool], interval: int, initial: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_scale, "GROWTH_INTERVAL", interval)
        patch.setattr(loss_scale, "INITIAL_SCALE", initial)
        own = LossScale()
        scaler = torch.amp.GradScaler("cpu", init_scale=initial, growth_interval=interval)
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))])
        for is_skipped in skipped:
            own.update(is_skipped=is_skipped)
            (parameter,) = optimizer.param_groups[0]["params"]
            scaler.scale(torch.zeros(1))
            parameter.grad = torch.full((1,), torch.inf if is_skipped else 0.0)
            scaler.step(optimizer)
            scaler.update()
            assert own.value == scaler.get_scale()
