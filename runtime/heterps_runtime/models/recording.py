"""One forward pass on fake tensors: what is called, in which order, and what flows between.

The model's own `forward` runs once under `FakeTensorMode` (shapes, no data). Modules that a plan
may place (*units*) are hooked; what happens between two units is *glue*. Every tensor carries the
set of unit outputs that its value depends on: `models.layers` knows what a cut would send.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves

from heterps_runtime.models.dtypes import TorchDtype
from heterps_runtime.models.fake_operations import call_fake
from heterps_runtime.models.random_numbers import draws_numbers

FLOAT_INPUT = "<float input>"

# Operations whose result has the shape of their argument, but not its values.
_VALUE_FREE = frozenset(
    f"aten::{name}"
    for name in (
        *(f"{prefix}_like" for prefix in ("empty", "zeros", "ones", "full", "rand", "randn")),
        *(f"new_{suffix}" for suffix in ("empty", "zeros", "ones", "full", "empty_strided")),
        "randint_like",
    )
)


class UnitOutput(NamedTuple):
    """A tensor by its origin: leaf number `leaf` of what unit call number `call` returned."""

    call: int
    leaf: int


Labels = frozenset[UnitOutput | str]
_NOTHING: Labels = frozenset()


class TensorSpec(NamedTuple):
    """Shape (with the batch), dtype, and whether a gradient flows back."""

    shape: tuple[int, ...]
    dtype: TorchDtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The specification of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)


@dataclass(frozen=True)
class Use:
    """A unit (or the model's output) reads a tensor that depends on `sources`.

    Attributes:
        is_identity: It is the source itself, untouched by glue.
    """

    sources: frozenset[UnitOutput]
    is_identity: bool


@dataclass
class Call:
    """One call of a unit.

    Attributes:
        name: Path of the module, with `#n` from its second call on; unique.
        path: Path of the module.
        occurrence: 1 for the first call of this module in the pass.
        kind: Class of the module.
        structure, leaves: What it returned, flattened; tensors are replaced by their `TensorSpec`.
        uses: What it reads.
        parameters: Names of the parameters that it, or glue in front of it, uses.
        overwritten: Leaves that somebody writes into afterwards.
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


@dataclass
class Recording:
    """What one forward pass did.

    Attributes:
        calls: Unit calls in order. Units that compute from shapes and integers alone (masks,
            positions, rotary tables) are left out: every stage repeats them.
        output_uses: What the model's output depends on.
        output: Its shape and dtype; None until the pass is over.
        sequence_ends: After each call, the number that autograd gives to its next node.
        glue_parameters: Names of parameters that are read outside of every unit.
        is_random: Whether the pass draws random numbers.
    """

    calls: list[Call] = field(default_factory=list)
    output_uses: tuple[Use, ...] = ()
    output: TensorSpec | None = None
    sequence_ends: list[int] = field(default_factory=list)
    glue_parameters: set[str] = field(default_factory=set)
    is_random: bool = False

    def spec(self, source: UnitOutput) -> TensorSpec:
        """Shape and dtype of a unit's output."""
        spec = self.calls[source.call].leaves[source.leaf]
        assert isinstance(spec, TensorSpec)
        return spec


def units_of(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that a plan may place, by path: entries of lists, and all beside the lists.

    Walks down while a module holds a `ModuleList` or `Sequential`. An entry of a list is a unit,
    unless it is a list itself or holds nothing but one (a stage of a ResNet).
    """
    units: dict[str, nn.Module] = {}

    def is_list(entry: nn.Module) -> bool:
        return isinstance(entry, nn.ModuleList | nn.Sequential)

    def walk(path: str, entry: nn.Module, is_entry: bool) -> None:
        children = list(entry.named_children())
        holds_only_a_list = len(children) == 1 and is_list(children[0][1])
        holds_list = any(is_list(inner) for inner in entry.modules() if inner is not entry)
        descend = is_list(entry) or (holds_only_a_list if is_entry else holds_list or not path)
        if not children or not descend:
            if not is_list(entry):
                units[path] = entry
            return
        for name, child in children:
            walk(f"{path}.{name}" if path else name, child, is_list(entry))

    walk("", module, False)
    return units


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


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs one forward pass and writes down what happens.

    Attributes:
        fake_mode: The mode that the pass runs under; a backward pass must run under it, too.
        parameter_storages: Identify the memory of the parameters.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.recording = Recording()
        self.parameter_storages: set[int] = set()
        self._module = module
        self._units = units_of(module)
        names = canonical_names(module)
        self._unit_parameters = {
            path: {names[id(parameter)] for parameter in unit.parameters()}
            for path, unit in self._units.items()
        }
        self._alive: list[Any] = []
        self._labels: dict[int, Labels] = {}
        self._aliases: dict[int, set[int]] = {}
        self._produced: dict[int, tuple[UnitOutput, int]] = {}
        self._outputs: list[tuple[UnitOutput, Tensor, int]] = []
        self._active: str | None = None
        self._uses: list[Use] = []
        self._seen: set[UnitOutput | str] = set()
        self._count: dict[str, int] = {}

    @property
    def cursor(self) -> int:
        """Number of the unit call in progress; between two calls, of the next one."""
        return len(self.recording.calls)

    def run(
        self,
        args: tuple[Tensor, ...],
        kwargs: dict[str, Tensor],
        inner: AbstractContextManager[Any] | None = None,
    ) -> Tensor:
        """The forward pass; the arguments are meta tensors.

        Args:
            args: Positional arguments of the model.
            kwargs: Keyword arguments of the model.
            inner: Entered around the forward pass alone.

        Returns:
            The model's (fake) output.
        """
        handles = []
        for path, unit in self._units.items():
            enter, leave = self._hooks(path, unit)
            handles.append(unit.register_forward_pre_hook(enter, with_kwargs=True, prepend=True))
            handles.append(unit.register_forward_hook(leave))
        try:
            with self.fake_mode:
                state = self._fake_state()
                fake_args = tuple(self._fake_input(tensor) for tensor in args)
                fake_kwargs = {name: self._fake_input(t) for name, t in kwargs.items()}
                with self, inner or nullcontext():
                    output = torch.func.functional_call(
                        self._module, state, fake_args, fake_kwargs, tie_weights=False
                    )
        finally:
            for handle in handles:
                handle.remove()
        chosen = select_output(output)
        self._finish(chosen)
        return chosen

    def output_tensors(self) -> dict[UnitOutput, Tensor]:
        """What the units returned in the pass."""
        return {source: tensor for source, tensor, _ in self._outputs}

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from shapes and integers alone: every stage makes its own."""
        return not self._of(tensor)

    def derive(self, result: Tensor, *arguments: Tensor) -> None:
        """Declares that `result` depends on the values of `arguments`."""
        self._set(result, frozenset().union(*(self._of(tensor) for tensor in arguments)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Labels the results of one operation."""
        kwargs = kwargs or {}
        self.recording.is_random = self.recording.is_random or draws_numbers(func, args, kwargs)
        result = call_fake(func, args, kwargs)
        if func.namespace == "prim" or torch._C._current_autograd_node() is not None:
            return result
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        labels = _NOTHING
        if func._schema.name not in _VALUE_FREE:
            labels = labels.union(*(self._of(tensor) for tensor in arguments))
        if labels:
            if self._active is not None:
                self._seen |= labels
            else:
                self.recording.glue_parameters |= _parameter_names(
                    frozenset().union(*(self._labels.get(id(t), _NOTHING) for t in arguments))
                )
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._set(tensor, labels)
        if func._schema.is_mutable and labels:
            self._spread(func, args, kwargs, labels)
        return result

    def _fake_state(self) -> dict[str, Tensor]:
        """Fake parameters and buffers by name; tied parameters share one tensor."""
        names, state, by_id = canonical_names(self._module), {}, dict[int, Tensor]()
        for name, parameter in self._module.named_parameters(remove_duplicate=False):
            if id(parameter) not in by_id:
                fake = torch.empty(parameter.shape, dtype=parameter.dtype)
                by_id[id(parameter)] = fake.requires_grad_(parameter.requires_grad)
                self._set(fake, frozenset({names[id(parameter)]}))
                self.parameter_storages.add(fake.untyped_storage()._cdata)
            state[name] = by_id[id(parameter)]
        for name, buffer in self._module.named_buffers(remove_duplicate=False):
            state[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
        return state

    def _fake_input(self, tensor: Tensor) -> Tensor:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        self._set(fake, frozenset({FLOAT_INPUT}) if fake.is_floating_point() else _NOTHING)
        return fake

    def _of(self, tensor: Tensor) -> Labels:
        found = self._labels.get(id(tensor))
        if found is not None:
            return found
        aliases = self._aliases.get(tensor.untyped_storage()._cdata, ())
        return _NOTHING.union(*(self._labels[alias] for alias in aliases))

    def _set(self, tensor: Tensor, labels: Labels) -> None:
        self._alive.append(tensor)
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._labels[id(tensor)] = labels
        self._aliases.setdefault(storage._cdata, set()).add(id(tensor))

    def _spread(self, func: Any, args: Any, kwargs: Any, labels: Labels) -> None:
        """A write into a tensor changes every tensor that shares its memory."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor):
                    for alias in self._aliases.get(tensor.untyped_storage()._cdata, ()):
                        self._labels[alias] |= labels

    def _hooks(self, path: str, unit: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._active is None:
                self._active = path
                self._enter(args, kwargs)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self._active == path:
                self._active = None
                self._leave(path, unit, output)

        return enter, leave

    def _enter(self, args: Any, kwargs: Any) -> None:
        self._uses, self._seen = [], set()
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._read(tensor)

    def _read(self, tensor: Tensor) -> None:
        """Notes that `tensor` enters a unit or leaves the model."""
        labels = self._of(tensor)
        self._seen |= {label for label in labels if isinstance(label, str)}
        produced = self._produced.get(id(tensor))
        if produced is not None and produced[1] == tensor._version:
            self._uses.append(Use(frozenset({produced[0]}), True))
        elif sources := _unit_outputs(labels):
            self._uses.append(Use(sources, False))

    def _leave(self, path: str, unit: nn.Module, output: Any) -> None:
        leaves, structure = tree_flatten(output)
        tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        own = self._unit_parameters[path]
        occurrence = self._count[path] = self._count.get(path, 0) + 1
        if not own and not any(self._of(tensor) for tensor in tensors.values()):
            return
        declared = _NOTHING.union(*(use.sources for use in self._uses))
        if hidden := _unit_outputs(self._seen) - declared:
            self._uses.append(Use(hidden, False))
        index = self.cursor
        name = path or type(unit).__name__
        self.recording.calls.append(
            Call(
                name=name if occurrence == 1 else f"{name}#{occurrence}",
                path=path,
                occurrence=occurrence,
                kind=type(unit).__name__,
                structure=structure,
                leaves=tuple(
                    TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves
                ),
                uses=tuple(dict.fromkeys(self._uses)),
                parameters=own | _parameter_names(self._seen),
            )
        )
        for leaf, tensor in tensors.items():
            source = UnitOutput(index, leaf)
            self._set(tensor, frozenset({source}))
            self._produced[id(tensor)] = (source, tensor._version)
            self._outputs.append((source, tensor, tensor._version))
        self.recording.sequence_ends.append(torch._C._autograd._get_sequence_nr())

    def _finish(self, output: Tensor) -> None:
        self._uses, self._seen = [], set()
        self._read(output)
        self.recording.output_uses = tuple(self._uses)
        self.recording.output = TensorSpec.of(output)
        if self.recording.calls:
            self.recording.calls[-1].parameters |= _parameter_names(self._seen)
        for source, tensor, version in self._outputs:
            if tensor._version != version:
                self.recording.calls[source.call].overwritten.add(source.leaf)


def _unit_outputs(labels: Any) -> frozenset[UnitOutput]:
    return frozenset(label for label in labels if isinstance(label, UnitOutput))


def _parameter_names(labels: Any) -> set[str]:
    return {label for label in labels if isinstance(label, str) and label != FLOAT_INPUT}
