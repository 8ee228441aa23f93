"""Models whose own errors read like a lost connection, and come from wherever users have code."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import Tensor, nn

from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.tracing.trace import trace_source
from heterps_runtime.training import batches

# What torch and gloo say when ranks do not find one another.
TEXT = (
    "Timed out waiting for the data loader: Connection closed by peer, Connection reset, Connection"
    " refused, Broken pipe, Socket Timeout, gloo/transport, Connect timeout, Failed to recv"
)
PLACES = ("data", "forward", "backward", "optimizer")


class Imitation(nn.Module):
    """Hands on what it gets, and fails in one place; on real numbers only."""

    def __init__(self, place: str) -> None:
        super().__init__()
        self._place = place

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor or x.is_meta or not torch.is_grad_enabled():
            return x
        if self._place == "forward":
            _fail()
        elif self._place == "backward":
            x = x * 1
            x.register_hook(_fail)  # type: ignore[no-untyped-call]
        elif self._place == "optimizer":
            torch.optim.Optimizer.step = _fail  # type: ignore
            torch.optim.AdamW.step = _fail  # type: ignore
        else:
            batches.make_batch = _fail  # type: ignore  # of the next step
        return x


def _fail(*_: object, **__: object) -> None:
    raise RuntimeError(TEXT)


def _model(place: str) -> nn.Module:
    """Eight layers; the last but one fails."""
    first = [nn.Linear(8, 8) for _ in range(6)]
    return nn.Sequential(*first, Imitation(place), nn.Linear(8, 4))


data, forward, backward, optimizer = (partial(_model, place) for place in PLACES)


@cache
def profile_of(place: str) -> ModelProfile:
    """Of the model that fails there."""
    return trace_source(factory_source(f"{__name__}:{place}", ["x=8:float32"]), place)
