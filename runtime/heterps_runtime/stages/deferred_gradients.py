"""Deferred weight gradients: the half of a backward pass that nobody waits for.

A zero-bubble schedule (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2) sends the
gradients of a stage's inputs on before it computes those of its weights. Here the backward pass of
a linear layer or convolution computes the first, and leaves the second as a job: the way of
Megatron's weight gradient store. No graph is walked twice, and all other parameters (embeddings,
normalisations) get their gradients at once: there is little to put off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heterps_runtime.models.flop_formulas import is_linear_layer
from heterps_runtime.models.mixed_precision import SharedCopies, autocast_format
from heterps_runtime.process.memory_ledger import MemoryLedger

Key = tuple[str, int]  # stage, micro-batch
Job = Callable[[], None]


class DeferredGradients:
    """The jobs that backward passes have left, by stage and micro-batch.

    Attributes:
        collected: Where backward passes leave jobs now; None where they do all at once.
    """

    collected: ClassVar[list[Job] | None] = None

    def __init__(self) -> None:
        self._jobs: dict[Key, list[Job]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @contextmanager
    def collecting(self, key: Key) -> Iterator[None]:
        """Backward passes inside leave their weight gradients to `compute(key)`."""
        jobs = self._jobs[key] = []
        DeferredGradients.collected = jobs
        try:
            yield
        finally:
            DeferredGradients.collected = None

    def compute(self, key: Key) -> None:
        """Does the jobs of one stage and micro-batch; each frees what it kept."""
        jobs = self._jobs.pop(key)
        jobs.reverse()
        # What was read still requires a gradient: with a graph, the sums would keep it all.
        with torch.no_grad():
            while jobs:
                jobs.pop()()


def defer_weight_gradients(module: nn.Module) -> None:
    """Makes the linear layers and convolutions of a module able to put off weight gradients.

    Layers of other classes stay as they are; so do those whose weights are not their own parameters
    (layers of other stages).
    """
    for part in module.modules():
        if not is_linear_layer(part):
            continue
        if isinstance(part, nn.Conv2d):
            part.__dict__["forward"] = _convolution(part)
        else:
            # The weight of GPT-2's linear layer is (inputs, outputs).
            part.__dict__["forward"] = _linear(part, is_transposed=type(part) is not nn.Linear)


def _linear(part: nn.Module, is_transposed: bool) -> Callable[[Tensor], Tensor]:
    def forward(tensor: Tensor) -> Tensor:
        # Looked up in every call: parameters are replaced where stages share them.
        entered, parameters, used = _formatted(part, tensor)
        return cast(Tensor, _Linear.apply(entered, *parameters, *used, is_transposed))  # type: ignore[no-untyped-call]

    return forward


def _convolution(part: nn.Conv2d) -> Callable[[Tensor], Tensor]:
    def forward(tensor: Tensor) -> Tensor:
        entered, parameters, used = _formatted(part, tensor)
        sizes = part.stride, part.padding, part.dilation, part.groups
        return cast(Tensor, _Convolution.apply(entered, *parameters, *used, *sizes))  # type: ignore[no-untyped-call]

    return forward


_Pair = tuple[nn.Parameter, nn.Parameter | None]


def _formatted(
    part: nn.Module, tensor: Tensor
) -> tuple[Tensor, _Pair, tuple[Tensor | None, Tensor | None]]:
    """What enters, weight and bias, and the copies that stand for these two under autocast."""
    weight, bias = part._parameters["weight"], part._parameters["bias"]
    assert weight is not None
    parameters = weight, bias
    target = autocast_format(tensor)
    if target is None:
        return tensor, parameters, (None, None)
    copies = (
        SharedCopies.copy_of(weight, target),
        None if bias is None else SharedCopies.copy_of(bias, target),
    )
    return tensor.to(target), parameters, copies


def _used(
    weight: Tensor, bias: Tensor | None, weight_copy: Tensor | None, bias_copy: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    return (weight, bias) if weight_copy is None else (weight_copy, bias_copy)


class _Linear(torch.autograd.Function):
    """`y = x W^T + b`, or `y = x W + b` where the weight is transposed."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        own_weight: nn.Parameter,
        own_bias: nn.Parameter | None,
        weight_copy: Tensor | None,
        bias_copy: Tensor | None,
        is_transposed: bool,
    ) -> Tensor:
        weight, bias = _used(own_weight, own_bias, weight_copy, bias_copy)
        ctx.save_for_backward(tensor, weight)
        ctx.parameters, ctx.is_transposed = (own_weight, own_bias), is_transposed
        result: Tensor = F.linear(tensor, weight.t() if is_transposed else weight, bias)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        tensor, weight = _without_graph(ctx.saved_tensors)
        is_transposed, own = ctx.is_transposed, None  # a job that held `ctx` would hold the graph
        if ctx.needs_input_grad[0]:
            own = gradient.matmul(weight.t() if is_transposed else weight)

        def weight_gradient() -> Tensor:
            rows = gradient.reshape(-1, gradient.shape[-1])
            entered = tensor.reshape(-1, tensor.shape[-1])
            pair = (entered, rows) if is_transposed else (rows, entered)
            product: Tensor = pair[0].t().mm(pair[1])
            return product

        def bias_gradient() -> Tensor:
            return cast(Tensor, gradient.reshape(-1, gradient.shape[-1]).sum(dim=0))

        later = _now_or_later(ctx, gradient, weight_gradient, bias_gradient)
        return own, *later, None, None, None


class _Convolution(torch.autograd.Function):
    """A convolution over two dimensions, padded with zeros."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: Tensor,
        own_weight: nn.Parameter,
        own_bias: nn.Parameter | None,
        weight_copy: Tensor | None,
        bias_copy: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> Tensor:
        weight, bias = _used(own_weight, own_bias, weight_copy, bias_copy)
        ctx.save_for_backward(tensor, weight)
        ctx.parameters = own_weight, own_bias
        ctx.sizes = list(stride), list(padding), list(dilation), False, [0, 0], groups
        return F.conv2d(tensor, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        tensor, weight = _without_graph(ctx.saved_tensors)
        sizes = ctx.sizes  # a job that held `ctx` would hold the graph

        def compute(position: int) -> Tensor:
            """The gradient of the input (0) or of the weight (1)."""
            mask = [position == 0, position == 1, False]
            results = torch.ops.aten.convolution_backward(
                gradient, tensor, weight, None, *sizes, mask
            )
            return cast(Tensor, results[position])

        def bias_gradient() -> Tensor:
            return cast(Tensor, gradient.sum(dim=(0, 2, 3)))

        own = compute(0) if ctx.needs_input_grad[0] else None
        later = _now_or_later(ctx, gradient, lambda: compute(1), bias_gradient)
        return own, *later, None, None, None, None, None, None


def _without_graph(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A job that held their graph would keep all tensors that the stage has received."""
    return [tensor.detach() for tensor in tensors]


def _now_or_later(
    ctx: Any,
    gradient: Tensor,
    weight_gradient: Callable[[], Tensor],
    bias_gradient: Callable[[], Tensor],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of weight and bias, in their formats; None for what is left as a job."""
    needed = ctx.needs_input_grad[1:3]
    jobs, parameters = DeferredGradients.collected, ctx.parameters
    if jobs is None:
        weight, bias = parameters
        return (
            weight_gradient().to(weight.dtype) if needed[0] else None,
            bias_gradient().to(bias.dtype) if needed[1] else None,
        )

    def job() -> None:
        for parameter, is_needed, compute in zip(
            parameters, needed, (weight_gradient, bias_gradient), strict=True
        ):
            if is_needed:
                _accumulate(parameter, compute().to(parameter.dtype))

    jobs.append(job)
    if MemoryLedger.active is not None:
        MemoryLedger.active.keep((gradient,))
    return None, None


def _accumulate(parameter: Tensor, gradient: Tensor) -> None:
    if parameter.grad is None:
        parameter.grad = gradient
        if MemoryLedger.active is not None:
            MemoryLedger.active.mark("gradients", (gradient,))
    else:
        parameter.grad += gradient
