"""Matrix products and kernels of a traced forward pass, by call.

Which factor of a product is a weight is told by what follows from the sample: the inputs, and all
that is computed from them. Parameters, copies of them and what is computed from them alone do not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from heterps_configs.documents.model.matrix_product import Factors, MatrixProduct, merged_products
from heterps_runtime.models.fake_tensors import VALUE_FREE
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.tracing.operation_log import memory_of, tensors_of
from heterps_runtime.tracing.product_shapes import (
    TracedProduct,
    attention_products,
    products_of,
)

# They make a tensor, or another view of one, without a kernel, and are no views by their schema.
_WITHOUT_KERNEL = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "lift", "resize_", "set_"),
    )
)


class ProductLog:
    """What the forward pass multiplies, and how many kernels it launches.

    Of products in groups (experts) every group has equally many rows, as nearly as they divide: the
    shapes are known, but not which expert a token meets.

    Kernels that compute what every stage makes once for all its layers (masks, rotary tables) are
    those of no layer.

    Args:
        batch_size: Samples of the pass.
        recorder: Of the pass, which may not have begun.
    """

    def __init__(self, batch_size: int, recorder: Recorder) -> None:
        self._batch_size, self._recorder = batch_size, recorder
        self._sampled: set[int] = set()
        self._products: dict[int, list[MatrixProduct]] = {}
        self._kernels: dict[int, int] = {}

    def note(self, call: int, operation: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Notes an operation of the forward pass.

        Args:
            call: That it is charged to.
            operation: Overload of torch.
            args: What it is called with.
            kwargs: The same by name.
            result: What it returned.
        """
        read, made = tensors_of(args, kwargs), tensors_of(result)
        if operation._schema.name not in VALUE_FREE and any(map(self._is_sampled, read)):
            self._sampled.update(map(memory_of, made))
        if launches_kernel(operation) and self._is_of_the_layer(operation, read, made):
            self._kernels[call] = self._kernels.get(call, 0) + 1
        for product in products_of(operation, args, kwargs):
            self._note_product(call, product)

    def note_attention(self, call: int, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Notes one kernel that computes scores and their product with values."""
        self._kernels[call] = self._kernels.get(call, 0) + 1
        for product in attention_products(query, key, value):
            self._note_product(call, product)

    def of_calls(self, calls: Iterable[int]) -> tuple[MatrixProduct, ...]:
        """Products of some calls, of one sample; equal ones are one."""
        return merged_products(each for call in calls for each in self._products.get(call, ()))

    def num_kernels(self, calls: Iterable[int]) -> int:
        """How many kernels some calls launch."""
        return sum(self._kernels.get(call, 0) for call in calls)

    def _is_sampled(self, tensor: Tensor) -> bool:
        memory = memory_of(tensor)
        return memory in self._sampled or memory in self._recorder.input_storages

    def _is_of_the_layer(
        self, operation: Any, read: tuple[Tensor, ...], made: tuple[Tensor, ...]
    ) -> bool:
        """False of what every stage makes once; batch norms write into their buffers."""
        if operation._schema.is_mutable and any(
            memory_of(tensor) in self._recorder.buffer_storages for tensor in made
        ):
            return True
        return any(
            self._is_sampled(tensor) or not self._recorder.is_constant(tensor)
            for tensor in (*read, *made)
        )

    def _note_product(self, call: int, product: TracedProduct) -> None:
        factors: Factors = "weight"
        if product.factors is not None:
            are_sampled = tuple(map(self._is_sampled, product.factors))
            if all(are_sampled):
                factors = "activations"
            else:
                product = _with_weight(product, 0 if are_sampled == (False, True) else 1)
        rows, count = self._of_one_sample(product.rows, product.count, factors)
        least, num_larger = divmod(rows, product.num_groups)
        dealt = ((least + 1, num_larger), (least, product.num_groups - num_larger))
        for own_rows, num_groups in dealt:
            shape = own_rows, product.inner, product.columns, count * num_groups
            if all(shape):
                found = dict(zip(("rows", "inner", "columns", "count"), shape, strict=True))
                self._products.setdefault(call, []).append(
                    MatrixProduct.unchecked(**found, factors=factors, is_fused=product.is_fused)
                )

    def _of_one_sample(self, rows: int, count: int, factors: Factors) -> tuple[int, int]:
        """Rows and count of one sample; those of the batch where samples divide neither."""
        size = self._batch_size
        divides_rows, divides_count = rows % size == 0, count % size == 0
        if divides_rows and (factors == "weight" or not divides_count):
            return rows // size, count
        return (rows, count // size) if divides_count else (rows, count)


def launches_kernel(operation: Any) -> bool:
    """Whether an operation of torch computes or copies numbers on a device."""
    makes_tensors = any("Tensor" in str(made.type) for made in operation._schema.returns)
    is_free = operation.is_view or operation._schema.name in _WITHOUT_KERNEL
    return makes_tensors and not is_free


def _with_weight(product: TracedProduct, place: int) -> TracedProduct:
    """The same with the weight as its second factor, and as one product where all share it."""
    assert product.factors is not None
    weight = product.factors[place]
    if place == 0:
        product = replace(product, rows=product.columns, columns=product.rows)
    if weight.dim() == 3 and weight.stride(0) == 0:
        return replace(product, rows=product.rows * product.count, count=1)
    return product
