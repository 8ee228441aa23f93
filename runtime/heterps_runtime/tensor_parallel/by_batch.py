"""Which layers of a model a group can split by samples, found by passes of two and three samples.

A tensor belongs to samples where its first dimension grows with their number. A layer whose tensors
are laid out in another way, or that looks at several samples at once, cannot be split so.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any, NamedTuple

from torch import nn
from torch.utils._pytree import tree_leaves

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.stage import Stage
from heterps_runtime.models.build import build_module
from heterps_runtime.models.layers import Layer
from heterps_runtime.models.recording import Recording, TensorSpec, select_output
from heterps_runtime.tensor_parallel.batch_call import BatchCall, gathered
from heterps_runtime.tensor_parallel.probe import Probe, ProbeError, Shape
from heterps_runtime.tracing.operation_log import memory_of, tensors_of
from heterps_runtime.tracing.trace import TracedSplit, trace_split

_FEW, _MORE = 2, 3
_Key = tuple[str, int]  # path of a unit, and which of its calls


class BatchCalls(NamedTuple):
    """What groups can split of a model by samples.

    Attributes:
        calls: By layer, the calls of its units; a layer that cannot be split so has none.
        reasons: By layer, why it cannot.
    """

    calls: dict[str, tuple[BatchCall, ...]]
    reasons: dict[str, str]

    def can_stand_in_a_run(self, layer: str) -> bool:
        """Whether samples may stay apart in a layer and behind it."""
        return layer in self.calls and not any(
            rows and readers is None
            for call in self.calls[layer]
            for rows, readers in zip(call.made, call.readers, strict=True)
        )

    def of_model(self) -> tuple[BatchCall, ...]:
        """The calls of all layers."""
        return tuple(call for own in self.calls.values() for call in own)


def find_batch_calls(source: ModelSource, dtype: Dtype = "float32") -> BatchCalls:
    """What groups can split by samples; takes three passes on fake tensors, once in a process.

    Raises:
        HeterpsError: The model cannot be built or run.
    """
    return _found(source.model_dump_json(), dtype)


def why_not_by_batch(profile: ModelProfile, found: BatchCalls, stage: Stage) -> str | None:
    """Why a stage's `batch_layers` cannot be run as they are counted; None where they can.

    Args:
        profile: Of the model.
        found: Of the same model.
        stage: Of a plan.
    """
    names = {index: profile.layers[index].name for index in stage.batch_layers}
    for name in names.values():
        if name in found.reasons:
            return f"{profile.name}: layer {name} cannot be split by batch: {found.reasons[name]}"
    own = {call.number for name in names.values() for call in found.calls[name]}
    for index, name in names.items():
        if index + 1 not in names:
            continue
        if any(gathered(found.calls[name], own).values()):
            return (
                f"{profile.name}: the layers {name} and {names[index + 1]} cannot both be split by "
                f"batch: what {name} returns is read as a whole"
            )
    return None


@lru_cache(maxsize=32)
def _found(source_text: str, dtype: Dtype) -> BatchCalls:
    source = ModelSource.model_validate_json(source_text)
    module = build_module(source, dtype=dtype)
    traced = trace_split(module, source, dtype)
    odd = {
        path: reason
        for path, unit in traced.recording.modules(module).items()
        if (reason := _why_not_unit(unit)) is not None
    }
    try:
        passes = [_SampleProbe(source, traced.recording, size, dtype) for size in (_FEW, _MORE)]
    except ProbeError as error:
        reason = f"the model does not run with {_FEW} and {_MORE} samples: {error}"
        return BatchCalls({}, {layer.name: reason for layer in traced.layers})
    return _compared(traced, odd, *passes)


def _compared(
    traced: TracedSplit, odd: dict[str, str], few: _SampleProbe, more: _SampleProbe
) -> BatchCalls:
    calls: dict[str, tuple[BatchCall, ...]] = {}
    reasons: dict[str, str] = {}
    for layer in traced.layers:
        found = []
        for number in layer.calls:
            call = traced.recording.calls[number]
            if call.function is not None:
                continue
            key = call.path, call.occurrence
            made = _batch_call(number, few, more, key)
            reason = odd.get(call.path) or (made if isinstance(made, str) else None)
            if reason is not None:
                reasons[layer.name] = f"{call.path}: {reason}"
                break
            assert isinstance(made, BatchCall)
            if _is_read_inside(made, traced, layer):
                reasons[layer.name] = f"what {call.path} returns is read as a whole inside of it"
                break
            found.append(made)
        else:
            calls[layer.name] = tuple(found)
    return BatchCalls(calls, reasons)


def _is_read_inside(call: BatchCall, traced: TracedSplit, layer: Layer) -> bool:
    """Whether the model's own code puts together what a layer's units return for samples.

    Ranks would put it together first, which nobody counts.
    """
    if layer is traced.layers[-1] and call.number == layer.last_call:
        return False
    leaves = traced.recording.calls[call.number].leaves
    tensors = [index for index, leaf in enumerate(leaves) if isinstance(leaf, TensorSpec)]
    crossing = {source.leaf for source in layer.crossing if source.call == call.number}
    return any(
        rows and readers is None and leaf not in crossing
        for leaf, rows, readers in zip(tensors, call.made, call.readers, strict=True)
    )


def _why_not_unit(unit: nn.Module) -> str | None:
    for part in unit.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            return "it normalises over the samples of a batch"
        if isinstance(part, nn.RNNBase):
            return "recurrent layers hold their parameters in a list of their own"
    return None


def _batch_call(number: int, few: _SampleProbe, more: _SampleProbe, key: _Key) -> BatchCall | str:
    """What of a call belongs to samples; or why that cannot be told."""
    if few.others[key] != more.others[key]:
        return "it is told how many samples there are"
    found = []
    for first, second in (
        (few.taken[key], more.taken[key]),
        (few.returned[key], more.returned[key]),
        (few.drawn[key], more.drawn[key]),
    ):
        if len(first) != len(second):
            return "it does something else with another number of samples"
        rows = [_rows(*pair) for pair in zip(first, second, strict=True)]
        if None in rows:
            return "samples are not the first dimension of what it reads, draws or returns"
        found.append(tuple(own for own in rows if own is not None))
    taken, made, draws = found
    readers = tuple(few.readers(key, leaf) for leaf in range(len(made)))
    return BatchCall(
        number=number, path=key[0], taken=taken, made=made, draws=draws, readers=readers
    )


def _rows(few: Shape, more: Shape) -> int | None:
    """Rows of a sample, from the shapes for two and three of them; 0: it is of no sample."""
    if few == more:
        return 0
    if len(few) != len(more) or few[1:] != more[1:]:
        return None
    rows, rest = divmod(few[0], _FEW)
    return rows if rows and not rest and more[0] == rows * _MORE else None


class _SampleProbe(Probe):  # type: ignore[no-untyped-call]
    """A pass of the whole model, call by call.

    Attributes:
        taken, returned, drawn: Shapes of tensors, by call.
        others: What else each call is told.
    """

    def __init__(
        self, source: ModelSource, recording: Recording, num_samples: int, dtype: Dtype
    ) -> None:
        super().__init__(build_module(source, dtype=dtype), recording.units)
        self._numbers = {
            (call.path, call.occurrence): number
            for number, call in enumerate(recording.calls)
            if call.function is None
        }
        self.taken: dict[_Key, list[Shape]] = {}
        self.returned: dict[_Key, list[Shape]] = {}
        self.drawn: dict[_Key, list[Shape]] = defaultdict(list)
        self.others: dict[_Key, list[Any]] = {}
        self._count: dict[str, int] = defaultdict(int)
        self._memories: dict[_Key, list[int]] = {}
        self._takers: dict[int, set[_Key]] = defaultdict(set)
        self._read_between: set[int] = set()
        # Units that are no calls (tables of angles) are the model's own code.
        self._paths = {path for path, _ in self._numbers}
        for path in self._paths:
            part = self._module.get_submodule(path)
            part.register_forward_pre_hook(self._enters(path), with_kwargs=True)
            part.register_forward_hook(self._leaves(path))
        self._module.register_forward_hook(lambda *told: self._note_output(told[-1]))
        self.run(source, num_samples, dtype)

    def readers(self, key: _Key, leaf: int) -> tuple[int, ...] | None:
        """See `BatchCall.readers`."""
        memory = self._memories[key][leaf]
        if memory in self._read_between:
            return None
        return tuple(sorted(self._numbers[taker] for taker in self._takers[memory]))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        unit = self._unit()
        if unit is None:
            self._read_between.update(map(memory_of, tensors_of(args, kwargs or {})))
        before = sum(map(len, self.seen.draws.values()))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if unit is not None and sum(map(len, self.seen.draws.values())) > before:
            self.drawn[unit].append(tuple(tensors_of(result)[0].shape))
        return result

    def _note_output(self, output: Any) -> None:
        """What the loss reads is read as a whole."""
        self._read_between.add(memory_of(select_output(output)))

    def _unit(self) -> _Key | None:
        """The call that is under way."""
        path = next((own for own in self._stack if own in self._paths), None)
        return None if path is None else (path, self._count[path])

    def _enters(self, path: str) -> Any:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._count[path] += 1
            key, leaves = (path, self._count[path]), tree_leaves((args, kwargs))
            tensors = tensors_of(leaves)
            self.taken[key] = [tuple(tensor.shape) for tensor in tensors]
            self.drawn[key] = []
            self.others[key] = [
                leaf for leaf in leaves if isinstance(leaf, int | float | str | bool | None)
            ]
            for tensor in tensors:
                self._takers[memory_of(tensor)].add(key)

        return enter

    def _leaves(self, path: str) -> Any:
        def leave(module: nn.Module, args: Any, output: Any) -> None:
            key, tensors = (path, self._count[path]), tensors_of(output)
            self.returned[key] = [tuple(tensor.shape) for tensor in tensors]
            self._memories[key] = [memory_of(tensor) for tensor in tensors]

        return leave
