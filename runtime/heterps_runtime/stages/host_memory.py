"""Offloading: what autograd saves in a call goes to host memory, and comes back when asked for.

On a GPU, copies leave on a stream of their own into pinned memory, so that they run beside the
computation. On a CPU there is one memory: a plain copy stands for the host's, so that a run without
a GPU does what a run with one does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor, nn

from heterps_runtime.process.memory_ledger import MemoryLedger


class _OnHost:
    """A tensor in host memory.

    Args:
        tensor: On the device; it may go when this returns.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._device, self._arrived = tensor.device, None
        self._back: weakref.ref[Tensor] | None = None
        if tensor.is_cuda:
            stream = _side_stream(tensor.device)
            stream.wait_stream(torch.cuda.current_stream(tensor.device))
            with torch.cuda.stream(stream), _uncounted():
                self._copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
                self._copy.copy_(tensor, non_blocking=True)
                # Its memory is not given to others before the copy has been made.
                tensor.record_stream(stream)
            self._arrived = stream.record_event()
        else:
            with _uncounted():
                self._copy = tensor.detach().clone()

    def back(self) -> Tensor:
        """The tensor on its device again; one for all that ask while it lives."""
        found = None if self._back is None else self._back()
        if found is None:
            if self._arrived is not None:
                torch.cuda.current_stream(self._device).wait_event(self._arrived)
            found = self._copy.to(self._device, non_blocking=True, copy=True)
            if MemoryLedger.active is not None:
                MemoryLedger.active.mark("activations", (found,))
            self._back = weakref.ref(found)
        return found


@contextmanager
def saved_on_host() -> Iterator[None]:
    """What autograd saves inside waits in host memory; parameters stay where they are.

    A tensor that several operations save goes there once.
    """
    known: dict[tuple[object, ...], tuple[weakref.ref[Tensor], _OnHost]] = {}

    def pack(tensor: Tensor) -> Tensor | _OnHost:
        if _is_of_parameter(tensor):
            return tensor
        storage = tensor.untyped_storage().data_ptr()
        key = storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version
        entry = known.get(key)
        if entry is None or entry[0]() is None:
            # While the tensor lives, no other has its memory.
            entry = known[key] = weakref.ref(tensor), _OnHost(tensor)
        return entry[1]

    def unpack(saved: Tensor | _OnHost) -> Tensor:
        return saved.back() if isinstance(saved, _OnHost) else saved

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def _is_of_parameter(tensor: Tensor) -> bool:
    """Whether it is a parameter, a view of one, or the copy of one that autocast makes."""
    base = tensor._base if tensor._is_view() else tensor
    if isinstance(base, nn.Parameter):
        return True
    made_by = getattr(base, "grad_fn", None)
    sources = [source for source, _ in made_by.next_functions] if made_by is not None else []
    return (
        type(made_by).__name__ == "ToCopyBackward0"
        and [type(source).__name__ for source in sources] == ["AccumulateGrad"]
        and isinstance(getattr(sources[0], "variable", None), nn.Parameter)
    )


def _uncounted() -> AbstractContextManager[None]:
    """Host memory is none of a device."""
    ledger = MemoryLedger.active
    return nullcontext() if ledger is None else ledger.paused()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
