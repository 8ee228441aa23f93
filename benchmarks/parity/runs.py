"""One cell of the parity benchmark: a run under a plan, beside training in one process."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks.parity.models import profile_of
from benchmarks.parity.plans import GROUP_SHAPES, on_one_gpu, plan_of, problem_of
from heterps.planning.runnable import with_whole_layers
from heterps_configs.documents.job import Job, Optimizer, Schedule
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.verify import max_difference, reference_training
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.devices import CPU
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint import load_state_dict

TIMEOUT_S = 300.0

Parameters = Mapping[str, Tensor]


class Cell(NamedTuple):
    """What is trained, and how.

    Attributes:
        is_local: All devices in one process; else a process for each.
        torch_device: Where all of them compute.
    """

    model: str
    shape: str
    schedule: Schedule
    optimizer: Optimizer
    is_local: bool = True
    torch_device: str = "cpu"

    def problem_and_plan(self) -> tuple[Problem, Plan]:
        """Of this cell."""
        profile = profile_of(self.model)
        if self.shape in GROUP_SHAPES:
            profile, _ = with_whole_layers(profile, "float32")
        problem = problem_of(profile, self.shape, self.schedule, self.optimizer)
        if self.torch_device != "cpu" and not self.is_local:
            problem = on_one_gpu(problem)
        return problem, plan_of(problem, self.shape)


class _Trained(NamedTuple):
    losses: Sequence[float]
    parameters: Parameters


class Outcome(NamedTuple):
    """How far a run was from training in one process.

    Attributes:
        loss: Largest absolute difference of the steps' losses.
        parameter: Largest absolute difference of a number of any parameter, on any device.
        order_is_identical: Every device carried out exactly its action list in every step that was
            looked at.
        num_actions: Of one step of all devices.
    """

    loss: float
    parameter: float
    order_is_identical: bool
    num_actions: int


def run(cell: Cell, seed: int, num_steps: int, *, in_float64: bool = False) -> Outcome:
    """Trains a cell, and compares losses, parameters and the order of the actions.

    Args:
        cell: What is trained.
        seed: Of parameters and data.
        num_steps: Optimizer steps.
        in_float64: Both sides; only in one process.
    """
    where = torch.device(cell.torch_device)
    return compare(*cell.problem_and_plan(), seed, num_steps, cell.is_local, in_float64, where)


def compare(
    problem: Problem,
    plan: Plan,
    seed: int,
    num_steps: int,
    is_local: bool = True,
    in_float64: bool = False,
    torch_device: torch.device = CPU,
) -> Outcome:
    """See `run`, of any plan."""
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=num_steps, seed=seed), devices=plan.devices
    )
    if in_float64:
        specification = _in_float64(specification)
    expected = _reference(specification, torch_device)
    if is_local:
        return _in_one_process(specification, expected, torch_device)
    assert not in_float64
    return _in_processes(problem, plan, specification, expected)


def _in_float64(specification: RunSpecification) -> RunSpecification:
    """No format of jobs, but all that trains is written for any."""
    job = specification.plan.job.model_copy(update={"dtype": "float64"})
    plan = specification.plan.changed(job=job)
    return specification.changed(plan=plan)


def _in_one_process(
    specification: RunSpecification, expected: _Trained, torch_device: torch.device
) -> Outcome:
    run, found, is_identical = LocalRun(specification, torch_device), list[float](), True
    for _ in expected.losses:
        found.append(run.step())
        is_identical &= all(
            [(r.kind, r.stage, r.micro_batch) for r in executor.records]
            == _listed(specification, device)
            for device, executor in run.executors.items()
        )
    differences = [
        largest_difference(
            own.parameters,
            {
                name: own.slices[name].of(tensor) if name in own.slices else tensor
                for name, tensor in expected.parameters.items()
            },
        )
        for own in run.owned.values()
    ]
    return Outcome(
        max_difference(found, expected.losses),
        max(differences),
        is_identical,
        sum(map(len, specification.actions.values())),
    )


def _listed(specification: RunSpecification, device: str) -> list[tuple[str, str, int]]:
    """A device's action list, as records say it."""
    return [(a.kind, a.stage, a.micro_batch) for a in specification.actions[device]]


def _in_processes(
    problem: Problem, plan: Plan, specification: RunSpecification, expected: _Trained
) -> Outcome:
    """The order is that of the last step, the parameters are those of a checkpoint."""
    num_steps = specification.num_steps
    with tempfile.TemporaryDirectory() as folder:
        directory, saved = Path(folder) / "run", Path(folder) / "checkpoints"
        result = run_plan(
            problem,
            plan,
            RunSettings(
                steps=num_steps,
                seed=specification.seed,
                run_directory=str(directory),
                checkpoint=CheckpointSettings(folder=str(saved), every=num_steps),
                timeout_s=TIMEOUT_S,
            ),
        )
        state = load_state_dict(saved).model
        ranks = [
            json.loads((directory / f"result-{rank}.json").read_text())
            for rank in range(len(plan.devices))
        ]
    return Outcome(
        max_difference(result.losses, expected.losses),
        largest_difference(
            {name: state[name] for name in expected.parameters}, expected.parameters
        ),
        all(
            [tuple(entry[:3]) for entry in rank["trace"]] == _listed(specification, rank["device"])
            for rank in ranks
        ),
        sum(map(len, specification.actions.values())),
    )


def largest_difference(found: Parameters, expected: Parameters) -> float:
    """Largest absolute difference of two sets of tensors; infinite where one is not a number."""
    differences = [
        float((tensor.detach().cpu() - expected[name].cpu()).abs().max())
        for name, tensor in found.items()
    ]
    return max((d if d == d else float("inf") for d in differences), default=0.0)


# Training in one process depends on the samples of each micro-batch, on no plan.
_REFERENCES: dict[tuple[str, int, int, Job, torch.device], _Trained] = {}


def _reference(specification: RunSpecification, torch_device: torch.device) -> _Trained:
    """What training in one process comes to; made once for all plans and schedules."""
    job = specification.plan.job.model_copy(update={"schedule": "gpipe"})
    of_run = specification.profile.name, specification.seed, specification.num_steps
    key = (*of_run, job, torch_device)
    if key not in _REFERENCES:
        losses, module = reference_training(specification, torch_device)
        parameters = {name: p.detach() for name, p in module.parameters_by_name().items()}
        _REFERENCES[key] = _Trained(losses, parameters)
    return _REFERENCES[key]
