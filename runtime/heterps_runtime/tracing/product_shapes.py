"""Shapes of the matrix products that an operation of torch computes, of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TracedProduct:
    """Equal products of one operation: `rows` x `inner` times `inner` x `columns`.

    Attributes:
        count: How many there are.
        factors: Both; None where the second is a weight anyway.
        num_groups: Of an operation in groups, how many there are: `rows` are of all together.
        is_fused: Its operation computes others, too, and what lies between stays in the kernel.
    """

    rows: int
    inner: int
    columns: int
    count: int = 1
    factors: tuple[Tensor, Tensor] | None = None
    num_groups: int = 1
    is_fused: bool = False


def products_of(operation: Any, args: Any, kwargs: Any) -> list[TracedProduct]:
    """The products of one call; none where it is no product, or has a form that is not known.

    Args:
        operation: Overload of an operation.
        args: What it is called with.
        kwargs: The same by name.
    """
    shapes = _SHAPES.get(operation._schema.name)
    return shapes(*args, **kwargs) if shapes is not None else []


def attention_products(
    query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> list[TracedProduct]:
    """Scores and their product with values in one kernel; tensors are (..., T, D)."""
    (*heads, tokens, inner), others = query.shape, key.shape[-2]
    return [
        TracedProduct(rows, inner, columns, prod(heads), factors, is_fused=True)
        for rows, inner, columns, factors in (
            (tokens, inner, others, (query, key)),
            (tokens, others, value.shape[-1], (query, value)),
        )
    ]


def _matrices(first: Tensor, second: Tensor, *_: Any, **__: Any) -> list[TracedProduct]:
    """Two matrices, or batches of them."""
    *batch, rows, inner = first.shape
    return [TracedProduct(rows, inner, second.shape[-1], prod(batch), (first, second))]


def _added(added: Any, *factors: Any, **options: Any) -> list[TracedProduct]:
    return _matrices(*factors, **options)


def _in_groups(first: Tensor, second: Tensor, *_: Any, **__: Any) -> list[TracedProduct]:
    """Rows of `first` lie group after group; which group has how many depends on the sample."""
    if first.dim() == 2 and second.dim() == 3:
        num_groups, inner, columns = second.shape
        return [TracedProduct(first.shape[0], inner, columns, num_groups=num_groups)]
    return _matrices(first, second) if first.dim() == second.dim() == 3 else []


def _matrix_vector(matrix: Tensor, vector: Tensor, *_: Any, **__: Any) -> list[TracedProduct]:
    rows, inner = matrix.shape
    return [TracedProduct(rows, inner, 1, factors=(matrix, vector))]


def _added_matrix_vector(added: Any, *factors: Any, **options: Any) -> list[TracedProduct]:
    return _matrix_vector(*factors, **options)


def _vectors(first: Tensor, second: Tensor) -> list[TracedProduct]:
    return [TracedProduct(1, first.numel(), 1, factors=(first, second))]


def _convolution(
    inputs: Tensor, weight: Tensor, bias: Any, *rest: Any, **__: Any
) -> list[TracedProduct]:
    """Positions x the channels of a group and the kernel; transposed, positions of the input."""
    stride, padding, dilation, is_transposed, _, groups = rest[:6]
    first, second, *kernel = weight.shape
    if is_transposed:
        rows = inputs.shape[0] * prod(inputs.shape[2:])
        return [TracedProduct(rows, first // groups, second * prod(kernel), groups)]
    positions = (
        (size + 2 * pad - step * (width - 1) - 1) // jump + 1
        for size, pad, step, width, jump in zip(
            inputs.shape[2:], padding, dilation, kernel, stride, strict=True
        )
    )
    rows = inputs.shape[0] * prod(positions)
    return [TracedProduct(rows, second * prod(kernel), first // groups, groups)]


def _recurrent(
    inputs: Tensor, to_input: Tensor, to_hidden: Tensor, *_: Any, **__: Any
) -> list[TracedProduct]:
    """Inputs (T, B, I) of all steps at once; what a step hands to the next, step by step."""
    steps, batch, _width = inputs.shape
    return [
        TracedProduct(steps * batch, to_input.shape[1], to_input.shape[0]),
        TracedProduct(batch, to_hidden.shape[1], to_hidden.shape[0], steps),
    ]


_SHAPES: dict[str, Callable[..., list[TracedProduct]]] = {
    f"{namespace}::{name}": shapes
    for namespace, shapes, names in (
        ("aten", _matrices, "mm bmm _int_mm _scaled_mm _scaled_mm_v2"),
        ("aten", _added, "addmm baddbmm addbmm _addmm_activation"),
        ("aten", _in_groups, "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2"),
        ("transformers", _in_groups, "grouped_mm_fallback"),
        ("aten", _matrix_vector, "mv"),
        ("aten", _added_matrix_vector, "addmv"),
        ("aten", _vectors, "dot vdot"),
        ("aten", _convolution, "convolution _convolution convolution_overrideable"),
        ("aten", _recurrent, "mkldnn_rnn_layer"),
    )
    for name in names.split()
} | {
    f"aten::_scaled_dot_product_{kernel}": attention_products
    for kernel in (
        "flash_attention",
        "flash_attention_for_cpu",
        "cudnn_attention",
        "efficient_attention",
    )
}
