"""A forward pass of a stage: which calls of the model compute, which replay, and where it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only, tree_unflatten
from torch.utils.checkpoint import checkpoint

from heterps_runtime.models.functional_calls import FunctionalCalls, FunctionKey
from heterps_runtime.models.recording import (
    Call,
    Recording,
    TensorSpec,
    UnitOutput,
    is_chain,
    zeros_of,
)
from heterps_runtime.process.memory_ledger import MemoryLedger
from heterps_runtime.stages.batch_norm import normalisations, unchanged_running_statistics
from heterps_runtime.stages.host_memory import HostMemory
from heterps_runtime.tensor_parallel.sample_part import SamplePart

CPU = torch.device("cpu")


class _StageDoneError(Exception):
    """Ends the forward pass after the stage's last unit; never leaves this module."""


class FunctionObserver(Protocol):
    """Is told of the functions that the stage calls between its units."""

    def enter(self, number: int | None, arguments: object) -> None:
        """Call `number` begins."""
        ...

    def leave(self, number: int | None, output: object) -> None:
        """Call `number` has returned."""
        ...


class StagePass:
    """Steers one forward pass: which calls compute, which replay, and where it ends.

    Attributes:
        collected: Outputs of the stage's own calls that cross its back cut.
        is_chain: Whether the stage is its calls, one after the other, and nothing else
            (`run_chain`).
        observer: Sees functions of the stage, if set; the pass has to run functions for it.
    """

    observer: FunctionObserver | None = None

    def __init__(
        self,
        module: nn.Module,
        recording: Recording,
        own: range,
        wanted: frozenset[UnitOutput],
        recomputed: frozenset[int],
        offloaded: frozenset[int] = frozenset(),
        samples: SamplePart | None = None,
        device: torch.device = CPU,
    ) -> None:
        self.collected: dict[UnitOutput, Tensor] = {}
        self._wanted, self._recomputed, self._offloaded = wanted, recomputed, offloaded
        # Only after these calls is there anything to do.
        self._collected_calls = {source.call for source in wanted} | {own.stop - 1}
        self._own, self._is_last = own, own.stop == len(recording.calls)
        self._numbers = {
            (call.path, call.occurrence): number
            for number, call in enumerate(recording.calls)
            if call.function is None
        }
        self._functions = {
            call.function: number
            for number, call in enumerate(recording.calls)
            if call.function is not None
        }
        self._mode = FunctionalCalls(self._function)
        self._is_watched = False
        self._zeros: dict[tuple[TensorSpec, torch.device], Tensor] = {}
        self._count: dict[str, int] = {}
        self._inside = False
        self._recording = recording
        self._normalisations = normalisations(module)
        self._draw: Callable[[int], None] | None = None
        self._arrived: dict[UnitOutput, Tensor] = {}
        self._watches_functions = self._must_watch()
        units = recording.modules(module)
        self._samples = samples
        self._host_memory = HostMemory(device)
        is_plain = samples is None and not recomputed | offloaded
        self.is_chain = is_plain and is_chain(module, recording)
        self._chain = [
            (number, units[recording.calls[number].path]) for number in own if self.is_chain
        ]
        for path, unit in units.items():
            if any(path == known for known, _ in self._numbers):
                unit.forward = self._gate(path, unit, unit.forward)

    def run(
        self,
        call_arguments: tuple[tuple[Tensor, ...], dict[str, Tensor]],
        module: nn.Module,
        recording: Recording,
        arrived: dict[UnitOutput, Tensor],
        draw: Callable[[int], None] | None = None,
    ) -> Any:
        """The model's output where the stage is the last one, else None.

        Args:
            call_arguments: Of the model's `forward`.
            module: The model.
            recording: Of a pass with as many samples.
            arrived: What was received.
            draw: Starts the random numbers of a part of the pass; None where none are drawn.
        """
        self.collected = {}
        self._draw = draw
        self._count, self._inside, self._recording = {}, False, recording
        self._host_memory.begin_pass()
        self._arrived = {
            source: self._as_input(source, tensor) for source, tensor in arrived.items()
        }
        args, kwargs = call_arguments
        self._is_watched = self._watches_functions or (
            self.observer is not None and bool(self._functions)
        )
        if self._is_watched:
            self._mode.begin()
        try:
            with self._mode if self._is_watched else nullcontext():
                return module(*args, **kwargs)
        except _StageDoneError:
            return None
        finally:
            self._arrived, self._draw = {}, None

    def run_chain(
        self, tensor: Tensor, recording: Recording, draw: Callable[[int], None] | None = None
    ) -> Tensor:
        """What `run` computes, without the model around the stage's calls: the last one's output.

        Args:
            tensor: The model's input, or what was received.
            recording: Of a pass with as many samples.
            draw: See `run`.
        """
        front = self._own.start - 1
        self._recording = recording
        if front >= 0:
            tensor = self._as_input(UnitOutput(front, 0), tensor)
        self._inside = True
        try:
            for number, unit in self._chain:
                if draw is not None:
                    draw(2 * number)
                tensor = unit(tensor)
        finally:
            self._inside = False
        return tensor

    def _must_watch(self) -> bool:
        """Whether functions between units matter: some are replayed, sent, or draw numbers."""
        ends_in = self._own.stop - 1
        return any(
            number < self._own.start
            or self._recording.calls[number].is_random
            or (number == ends_in and not self._is_last)
            or any(source.call == number for source in self._wanted)
            for number in self._functions.values()
        )

    def _as_input(self, source: UnitOutput, tensor: Tensor) -> Tensor:
        overwritten = source.leaf in self._recording.calls[source.call].overwritten
        return tensor.clone() if overwritten else tensor

    def _gate(self, path: str, unit: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **kwargs: Any) -> Any:
            forward = inner
            if self._inside:
                return forward(*args, **kwargs)
            occurrence = self._count[path] = self._count.get(path, 0) + 1
            number = self._numbers.get((path, occurrence))
            if number is None:
                return forward(*args, **kwargs)
            if number not in self._own:
                output = self._replay(number)
                if self._is_watched:
                    self._mode.after_unit(number, output)
                if self._draw is not None:
                    self._draw(2 * number + 1)
                return output
            if self._draw is not None:
                self._draw(2 * number)
            if self._samples is not None:
                forward = self._samples.around(number, unit, forward)
            if number in self._recomputed:
                # Torch puts back the state of the generator before it calls `forward` again.
                output = self._run_recomputed(forward, args, kwargs)
            elif number in self._offloaded:
                with self._host_memory.saved_here():
                    output = self._run(forward, args, kwargs)
            else:
                output = self._run(forward, args, kwargs)
            if self._is_watched:
                self._mode.after_unit(number, output)
            if self._draw is not None:
                # The model's own code after the call runs on other stages as well.
                self._draw(2 * number + 1)
            if not self._is_last and number in self._collected_calls:
                self._collect(number, output)
            return output

        return gated

    def _run(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._inside = True
        is_paused = self._is_watched and self._mode.pause()
        try:
            self._mode.is_inside = True
            return forward(*args, **kwargs)
        finally:
            self._inside = self._mode.is_inside = False
            if is_paused:
                self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _function(self, key: FunctionKey, function: Any, args: Any, kwargs: Any) -> Any:
        """A function of torch between units: runs, or replays in front of the stage."""
        number = self._functions.get(key)
        if number is None:
            return function(*args, **kwargs)
        call = self._recording.calls[number]
        if number < self._own.start:
            output = self._replay_function(number, call, (args, kwargs))
            self._mode.mark(output)
            return output
        if call.is_random and self._draw is not None:
            self._draw(2 * number)
        if self.observer is not None:
            self.observer.enter(number, (args, kwargs))
        output = function(*args, **kwargs)
        if self.observer is not None:
            self.observer.leave(number, output)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        written = [tensors[position] for position in call.written]
        self._mode.mark([output, written])
        if not self._is_last and number in self._collected_calls:
            self._collect(number, [*tree_leaves(output), *written])
        return output

    def _replay_function(self, number: int, call: Call, arguments: Any) -> Any:
        """What a function in front of the stage returned; it writes what was received."""
        tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
        num_returned = len(call.leaves) - len(call.written)
        for leaf, position in enumerate(call.written, num_returned):
            self._mode.mark(tensors[position])
            if (arrived := self._arrived.get(UnitOutput(number, leaf))) is not None:
                tensors[position].copy_(arrived)
        device, passed = next(iter(self._arrived.values())).device, dict(call.passed)
        leaves = [
            tensors[passed[index]]
            if index in passed
            else self._leaf(call, UnitOutput(number, index), leaf, device)
            for index, leaf in enumerate(call.leaves[:num_returned])
        ]
        return tree_unflatten(leaves, call.structure)

    def _run_recomputed(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that keeps its inputs only; the backward pass calls `forward` once more."""
        # What the call, or one after it, writes into must be what it was the second time.
        is_overwritten = any(call.overwritten for call in self._recording.calls)

        def run() -> Any:
            inputs = args, kwargs
            if is_overwritten:
                inputs = tree_map_only(Tensor, torch.clone, inputs)
            if not _is_backward():
                return self._run(forward, *inputs)
            with ExitStack() as stack:
                if MemoryLedger.active is not None:
                    stack.enter_context(MemoryLedger.active.recomputing())
                if self._normalisations:
                    stack.enter_context(unchanged_running_statistics(self._normalisations))
                return self._run(forward, *inputs)

        return checkpoint(run, use_reentrant=False)

    def _replay(self, number: int) -> Any:
        """What a call in front of the stage returned, with the received tensors in their places."""
        call = self._recording.calls[number]
        assert number < self._own.start, f"{call.name} is called after the stage"
        device = next(iter(self._arrived.values())).device
        if call.structure.is_leaf():
            # One tensor, as most calls return: a stage far back replays dozens of them.
            return self._leaf(call, UnitOutput(number, 0), call.leaves[0], device)
        leaves = [
            self._leaf(call, UnitOutput(number, index), leaf, device)
            for index, leaf in enumerate(call.leaves)
        ]
        return tree_unflatten(leaves, call.structure)

    def _leaf(self, call: Call, source: UnitOutput, leaf: Any, device: torch.device) -> Any:
        if not isinstance(leaf, TensorSpec):
            return leaf
        if source in self._arrived:
            return self._arrived[source]
        if source.leaf in call.overwritten:
            return zeros_of(leaf, device).contiguous()
        if not self._is_watched:
            return _shared_zeros(leaf, device)
        # What is marked belongs to this pass alone.
        key = leaf, device
        if key not in self._zeros:
            self._zeros[key] = zeros_of(leaf, device)
        return self._zeros[key]

    def _collect(self, number: int, output: Any) -> None:
        for index, leaf in enumerate(tree_leaves(output)):
            if UnitOutput(number, index) in self._wanted:
                self.collected[UnitOutput(number, index)] = leaf
        if number == self._own.stop - 1:
            raise _StageDoneError


@lru_cache(maxsize=256)
def _shared_zeros(spec: TensorSpec, device: torch.device) -> Tensor:
    """Zeros that nobody writes into."""
    return zeros_of(spec, device)


def _is_backward() -> bool:
    return torch._C._current_autograd_node() is not None
