"""What cannot run on parts of parameters is refused in one line, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.checks import (
    check_elementwise,
    check_same_samples,
    digests,
    without_draws,
)
from heterps_runtime.own_loop.model import source_of
from heterps_runtime.own_loop.plan import specification_of
from heterps_runtime.stages.master_weights import with_master_weights
from tests.runtime.trainer_plans import chain_of_groups

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class _SignOfGradient(torch.optim.Optimizer):
    """A user's own, which treats each number alone."""

    def __init__(self, params: list[nn.Parameter], lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad.sign())


class _ByNorm(_SignOfGradient):
    """Divides by the norm of a whole gradient, as LARS does."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad / parameter.grad.norm())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: torch.optim.NAdam(p), None),
        (lambda p: _SignOfGradient(p, lr=0.1), None),
        (lambda p: _ByNorm(p, lr=0.1), "_ByNorm computes with whole parameters"),
        (lambda p: torch.optim.Adafactor(p), "Adafactor computes with whole parameters"),
        (lambda p: torch.optim.Muon(p), "Muon computes with whole parameters"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS cannot be tried on a part"),
    ],
)
def test_optimizers_of_whole_parameters_are_refused(
    make: Make, message: str | None, dtype: torch.dtype
) -> None:
    optimizer = with_master_weights([nn.Parameter(torch.randn(4, 4, dtype=dtype))], make)
    if message is None:
        check_elementwise(optimizer)
    else:
        with pytest.raises(HeterpsError, match=message):
            check_elementwise(optimizer)


def test_loss_that_draws_random_numbers_is_refused_on_a_group() -> None:
    def noisy(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(nn.functional.dropout(output), target)

    output, target = torch.randn(4, 2), torch.randn(4, 2)
    for _ in range(2):
        expected = nn.functional.mse_loss(output, target)
        assert torch.equal(without_draws(nn.functional.mse_loss)(output, target), expected)
    with pytest.raises(HeterpsError, match="loss: draws random numbers"):
        without_draws(noisy)(output, target)


def test_other_samples_on_another_rank_are_told_and_those_that_nobody_reads_are_not() -> None:
    def batch(seed: int) -> tuple[dict[str, Tensor], Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return {"x": torch.randn(4, 8, generator=generator)}, torch.full((4,), seed)

    first, other, devices = batch(0), batch(1), ("a", "b", "c")
    rows = [
        digests({0: first}, with_target=False),
        digests({1: other}, with_target=False),
        digests({0: (first[0], other[1]), 1: other}, with_target=True),
    ]
    check_same_samples([*rows[:2], digests({0: first, 1: other}, with_target=True)], devices)
    check_same_samples(rows, devices)
    with pytest.raises(
        HeterpsError, match=r"inputs of micro-batch 1 differ .* 1 \(b\) and 2 \(c\)"
    ):
        check_same_samples([*rows[:2], digests({1: first}, with_target=True)], devices)
    with pytest.raises(HeterpsError, match="target of micro-batch 0 differ"):
        check_same_samples([rows[2], digests({0: first}, with_target=True)], devices)


def test_model_that_no_group_can_split_is_refused_with_its_layer() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(64, 8, max_norm=1.0), nn.Linear(8, 8), nn.Linear(8, 64))

    words = torch.zeros(16, 5, dtype=torch.int64)
    source = source_of(model, words, words)
    with pytest.raises(HeterpsError, match=r"layer 0: 0.weight is a table with max_norm"):
        specification_of(chain_of_groups(1, num_layers=3), source, 0)
