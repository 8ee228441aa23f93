"""Training under a plan beside training in one process: losses, parameters, order of actions."""

from __future__ import annotations

from functools import cache

import torch

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.run.verify import max_difference, reference_training
from tests.runtime.small_runs import chain_of, problem_of

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
STEPS = 2
LOSS_LIMIT, PARAMETER_LIMIT = 1e-5, 1e-4


@cache
def problem_with(model: str, schedule: Schedule, sizes: tuple[int, ...]) -> Problem:
    """A small problem with stated micro-batches."""
    # Plain SGD: AdamW turns the rounding of a small gradient into a step of the usual length.
    return problem_of(
        model,
        schedule=schedule,
        optimizer="sgd",
        global_batch_size=sum(sizes),
        micro_batch_size=max(sizes),
        unequal_micro_batch_sizes=sizes,
    )


@cache
def _reference(
    model: str, sizes: tuple[int, ...]
) -> tuple[list[float], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    problem = problem_with(model, "gpipe", sizes)
    run = LocalRun.of(problem, chain_of(problem))
    losses, module = reference_training(run.specification.changed(num_steps=STEPS))
    parameters = {name: p.detach() for name, p in module.parameters_by_name().items()}
    return losses, parameters, module.buffers_by_name()


def check_parity(problem: Problem, plan: Plan) -> LocalRun:
    """Trains under a plan; losses, parameters and orders must be those that they should be."""
    losses, parameters, _ = _reference(problem.profile.name, problem.job.micro_batch_sizes)
    run, found = LocalRun.of(problem, plan), []
    for _ in range(STEPS):
        found.append(run.step())
        for device, executor in run.executors.items():
            listed = [(a.kind, a.stage, a.micro_batch) for a in run.specification.actions[device]]
            assert [(r.kind, r.stage, r.micro_batch) for r in executor.records] == listed
    assert max_difference(found, losses) < LOSS_LIMIT
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            own = owned.slices.get(name)
            expected = parameters[name] if own is None else own.of(parameters[name])
            difference = float((parameter.detach() - expected).abs().max())
            assert difference < PARAMETER_LIMIT, name
    return run


def check_buffers(problem: Problem, run: LocalRun) -> None:
    """Running statistics are those of one process, where no stage has replicas."""
    _, _, expected = _reference(problem.profile.name, problem.job.micro_batch_sizes)
    for owned in run.owned.values():
        for module in owned.modules.values():
            for name, buffer in module.buffers_by_name().items():
                torch.testing.assert_close(buffer, expected[name], msg=name)
