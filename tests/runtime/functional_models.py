"""Small models that call functions of torch between their modules, as most people write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8
# By model, what it takes.
INPUTS: dict[str, tuple[str, ...]] = {
    "activations": (f"x={WIDTH}:float32",),
    "digits": ("x=1,14,14:float32", "target=:int64<10"),
    "residual": (f"x={WIDTH}:float32",),
    "u_net": ("x=1,16,16:float32", "target=1,16,16:float32"),
    "functions_in_place": (f"x={WIDTH}:float32",),
    "functions_that_split": (f"x={WIDTH}:float32",),
    "function_of_own": (f"x={WIDTH}:float32",),
    "mixture": (f"x={WIDTH}:float32",),
}


class _Lambda(nn.Module):
    def __init__(
        self, forward: Callable[[_Lambda, Tensor], Tensor], parts: dict[str, nn.Module]
    ) -> None:
        super().__init__()
        self._run = forward
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self._run(self, x)


def _linear(number: int) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(number))


def activations() -> nn.Module:
    """`x = relu(fc(x))`, and a parameter of the model itself in between."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        for layer in self.layers:  # type: ignore[union-attr]
            x = F.relu(layer(x) * self.scale)
        return torch.as_tensor(self.end(x))  # type: ignore[operator]

    module = _Lambda(run, {"layers": _linear(4), "end": nn.Linear(WIDTH, 5)})
    module.scale = nn.Parameter(torch.ones(WIDTH))
    return module


def digits() -> nn.Module:
    """The usual network for MNIST: functional activations, pooling, dropout and flattening."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)  # type: ignore[operator]
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)  # type: ignore[operator]
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))  # type: ignore[operator]
        x = F.dropout(x, 0.0, self.training)
        return F.log_softmax(self.fc2(x), dim=1)  # type: ignore[operator]

    return _Lambda(
        run,
        {
            "conv1": nn.Conv2d(1, 4, 3),
            "conv2": nn.Conv2d(4, 8, 3),
            "fc1": nn.Linear(8 * 2 * 2, 16),
            "fc2": nn.Linear(16, 10),
        },
    )


def dropping_functions() -> nn.Module:
    """Dropout as a function between layers."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        for layer in self.layers:  # type: ignore[union-attr]
            x = F.dropout(torch.tanh(layer(x)), 0.3, self.training)
        return torch.as_tensor(self.end(x))  # type: ignore[operator]

    return _Lambda(run, {"layers": _linear(4), "end": nn.Linear(WIDTH, 5)})


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.gelu(self.up(self.norm(x))))
        return result


def residual() -> nn.Module:
    """A residual stream: `h = h + 0.5 * block(h)`."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        x = self.start(x)  # type: ignore[operator]
        for block in self.blocks:  # type: ignore[union-attr]
            x = x + 0.5 * block(x)
        return torch.as_tensor(self.head(self.norm(x)))  # type: ignore[operator]

    return _Lambda(
        run,
        {
            "start": nn.Linear(WIDTH, WIDTH),
            "blocks": nn.ModuleList(_Block() for _ in range(5)),
            "norm": nn.LayerNorm(WIDTH),
            "head": nn.Linear(WIDTH, 5),
        },
    )


def u_net() -> nn.Module:
    """An encoder and a decoder, with a skip from each level to the other side."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:  # type: ignore[union-attr]
            x = F.relu(down(x))
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = F.relu(self.middle(x))  # type: ignore[operator]
        for up in self.up:  # type: ignore[union-attr]
            x = torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1)
            x = F.relu(up(x))
        return torch.as_tensor(self.end(x))  # type: ignore[operator]

    def convolution(inputs: int, outputs: int) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, 3, padding=1)

    return _Lambda(
        run,
        {
            "down": nn.ModuleList(map(convolution, (1, 4, 8), (4, 8, 8))),
            "middle": convolution(8, 8),
            "up": nn.ModuleList(map(convolution, (16, 16, 8), (8, 4, 4))),
            "end": nn.Conv2d(4, 1, 1),
        },
    )


def functions_in_place() -> nn.Module:
    """Functions that write into what they are given, by name, by operator and by index."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers  # type: ignore[misc]
        x = F.relu(first(x), inplace=True)
        y = second(x)
        y += x
        F.relu_(y)
        z = third(y)
        z[:, 0] = y[:, 1]
        rest = torch.zeros(z.shape)
        rest[:, :4] = z[:, 4:]
        w = fourth(z).add_(rest)
        return torch.as_tensor(self.end(w * y))  # type: ignore[operator]

    return _Lambda(run, {"layers": _linear(4), "end": nn.Linear(WIDTH, 5)})


def functions_that_split() -> nn.Module:
    """Functions with several results, of which some are views, and some travel far."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers  # type: ignore[misc]
        a, b = torch.chunk(first(x), 2, dim=-1)
        largest, where = second(torch.cat([b, a], -1)).max(dim=-1, keepdim=True)
        y = third(torch.cat([a, a], -1)) * largest
        mask = torch.ones_like(y).triu()
        z = fourth(y.masked_fill(mask == 0, 0.5))
        z = torch.einsum("bi,bi->bi", z, y.detach()) + where
        return torch.as_tensor(self.end(z + torch.cat([b, b], -1).mT.mT))  # type: ignore[operator]

    return _Lambda(run, {"layers": _linear(4), "end": nn.Linear(WIDTH, 5)})


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        return (x * 2).clamp(max=1.0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:
        return 3 * gradient


def function_of_own() -> nn.Module:
    """A `torch.autograd.Function` between two layers, which nobody may cut."""

    def run(self: _Lambda, x: Tensor) -> Tensor:
        first, second, third, fourth = self.layers  # type: ignore[misc]
        x = F.relu(first(x))
        x = _Clipped.apply(second(x))  # type: ignore[no-untyped-call]
        x = F.relu(third(x)) + x
        return torch.as_tensor(self.end(fourth(x) * x))  # type: ignore[operator]

    return _Lambda(run, {"layers": _linear(4), "end": nn.Linear(WIDTH, 5)})


class _Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.experts = nn.ModuleList(_Block() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        shares = self.gate(x).softmax(-1)
        parts = [shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts)]
        return x + torch.stack(parts).sum(0)


def mixture() -> nn.Module:
    """Blocks whose experts all compute, side by side."""
    return nn.Sequential(_Mixture(), _Mixture(), nn.Linear(WIDTH, 5))
