"""What one forward pass did: which calls, in which order, and what flows between them.

Made by `models.recorder`; `models.layers` knows what a cut would send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_leaves

from heterps_runtime.models.dtypes import TorchDtype
from heterps_runtime.models.functional_calls import FunctionKey


class UnitOutput(NamedTuple):
    """A tensor by its origin: leaf number `leaf` of what call number `call` returned."""

    call: int
    leaf: int


class TensorSpec(NamedTuple):
    """Shape (with the batch), dtype, and whether a gradient flows back."""

    shape: tuple[int, ...]
    dtype: TorchDtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The specification of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


def zeros_of(spec: TensorSpec, device: torch.device | str) -> Tensor:
    """Zeros that take the memory of one number."""
    return torch.zeros((), dtype=spec.dtype, device=device).expand(spec.shape)


@dataclass(frozen=True)
class Use:
    """A call (or the model's output) reads a tensor that depends on `sources`.

    Attributes:
        is_identity: It is the source itself, untouched by glue.
        is_stale: It is a source that has been written into by another name since.
    """

    sources: frozenset[UnitOutput]
    is_identity: bool
    is_stale: bool = False


@dataclass
class Call:
    """One call of a unit, or of a function of torch that depends on what units made.

    Attributes:
        name: Path of the module, with `#n` from its second call on; unique. Or of the function.
        path: Path of the module.
        occurrence: 1 for the first call of this module in the pass.
        kind: Class of the module, or the function.
        structure, leaves: What it returned, flattened; tensors are replaced by their `TensorSpec`.
            Arguments that a function wrote into are leaves behind those that it returned.
        uses: What it reads.
        parameters: Names of the parameters that it, or glue in front of it, uses.
        overwritten: Leaves that somebody writes into afterwards.
        function: Which call of a function; None for a unit.
        passed: Of a function, leaves that are tensors that it was called with, and which.
        written: Of a function, which of the tensors that it was called with it wrote into.
        multiplies: Whether it has FLOPs: products of matrices, convolutions.
        is_random: Whether a function draws random numbers.
        entry: Of a unit in a list within an entry of a list, the path of that entry.
    """

    name: str
    path: str
    occurrence: int
    kind: str
    structure: TreeSpec
    leaves: tuple[Any, ...]
    uses: tuple[Use, ...]
    parameters: set[str]
    overwritten: set[int] = field(default_factory=set)
    function: FunctionKey | None = None
    passed: tuple[tuple[int, int], ...] = ()
    written: tuple[int, ...] = ()
    multiplies: bool = False
    is_random: bool = False
    entry: str = ""


class SharedMemory(NamedTuple):
    """Tensors of one memory that somebody writes into.

    Attributes:
        objects: Each tensor, with a number; equal numbers are one object of Python.
        last_write: Number of the last call that does, or in front of which glue does.
    """

    objects: tuple[tuple[UnitOutput, int], ...]
    last_write: int


@dataclass
class Recording:
    """What one forward pass did.

    Attributes:
        units: Paths of all units (`units_of`), whether called or not.
        calls: Calls of units and functions in order. What computes from shapes and integers alone
            (masks, positions, rotary tables) is left out: every stage repeats it.
        output_uses: What the model's output depends on.
        output: Its shape and dtype; None until the pass is over.
        sequence_ends: After each call, the number that autograd gives to its next node.
        glue_parameters: Names of parameters that are read outside of every unit.
        is_random: Whether the pass draws random numbers.
        shared_memory: Where several tensors would be written into at once.
        hidden: Operations on what units made that no function of torch is known to call.
    """

    units: tuple[str, ...] = ()
    calls: list[Call] = field(default_factory=list)
    output_uses: tuple[Use, ...] = ()
    output: TensorSpec | None = None
    sequence_ends: list[int] = field(default_factory=list)
    glue_parameters: set[str] = field(default_factory=set)
    is_random: bool = False
    shared_memory: tuple[SharedMemory, ...] = ()
    hidden: set[str] = field(default_factory=set)

    def modules(self, module: nn.Module) -> dict[str, nn.Module]:
        """The units of a module that was recorded, by path."""
        return {path: module.get_submodule(path) for path in self.units}

    def spec(self, source: UnitOutput) -> TensorSpec:
        """Shape and dtype of what a call returned."""
        spec = self.calls[source.call].leaves[source.leaf]
        assert isinstance(spec, TensorSpec)
        return spec


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that a plan may place, by path: entries of lists, and all beside the lists.

    Walks down while a module holds a `ModuleList` or `Sequential`. An entry of a list is a unit,
    unless it is a list itself, holds nothing but one (a stage of a ResNet), or has most of its
    parameters in `ModuleList`s of modules that have parts of their own (a stage of a Swin).
    """
    return {path: unit for path, unit, _ in _units("", module, False, "")}


def entries_of_units(module: nn.Module) -> dict[str, str]:
    """Of units that lie in lists within an entry of a list, the path of that entry."""
    return {path: entry for path, _, entry in _units("", module, False, "") if entry}


def _units(
    path: str, part: nn.Module, is_entry: bool, entry: str
) -> Iterator[tuple[str, nn.Module, str]]:
    """Path, module, and the path of the entry that it lies in."""
    children = list(part.named_children())
    holds_only_a_list = len(children) == 1 and _is_list(children[0][1])
    descend = _is_list(part)
    if is_entry:
        holds_stages = not (_is_list(part) or holds_only_a_list) and _is_mostly_lists(part)
        descend = descend or holds_only_a_list or holds_stages
        entry = path if holds_stages else entry
    elif not descend:
        descend = not path or any(_is_list(inner) for inner in part.modules() if inner is not part)
    if not children or not descend:
        if not _is_list(part):
            yield path, part, entry
        return
    for name, child in children:
        yield from _units(f"{path}.{name}" if path else name, child, _is_list(part), entry)


def _is_list(part: nn.Module) -> bool:
    return isinstance(part, nn.ModuleList | nn.Sequential)


def _is_mostly_lists(part: nn.Module) -> bool:
    """Whether lists of modules with parts of their own hold most of its parameters."""
    lists = [
        child
        for child in part.children()
        if isinstance(child, nn.ModuleList)
        and any(list(inner.children()) for inner in child.children())
    ]
    inner = sum(parameter.numel() for child in lists for parameter in child.parameters())
    return bool(lists) and 2 * inner > sum(parameter.numel() for parameter in part.parameters())


def select_output(output: Any) -> Tensor:
    """The tensor that the loss reads: `logits` if there are any, else the first of floats."""
    if isinstance(output, Mapping) and isinstance(output.get("logits"), Tensor):
        return output["logits"]  # type: ignore[no-any-return]
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            return leaf
    raise ValueError("the model returns no floating-point tensor")


def canonical_names(module: nn.Module) -> dict[int, str]:
    """Name of every parameter by `id`; a tied parameter has its first name."""
    return {id(parameter): name for name, parameter in module.named_parameters()}


def is_chain(module: nn.Module, recording: Recording) -> bool:
    """Whether a pass of the model is a pass of its units, each with what the one before returned.

    That is so where nothing but `nn.Sequential` itself holds the units: its `forward` is known, and
    does nothing else. Every unit must be a call, so that stages have all of them, and return one
    tensor.

    Args:
        module: The model.
        recording: Of it.
    """
    sequence = list(_units_in_sequence("", module))
    calls = recording.calls
    return (
        sequence != [""]
        and sequence == list(recording.units) == [call.path for call in calls]
        and all(call.structure.is_leaf() for call in calls)
        and all(isinstance(call.leaves[0], TensorSpec) for call in calls)
    )


def _units_in_sequence(path: str, module: nn.Module) -> Iterator[str]:
    """Paths in the order in which `nn.Sequential` calls; what it is not sure of is a unit."""
    is_plain = type(module) is nn.Sequential and "forward" not in vars(module)
    hooks = (
        module._forward_hooks, module._forward_pre_hooks,
        module._backward_hooks, module._backward_pre_hooks,
    )  # fmt: skip
    if not is_plain or any(hooks):
        yield path
        return
    for name, part in module._modules.items():
        assert part is not None
        yield from _units_in_sequence(f"{path}.{name}" if path else name, part)
