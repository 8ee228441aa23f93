"""Dropout and frozen layers: what is learned does not depend on the plan."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.models.random_numbers import random_numbers
from heterps_runtime.run.verify import max_difference, reference_training
from tests.runtime.small_runs import chain_of, problem_of

STEPS = 3


@pytest.mark.slow
@pytest.mark.parametrize("cuts", [(), (1,), (3,), (2, 4, 6), (1, 2, 5)])
@pytest.mark.parametrize("recomputes", [False, True])
def test_dropout_is_the_same_under_every_plan(cuts: tuple[int, ...], recomputes: bool) -> None:
    problem = problem_of("dropping", global_batch_size=14, optimizer="sgd")
    plan = chain_of(problem, *cuts)
    if recomputes:
        stages = (s.changed(recompute_layers=tuple(s.layers)) for s in plan.stages)
        plan = plan.changed(stages=tuple(stages))
    run = LocalRun.of(problem, plan)
    specification = run.specification.changed(num_steps=STEPS)
    expected, module = reference_training(specification)
    assert max_difference([run.step() for _ in range(STEPS)], expected) < 1e-6
    parameters = module.parameters_by_name()
    for owned in run.owned.values():
        for name, parameter in owned.parameters.items():
            torch.testing.assert_close(parameter, parameters[name], atol=1e-6, rtol=1e-5)


def test_frozen_layers_have_no_optimizer_state_and_get_no_gradient_messages() -> None:
    problem = problem_of("dropping", optimizer="adamw")
    run = LocalRun.of(problem, chain_of(problem, 2))
    before = {name: p.clone() for name, p in run.owned["d0"].parameters.items()}
    run.step()
    assert run.owned["d0"].optimizer is None
    for name, parameter in run.owned["d0"].parameters.items():
        assert torch.equal(parameter, before[name])


def test_other_steps_and_micro_batches_draw_other_masks() -> None:
    def mask(*key: int) -> torch.Tensor:
        with random_numbers((key[0], key[1], key[2]), torch.device("cpu")) as draw:
            draw(0)
            return nn.functional.dropout(torch.ones(64))

    assert torch.equal(mask(0, 1, 2), mask(0, 1, 2))
    assert (
        len({tuple(mask(*key).tolist()) for key in ((0, 1, 2), (1, 1, 2), (0, 2, 2), (0, 1, 3))})
        == 4
    )


def test_the_generator_of_the_program_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with random_numbers((0, 0, 0), torch.device("cpu")):
        torch.rand(5)
    assert torch.equal(torch.rand(2), expected)
