"""Deferred weight gradients: the same sums, and nothing kept behind them."""

from __future__ import annotations

import torch
from torch import nn

from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.stages.deferred_gradients import DeferredGradients, defer_weight_gradients


def test_put_off_gradients_are_those_of_an_ordinary_pass_and_keep_no_graph() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    entered = torch.randn(5, 3, requires_grad=True)
    model(entered).sum().backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    defer_weight_gradients(model)
    deferred = DeferredGradients()
    with deferred.collecting(("s0", 0)):
        model(entered * 1).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    deferred.compute(("s0", 0))
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        assert gradient is not None
        torch.testing.assert_close(parameter.grad, gradient)
        assert not parameter.grad.requires_grad


def test_normalisations_and_embeddings_are_not_put_off() -> None:
    assert is_linear_layer(nn.Linear(2, 2))
    assert is_linear_layer(nn.Conv2d(1, 1, 3, padding=1))
    assert not is_linear_layer(nn.LayerNorm(2))
    assert not is_linear_layer(nn.Embedding(2, 2))
    assert not is_linear_layer(nn.Conv2d(1, 1, 3, padding="same"))
