"""How to build a model again: its config or factory, inputs, target and loss."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from heterps_configs.documents.base import Document
from heterps_configs.documents.numbers import Count, Name, PositiveCount
from heterps_configs.huggingface_config import config_problems
from heterps_configs.problems import InconsistentError

MOST_NUMBERS_OF_A_SAMPLE = 2**31

LossName = Literal[
    "cross_entropy", "binary_cross_entropy", "mean_squared_error", "ctc", "contrastive"
]


InputDtype = Literal["int64", "int32", "uint8", "bool", "float32", "bfloat16", "float16"]
_WHOLE = frozenset(("int64", "int32", "uint8", "bool"))


class InputSpecification(Document):
    """One input of the model, or its target: the shape is that of one sample, without the batch.

    Attributes:
        dtype: Floating inputs reach the model in the format of its parameters.
        num_classes: Integer tensors are drawn from `0 .. num_classes - 1`.
        placeholder: The integer that stands for a part of another input, such as an image.
        num_placeholders: How many of them a sample begins with; it has no others.
    """

    name: Name
    shape: tuple[PositiveCount, ...] = ()
    dtype: InputDtype = "float32"
    num_classes: PositiveCount | None = None
    placeholder: Count | None = None
    num_placeholders: Count = 0

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole; a `bool` is 0 or 1."""
        return self.dtype in _WHOLE

    @model_validator(mode="after")
    def _is_of_a_size(self) -> Self:
        if math.prod(self.shape) > MOST_NUMBERS_OF_A_SAMPLE:
            raise InconsistentError(
                [
                    f"shape: {'x'.join(map(str, self.shape))} are {math.prod(self.shape)} numbers "
                    f"in a sample; at most {MOST_NUMBERS_OF_A_SAMPLE} are supported"
                ]
            )
        return self


class ModelSource(Document):
    """How to build the model again: a Hugging Face config, or a factory that returns a module.

    Attributes:
        kind: `huggingface` (needs `config`) or `factory` (needs `factory`).
        factory: `package.module:function`; called without arguments, returns a `torch.nn.Module`.
        config: The content of a Hugging Face `config.json`, with `model_type`.
        architecture: Class of `transformers`, such as `LlamaForCausalLM`.
        inputs: What `forward` takes, by name, in order.
        target: What the loss compares the output with.
        loss: Of each sample: cross entropy and the like are means over its numbers; `ctc`
            (connectionist temporal classification) aligns letters with frames, letter 0 being the
            blank; `contrastive` compares each sample of a micro-batch with all others of it, and
            reads no target.
    """

    kind: Literal["huggingface", "factory"]
    factory: str | None = None
    config: dict[str, Any] | None = None
    architecture: str | None = None
    inputs: tuple[InputSpecification, ...] = Field(min_length=1)
    target: InputSpecification | None = None
    loss: LossName = "cross_entropy"

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        problems = [f"config.{text}" for text in config_problems(self.config or {})]
        if self.kind == "factory" and not self.factory:
            problems.append("factory: is missing; expected package.module:function")
        if self.kind == "huggingface" and not (self.config and self.architecture):
            problems.append("config, architecture: are missing; a Hugging Face model needs both")
        if problems:
            raise InconsistentError(problems)
        return self
