"""Measures the workspace of each layer's passes: bytes that they need only while they run.

On a GPU the caching allocator counts. On a CPU the storages that operations return are added up;
what a kernel needs inside is not seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heterps_runtime.profiling.observed_stage import ObservedStage, Pass

Spans = list[tuple[int, float, float]]


def peak_bytes(
    stage: ObservedStage, run: Callable[[], Pass], run_backward: Callable[[Pass], Pass]
) -> dict[int, float]:
    """Bytes for each layer, by its index: the larger one of its forward and its backward pass.

    Args:
        stage: The stage. Its parameters have gradients already, so that none is made.
        run: One forward pass.
        run_backward: Its backward pass.
    """
    observe = _observe_cuda if stage.is_cuda else _observe_cpu
    with observe(stage) as forward:
        made = run()
    with observe(stage) as backward:
        run_backward(made)
    found = dict.fromkeys(stage.layer_range, 0.0)
    # What a forward pass leaves behind is kept; a backward pass begins with all that is kept.
    for spans, kept in ((forward, 1), (backward, 0)):
        for index, start_end, peak in _with_ends(spans):
            found[index] = max(found[index], peak - start_end[kept])
    return found


def _with_ends(spans: Spans) -> Iterator[tuple[int, tuple[float, float], float]]:
    """(layer, (bytes at its start, bytes at its end), peak); the last span only closes the list."""
    for (index, at_start, peak), (_, at_end, _) in pairwise(spans):
        yield index, (at_start, at_end), peak


@contextmanager
def _observe_cuda(stage: ObservedStage) -> Iterator[Spans]:
    """Spans: layer, allocated bytes at its start, the most until the next one."""
    spans: Spans = []

    def close() -> float:
        if spans:
            index, at_start, _ = spans[-1]
            spans[-1] = index, at_start, float(torch.cuda.max_memory_allocated(stage.device))
        torch.cuda.reset_peak_memory_stats(stage.device)
        return float(torch.cuda.memory_allocated(stage.device))

    stage.on_layer = lambda index, tensors: spans.append((index, close(), 0.0))
    try:
        yield spans
        spans.append((-1, close(), 0.0))
    finally:
        stage.on_layer = None


@contextmanager
def _observe_cpu(stage: ObservedStage) -> Iterator[Spans]:
    """The same by adding up storages; bytes are counted from the pass's start."""
    spans: Spans = []
    live = _LiveBytes()

    def close() -> float:
        if spans:
            index, at_start, _ = spans[-1]
            spans[-1] = index, at_start, live.peak
        live.peak = live.now
        return live.now

    stage.on_layer = lambda index, tensors: spans.append((index, close(), 0.0))
    try:
        with live:
            yield spans
        spans.append((-1, close(), 0.0))
    finally:
        stage.on_layer = None


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations made and that are still alive.

    Attributes:
        now: Bytes at this moment.
        peak: The most since somebody set it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak = 0.0, 0.0
        self._known: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation and counts what it made."""
        before = {
            leaf.untyped_storage()._cdata
            for leaf in tree_leaves((args, kwargs))
            if isinstance(leaf, Tensor)
        }
        results = func(*args, **(kwargs or {}))
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.untyped_storage()._cdata not in before:
                self._see(result.untyped_storage())
        return results

    def _see(self, storage: torch.UntypedStorage) -> None:
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def forget(reference: weakref.ref[Any]) -> None:
            del self._known[key]
            self.now -= num_bytes

        self._known[key] = weakref.ref(storage, forget)
        self.now += num_bytes
        self.peak = max(self.peak, self.now)
