"""Batches in parts: equal to one batch of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.emulation import HostClock
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.local_turns import start_step, take_turns
from heterps_runtime.own_loop.accumulation import AccumulatingExecutor
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.training.program import TrainingProgram
from tests.runtime.small_runs import plan_of, problem_of
from tests.runtime.trainer_plans import plan_of_cuts
from tests.runtime.trainer_script import model

PARTS = 4  # a power of two: then the mean is exact in bfloat16, too


@pytest.fixture(autouse=True)
def _group_of_its_own() -> Iterator[None]:
    """A trainer in this process starts a process group, which other tests do not expect."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _plan(parts: int, dtype: Dtype) -> Plan:
    job = Job(global_batch_size=4 * parts, micro_batch_size=2, dtype=dtype, optimizer="sgd")
    plan = plan_of_cuts()
    route = plan.pipelines[0].changed(micro_batches=tuple(range(job.num_micro_batches)))
    return plan.changed(job=job, pipelines=(route,))


def _trainer(plan: Plan) -> PipelineTrainer:
    program = TrainingProgram(
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        max_gradient_norm=0.3,
    )
    return PipelineTrainer(model, plan, program)


def _weights(trainer: PipelineTrainer) -> dict[str, Tensor]:
    assert trainer._parts.built is not None
    return {name: p.detach() for name, p in trainer._parts.built.owned.parameters.items()}


@pytest.mark.parametrize("dtype", ["float32", "mixed-bfloat16"])
def test_parts_train_what_one_batch_trains_dropout_included(dtype: Dtype) -> None:
    whole, parts = _trainer(_plan(PARTS, dtype)), _trainer(_plan(1, dtype))
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        inputs = torch.randn(4 * PARTS, 8, generator=generator)
        target = torch.randint(4, (4 * PARTS,), generator=generator)
        expected = whole.step(inputs, target)
        pieces = list(zip(torch.split(inputs, 4), torch.split(target, 4), strict=True))
        losses = [parts.accumulate(*piece) for piece in pieces[:-1]]
        losses.append(parts.step(*pieces[-1]))  # accumulates, and updates
        assert sum(losses) / PARTS == pytest.approx(expected, abs=1e-6)
    assert (parts.num_steps, whole.num_steps) == (2, 2)
    for name, weight in _weights(whole).items():
        torch.testing.assert_close(_weights(parts)[name], weight, atol=1e-6, rtol=1e-5)


def test_update_or_save_out_of_turn_is_one_clear_error(tmp_path: Path) -> None:
    trainer = _trainer(_plan(1, "float32"))
    with pytest.raises(HeterpsError, match="nothing has been accumulated"):
        trainer.update()
    trainer.accumulate(torch.randn(4, 8), torch.randint(4, (4,)))
    with pytest.raises(HeterpsError, match="call update before"):
        trainer.save(tmp_path)
    trainer.update()
    assert trainer.num_steps == 1


def test_a_norm_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(HeterpsError, match="max_gradient_norm: 0; must be above 0"):
        TrainingProgram(loss=nn.functional.cross_entropy, max_gradient_norm=0)


def test_a_program_without_a_loss_is_refused() -> None:
    with pytest.raises(HeterpsError, match="program: has no loss"):
        PipelineTrainer(model, _plan(1, "float32"), TrainingProgram())


@pytest.mark.parametrize("sharded", [(), (LayerRange(first_layer=0, last_layer=7),)])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_replicas_sum_once_behind_the_last_part(
    schedule: str, sharded: tuple[LayerRange, ...]
) -> None:
    """Two passes over one batch have its mean gradient: one step, as without accumulation."""
    problem = problem_of("sequential", schedule=schedule)
    stages = {"a": (0, 2, "d0"), "b": (0, 2, "d1"), "c": (3, -1, "d2")}
    plan = plan_of(problem, stages, {("a", "c"): (0, 2), ("b", "c"): (1, 3)})
    plan = plan.changed(sharded_state=sharded)
    usual, run = LocalRun.of(problem, plan), LocalRun.of(problem, plan)
    expected = usual.step()
    executors = {
        device: AccumulatingExecutor(
            run.specification, device, run.owned[device], run._messengers[device], HostClock()
        )
        for device in run.owned
    }

    def train(executor: AccumulatingExecutor) -> float:
        loss = 0.0
        for _ in range(2):
            batches = micro_batches(run.specification, 0, executor.micro_batches)
            loss = executor.accumulate(batches, 0.0)
        executor.update()
        return loss

    start_step(run._box, list(run._messengers.values()))
    losses = take_turns({d: lambda e=e: train(e) for d, e in executors.items()})  # type: ignore[misc]
    assert sum(losses.values()) == pytest.approx(expected, abs=1e-6)
    for device, owned in usual.owned.items():
        for name, parameter in owned.parameters.items():
            found = run.owned[device].parameters[name]
            torch.testing.assert_close(found, parameter, atol=1e-5, rtol=0)
