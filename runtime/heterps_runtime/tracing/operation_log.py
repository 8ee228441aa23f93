"""What the operations of a traced pass read and made: from it follows what a group can split.

A tensor is known by its memory: views of one tensor are one. The log keeps all tensors alive, so
that no memory comes twice; fake ones have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

# Neither views nor pointwise, but a number of the result depends on numbers of one place alone.
_PLAIN_NAMES = """
    _to_copy bernoulli_ cat split split_with_sizes unsafe_split native_dropout _unsafe_view
    new_empty empty_like zeros_like ones_like new_zeros clone contiguous
"""
_PLAIN = frozenset(f"aten::{name}" for name in _PLAIN_NAMES.split())
_COPIES = frozenset({"aten::_to_copy", "aten::clone", "aten::contiguous"})
_NORMS = frozenset(
    f"aten::{name}"
    for name in (
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
    )
)
ATTENTION, EMBEDDING, LOG_SOFTMAX = "attention", "aten::embedding", "aten::_log_softmax"


def memory_of(tensor: Tensor) -> int:
    """Identifies the memory of a tensor."""
    return int(tensor.untyped_storage()._cdata)


def num_bytes(tensor: Tensor) -> float:
    """Bytes of a tensor's numbers."""
    return float(tensor.numel() * tensor.element_size())


class Operation(NamedTuple):
    """One operation.

    Attributes:
        call: Number of the call that it is charged to.
        name: Of its schema; `attention` for scaled dot-product attention.
        is_plain: Pointwise, a copy or a view.
        flops: Of the whole batch.
        read, made: Its tensors.
        follows: Of `read`, those that follow from the sample by differentiable steps.
        moved: Bytes of its memory traffic: of each memory that is no parameter.
    """

    call: int
    is_backward: bool
    name: str
    is_plain: bool
    flops: float
    read: tuple[Tensor, ...]
    made: tuple[Tensor, ...]
    follows: tuple[bool, ...]
    moved: tuple[tuple[int, float], ...] = ()

    @property
    def is_batch_norm(self) -> bool:
        """Whether it treats each channel by itself."""
        return self.name in _NORMS

    @property
    def is_copy(self) -> bool:
        """Whether what it makes is what it reads."""
        return self.name in _COPIES


class ExpertsCall(NamedTuple):
    """What a module read and made whose own parameters have a place for each expert.

    Attributes:
        parameters: Their names.
        read: What follows from the sample.
    """

    call: int
    parameters: frozenset[str]
    read: tuple[Tensor, ...]
    made: tuple[Tensor, ...]


@dataclass
class OperationLog:
    """All of one forward and one backward pass.

    Attributes:
        operations: In their order.
        saved: Call, memory and bytes of what is kept for the backward pass.
        shared: The same of what is of no sample.
        deferred: The same of what a zero-bubble schedule holds.
        matrices: The same of what CPUs alone keep of attention with dropout; the memory is that of
            a tensor which a group splits likewise.
        experts: Calls of modules that hold experts.
        alive: Keeps memory from being given out again.
    """

    operations: list[Operation] = field(default_factory=list)
    saved: list[tuple[int, int, float]] = field(default_factory=list)
    shared: list[tuple[int, int, float]] = field(default_factory=list)
    deferred: list[tuple[int, int, float]] = field(default_factory=list)
    matrices: list[tuple[int, int, float]] = field(default_factory=list)
    experts: list[ExpertsCall] = field(default_factory=list)
    alive: list[Any] = field(default_factory=list)

    @property
    def forward(self) -> list[Operation]:
        """Those of the forward pass."""
        return [entry for entry in self.operations if not entry.is_backward]


def is_plain(func: Any) -> bool:
    """Whether an operation of torch is pointwise, a copy or a view."""
    return func.is_view or torch.Tag.pointwise in func.tags or func._schema.name in _PLAIN


def tensors_of(*values: Any) -> tuple[Tensor, ...]:
    """The tensors in arguments or results."""
    return tuple(leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
