"""Clipping by the norm of the whole model, under any plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.run.verify import reference_training
from heterps_runtime.specification.build import build_specification
from heterps_runtime.stages.gradient_norm import clip_gradients, squared_norm
from tests.runtime.small_runs import chain_of, plan_of, problem_of

STEPS = 3


@pytest.mark.parametrize("max_norm", [0.1, 1e3])
def test_it_is_what_torch_does(max_norm: float) -> None:
    torch.manual_seed(0)
    own, theirs = ([nn.Parameter(torch.zeros(n)) for n in (3, 40, 7)] for _ in range(2))
    for a, b in zip(own, theirs, strict=True):
        a.grad = torch.randn_like(a)
        b.grad = a.grad.clone()
    own[1].grad = theirs[1].grad = None
    clip_gradients(own, squared_norm(own), max_norm)
    torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    for a, b in zip(own, theirs, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-6, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tied", "replicated"])
def test_clipped_run_is_that_of_one_process(kind: str) -> None:
    # SGD, whose steps are as long as the gradient: AdamW would hide a wrong factor.
    problem = problem_of("gpt2", optimizer="sgd")
    plan = chain_of(problem, 2, 4)  # embedding and head share a weight
    if kind == "replicated":
        stages = {"a": (0, 2, "d0"), "b": (0, 1, "d1"), "c": (2, 2, "d2"), "e": (3, -1, "d3")}
        plan = plan_of(problem, stages, {("a", "e"): (0, 2), ("b", "c", "e"): (1, 3)})
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=STEPS), devices=plan.devices
    )
    unclipped, _ = reference_training(specification)
    specification = specification.changed(max_gradient_norm=0.05, learning_rate=1.0)
    run = LocalRun(specification)
    losses = [run.step() for _ in range(STEPS)]
    expected, module = reference_training(specification)
    assert losses == pytest.approx(expected, abs=1e-6)
    assert losses[-1] < losses[0]
    assert losses[-1] != pytest.approx(unclipped[-1], abs=1e-4)
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            torch.testing.assert_close(
                parameter, module.parameters_by_name()[name], atol=1e-5, rtol=0
            )


def test_a_step_is_no_longer_than_the_norm_allows() -> None:
    problem = problem_of("sequential", optimizer="sgd")
    plan = chain_of(problem, 3)
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=1), devices=plan.devices
    ).changed(max_gradient_norm=0.01, learning_rate=1.0)
    run = LocalRun(specification)
    before = {
        name: p.detach().clone() for own in run.owned.values() for name, p in own.parameters.items()
    }
    run.step()
    moved = sum(
        float((p.detach() - before[name]).double().square().sum())
        for own in run.owned.values()
        for name, p in own.parameters.items()
    )
    assert moved**0.5 == pytest.approx(0.01, rel=1e-3)
