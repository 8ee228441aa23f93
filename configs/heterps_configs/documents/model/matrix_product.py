"""Matrix products of a layer: their shapes say how well a device computes them.

In a file a product is a short text, such as `2 x 2048x4096x11008`; a mapping of its fields is read,
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import GetJsonSchemaHandler, model_serializer, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import PositiveCount

Factors = Literal["weight", "activations"]

_PATTERN = (
    r"(?P<is_fused>fused )?(?P<factors>activations )?((?P<count>\d+) x )?"
    r"(?P<rows>\d+)x(?P<inner>\d+)x(?P<columns>\d+)"
)
_TEXT = re.compile(_PATTERN)


class MatrixProduct(Document):
    """Equal products of a forward pass of one sample: `rows` x `inner` times `inner` x `columns`.

    A convolution counts as the product that computes it: positions of its output, the input
    channels of a group times the size of its kernel, the output channels of a group.

    Attributes:
        rows: Of the first factor: tokens of a sample, positions of an image.
        inner: What is summed over.
        columns: Of the second factor.
        count: How many of them a forward pass of one sample computes: heads of an attention, groups
            of a convolution, experts, steps of a recurrent layer.
        factors: `weight`: the second factor is a parameter; m samples make m times the rows.
            `activations`: both follow from the sample; m samples make m times as many products.
        is_fused: Computed inside of a fused kernel, as by flash attention: what lies between it and
            the next product never goes through memory.
    """

    rows: PositiveCount
    inner: PositiveCount
    columns: PositiveCount
    count: PositiveCount = 1
    factors: Factors = "weight"
    is_fused: bool = False

    @property
    def flops(self) -> float:
        """Of all `count`, one sample; a multiply-add is two."""
        return 2.0 * self.rows * self.inner * self.columns * self.count

    @property
    def short_text(self) -> str:
        """As in a file: `fused activations 32 x 2048x128x2048`."""
        words = ("fused ", "activations ", f"{self.count} x ")
        shown = (self.is_fused, self.factors == "activations", self.count > 1)
        prefix = "".join(word for word, is_shown in zip(words, shown, strict=True) if is_shown)
        return f"{prefix}{self.rows}x{self.inner}x{self.columns}"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        if not isinstance(data, str):
            return data
        found = _TEXT.fullmatch(data)
        if found is None:
            raise PydanticCustomError(
                "matrix_product",
                "must be ROWSxINNERxCOLUMNS, as in 2 x 2048x4096x11008 or "
                "fused activations 32 x 2048x128x2048",
            )
        numbers = {name: found[name] or 1 for name in ("rows", "inner", "columns", "count")}
        factors = "activations" if found["factors"] else "weight"
        return {**numbers, "factors": factors, "is_fused": bool(found["is_fused"])}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        fields = handler(core_schema)
        text = {"type": "string", "pattern": f"^{_PATTERN}$".replace("?P<", "?<")}
        return {"anyOf": [text, fields]}

    @model_serializer
    def _as_text(self) -> str:
        return self.short_text


def merged_products(products: Iterable[MatrixProduct]) -> tuple[MatrixProduct, ...]:
    """Equal products as one with their sum of counts, each where the first of them was."""
    counts: dict[MatrixProduct, int] = {}
    for product in products:
        one = product.changed_unchecked(count=1)
        counts[one] = counts.get(one, 0) + product.count
    return tuple(one.changed_unchecked(count=count) for one, count in counts.items())
