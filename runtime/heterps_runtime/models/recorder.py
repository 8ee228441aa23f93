"""Records one forward pass on fake tensors: what is called, in which order, and what flows between.

The model's own `forward` runs once under `FakeTensorMode` (shapes, no data). Modules that a plan
may place (*units*) are hooked, and functions that are called between them are seen
(`models.functional_calls`); the rest is *glue*. Every tensor carries the set of outputs of calls
that its value depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves

from heterps_runtime.huggingface.value_checks import without_value_checks
from heterps_runtime.models.fake_tensors import (
    FLOAT_INPUT,
    NO_LABELS,
    VALUE_FREE,
    Labels,
    TensorLabels,
    call_fake,
    parameter_names,
    unit_outputs,
    written_tensors,
)
from heterps_runtime.models.flop_formulas import has_formula
from heterps_runtime.models.functional_calls import FunctionalCalls, FunctionKey
from heterps_runtime.models.random_numbers import draws_numbers
from heterps_runtime.models.recording import (
    Call,
    Recording,
    SharedMemory,
    TensorSpec,
    UnitOutput,
    Use,
    canonical_names,
    entries_of_units,
    select_output,
    units_of,
)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs one forward pass and writes down what happens.

    Attributes:
        fake_mode: The mode that the pass runs under; a backward pass must run under it, too.
        parameter_storages: Names of the parameters, by what identifies their memory.
        input_storages: What identifies the memory of the model's inputs.
        buffer_storages: The same of its buffers.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._units, self._entries = units_of(module), entries_of_units(module)
        self.recording = Recording(units=tuple(self._units))
        self.parameter_storages: dict[int, str] = {}
        self.input_storages: set[int] = set()
        self.buffer_storages: set[int] = set()
        self._module = module
        names = canonical_names(module)
        self._unit_parameters = {
            path: {names[id(parameter)] for parameter in unit.parameters()}
            for path, unit in self._units.items()
        }
        self._labels = TensorLabels()
        self._produced: dict[int, tuple[UnitOutput, int]] = {}
        self._outputs: list[tuple[UnitOutput, Tensor, int]] = []
        # By memory, the call that wrote into it last.
        self._writes: dict[int, int] = {}
        self._functions = FunctionalCalls(self._function)
        self._active: str | None = None
        self._is_function = self._multiplies = self._draws = False
        self._uses: list[Use] = []
        self._seen: set[UnitOutput | str] = set()
        self._count: dict[str, int] = {}

    @property
    def cursor(self) -> int:
        """Number of the call in progress; between two calls, of the next one."""
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
                self._functions.begin()
                with self, inner or nullcontext(), self._functions, without_value_checks():
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
        """What the calls returned in the pass."""
        return {source: tensor for source, tensor, _ in self._outputs}

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from shapes and integers alone: every stage makes its own."""
        return not self._labels.of(tensor)

    def derive(self, result: Tensor, *arguments: Tensor) -> None:
        """Declares that `result` depends on the values of `arguments`."""
        self._labels.set(result, self._labels.of_all(arguments))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Labels the results of one operation."""
        kwargs = kwargs or {}
        self._draws = self._draws or draws_numbers(func, args, kwargs)
        self.recording.is_random = self.recording.is_random or self._draws
        self._multiplies = self._multiplies or has_formula(func)
        result = call_fake(func, args, kwargs)
        if func.namespace == "prim" or torch._C._current_autograd_node() is not None:
            return result
        arguments = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        labels = NO_LABELS
        if func._schema.name not in VALUE_FREE:
            labels = self._labels.of_all(arguments)
        if labels:
            if self._active is not None:
                self._seen |= labels
            else:
                if not self._is_function and unit_outputs(labels):
                    self.recording.hidden.add(func._schema.name)
                self.recording.glue_parameters |= parameter_names(
                    NO_LABELS.union(*map(self._labels.own, arguments))
                )
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._labels.set(tensor, labels)
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
                self._labels.set(fake, frozenset({names[id(parameter)]}))
                self.parameter_storages[fake.untyped_storage()._cdata] = names[id(parameter)]
            state[name] = by_id[id(parameter)]
        for name, buffer in self._module.named_buffers(remove_duplicate=False):
            state[name] = torch.empty(buffer.shape, dtype=buffer.dtype)
            self.buffer_storages.add(state[name].untyped_storage()._cdata)
        return state

    def _fake_input(self, tensor: Tensor) -> Tensor:
        fake = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.input_storages.add(fake.untyped_storage()._cdata)
        self._labels.set(fake, frozenset({FLOAT_INPUT}) if fake.is_floating_point() else NO_LABELS)
        return fake

    def _spread(self, func: Any, args: Any, kwargs: Any, labels: Labels) -> None:
        """Notes the tensors that an operation writes into."""
        for tensor in written_tensors(func, args, kwargs):
            self._writes[tensor.untyped_storage()._cdata] = self.cursor
            self._labels.add(tensor, labels)

    def _hooks(self, path: str, unit: nn.Module) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._active is None:
                self._active, self._functions.is_inside = path, True
                self._enter((args, kwargs))

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            if self._active == path:
                self._active = None
                self._leave(path, unit, output)
                # Not before: what is asked of tensors meanwhile is no call of the model.
                self._functions.is_inside = False

        return enter, leave

    def _enter(self, arguments: Any) -> list[Tensor]:
        """A call begins; the tensors that it is called with."""
        self._uses, self._seen = [], set()
        self._multiplies = self._draws = False
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
        for tensor in tensors:
            self._read(tensor)
        return tensors

    def _read(self, tensor: Tensor) -> None:
        """Notes that `tensor` enters a call or leaves the model."""
        labels = self._labels.of(tensor)
        self._seen |= {label for label in labels if isinstance(label, str)}
        produced = self._produced.get(id(tensor))
        if produced is not None and produced[1] == tensor._version:
            self._uses.append(Use(frozenset({produced[0]}), True))
        elif sources := unit_outputs(labels):
            self._uses.append(Use(sources, False, is_stale=produced is not None))

    def _leave(self, path: str, unit: nn.Module, output: Any) -> None:
        leaves, structure = tree_flatten(output)
        tensors = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)}
        own = self._unit_parameters[path]
        occurrence = self._count[path] = self._count.get(path, 0) + 1
        if not own and not self._labels.of_all(tensors.values()):
            return
        declared = NO_LABELS.union(*(use.sources for use in self._uses))
        if hidden := unit_outputs(self._seen) - declared:
            self._uses.append(Use(hidden, False))
        name = path or type(unit).__name__
        call = Call(
            name=name if occurrence == 1 else f"{name}#{occurrence}",
            path=path,
            occurrence=occurrence,
            kind=type(unit).__name__,
            structure=structure,
            leaves=_specified(leaves),
            uses=tuple(dict.fromkeys(self._uses)),
            parameters=own | parameter_names(self._seen),
            multiplies=self._multiplies,
            entry=self._entries.get(path, ""),
        )
        self._functions.after_unit(self.cursor, output)
        self._append(call, tensors)

    def _function(self, key: FunctionKey, func: Any, args: Any, kwargs: Any) -> Any:
        """A function is called between units with what depends on one."""
        tensors = self._enter((args, kwargs))
        versions = [tensor._version for tensor in tensors]
        self._is_function = True
        try:
            result = func(*args, **kwargs)
        finally:
            self._is_function = False
        first = {id(tensor): i for i, tensor in reversed(list(enumerate(tensors)))}
        written = tuple(i for i in first.values() if tensors[i]._version != versions[i])
        leaves, structure = tree_flatten(result)
        made = {
            i: leaf
            for i, leaf in enumerate(leaves)
            if isinstance(leaf, Tensor) and id(leaf) not in first
        }
        if not written and not unit_outputs(self._labels.of_all(made.values())):
            return result  # a question, or what follows from shapes alone
        everything = [*leaves, *(tensors[i] for i in written)]
        for number, i in enumerate(written):
            made[len(leaves) + number] = tensors[i]
        call = Call(
            name=key.name,
            path="",
            occurrence=0,
            kind=key.name,
            structure=structure,
            leaves=_specified(everything),
            uses=tuple(dict.fromkeys(self._uses)),
            parameters=parameter_names(self._seen),
            function=key,
            passed=tuple((i, first[id(t)]) for i, t in enumerate(leaves) if id(t) in first),
            written=written,
            multiplies=self._multiplies or func is F.scaled_dot_product_attention,
            is_random=self._draws,
        )
        self._functions.mark(list(made.values()))
        self._append(call, made)
        return result

    def _append(self, call: Call, tensors: dict[int, Tensor]) -> None:
        """A call is over; `tensors` are what it made, by leaf."""
        index = self.cursor
        self.recording.calls.append(call)
        for leaf, tensor in tensors.items():
            source = UnitOutput(index, leaf)
            if leaf >= len(call.leaves) - len(call.written):
                self._labels.add(tensor, frozenset({source}))
            self._labels.set(tensor, frozenset({source}))
            self._produced[id(tensor)] = (source, tensor._version)
            self._outputs.append((source, tensor, tensor._version))
        self.recording.sequence_ends.append(torch._C._autograd._get_sequence_nr())

    def _finish(self, output: Tensor) -> None:
        self._uses, self._seen = [], set()
        self._read(output)
        self.recording.output_uses = tuple(self._uses)
        self.recording.output = TensorSpec.of(output)
        if self.recording.calls:
            self.recording.calls[-1].parameters |= parameter_names(self._seen)
        objects: dict[int, list[tuple[UnitOutput, int]]] = {}
        numbers: dict[int, int] = {}
        for source, tensor, version in self._outputs:
            if tensor._version != version:
                self.recording.calls[source.call].overwritten.add(source.leaf)
            number = numbers.setdefault(id(tensor), len(numbers))
            objects.setdefault(tensor.untyped_storage()._cdata, []).append((source, number))
        self.recording.shared_memory = tuple(
            SharedMemory(tuple(found), self._writes[memory])
            for memory, found in objects.items()
            if memory in self._writes and len({number for _, number in found}) > 1
        )


def _specified(leaves: list[Any]) -> tuple[Any, ...]:
    return tuple(TensorSpec.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
