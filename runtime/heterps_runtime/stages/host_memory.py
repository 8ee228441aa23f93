"""Offloading: what autograd saves in a call goes to host memory, and comes back when asked for.

On a GPU, copies go and come on streams of their own, through pinned memory, beside the computation.
What one call saved leaves while the next one computes, which is waited for before a third begins;
on the way back, what the call before saved comes while this one's gradients are computed. So two
calls' worth is on the device at a time, as the memory model counts. On a CPU there is one memory: a
plain copy stands for the host's, so that a run without a GPU does what a run with one does.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heterps_runtime.process.host_copies import Copies, Mark, copies_of
from heterps_runtime.process.memory_ledger import MemoryLedger

# Calls whose tensors leave while another one computes.
_NUM_LEAVING = 1


class _Leaving(NamedTuple):
    """What one call saved, kept on the device until its copies are made."""

    call: _SavedCall
    tensors: list[Tensor]
    marks: list[Mark]


class _SavedCall:
    """All that one call saved.

    Args:
        before: The call of this pass that saved something before it.
    """

    def __init__(self, before: _SavedCall | None) -> None:
        self._before = None if before is None else weakref.ref(before)
        # Weak, as each of them knows its call: what autograd lets go is free at once.
        self._saved: list[weakref.ref[_OnHost]] = []

    @property
    def before(self) -> _SavedCall | None:
        """The call before, while anything of it is needed."""
        return None if self._before is None else self._before()

    @property
    def saved(self) -> list[_OnHost]:
        """What is still needed."""
        return [found for reference in self._saved if (found := reference()) is not None]

    def add(self, on_host: _OnHost) -> None:
        """One more."""
        self._saved.append(weakref.ref(on_host))


class _OnHost:
    """A tensor in host memory.

    Args:
        tensor: On its device.
        copy: It, in host memory.
        made: When the copy is made.
        call: That saved it.
        memory: Of the stage.

    Attributes:
        ahead: It, on its device before anybody asked for it.
    """

    def __init__(
        self, tensor: Tensor, copy: Tensor, made: Mark, call: _SavedCall, memory: HostMemory
    ) -> None:
        self.copy, self.made, self._call, self._memory = copy, made, call, memory
        self.ahead: Tensor | None = None
        # The tensor itself, while somebody has it.
        self._known, self._version = weakref.ref(tensor), tensor._version

    def on_device(self) -> Tensor | None:
        """It, where it is on its device and unchanged."""
        found = self.ahead if self.ahead is not None else self._known()
        return found if found is not None and found._version == self._version else None

    def put(self, tensor: Tensor) -> None:
        """It is, or will be, on its device again."""
        self.ahead, self._known, self._version = tensor, weakref.ref(tensor), tensor._version

    def back(self) -> Tensor:
        """The tensor on its device again; one for all that ask while it lives."""
        self._memory.ask(self._call)
        found = self.on_device()
        if found is None:
            self._memory.bring([self])
            found = self.on_device()
        assert found is not None
        self.ahead = None
        return found


class HostMemory:
    """What the passes of one stage have in host memory.

    Args:
        device: Where the stage computes.
        copies: How tensors go there and back; by default as the device does it.
    """

    def __init__(self, device: torch.device, copies: Copies | None = None) -> None:
        self._copies = copies or copies_of(device)
        self._last: _SavedCall | None = None
        self._asked: weakref.ref[_SavedCall] | None = None
        self._leaving: deque[_Leaving] = deque()
        self._coming: list[Tensor] = []
        self._arrival: Mark = None

    def begin_pass(self) -> None:
        """A forward pass begins."""
        self._last = None

    @contextmanager
    def saved_here(self) -> Iterator[None]:
        """What autograd saves inside waits in host memory; parameters stay where they are.

        A tensor that several operations save goes there once.
        """
        self._let_go(_NUM_LEAVING)
        known: dict[tuple[object, ...], tuple[weakref.ref[Tensor], _OnHost]] = {}
        call = _SavedCall(self._last)
        leaving = _Leaving(call, [], [])

        def pack(tensor: Tensor) -> Tensor | _OnHost:
            if _is_of_parameter(tensor):
                return tensor
            storage = tensor.untyped_storage().data_ptr()
            key = storage, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor._version
            entry = known.get(key)
            if entry is None or entry[0]() is None:
                # While the tensor lives, no other has its memory.
                entry = known[key] = weakref.ref(tensor), self._sent(tensor, leaving)
            return entry[1]

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield
        known.clear()  # autograd keeps the function that packs as long as what it packed
        if leaving.marks:
            self._leaving.append(leaving)
        if call.saved:
            self._last = call

    def ask(self, call: _SavedCall) -> None:
        """The gradients of a call are computed next: all it saved is brought, then the one before.

        On a CPU nothing is brought before it is asked for.
        """
        asked = None if self._asked is None else self._asked()
        if asked is call or not self._copies.run_beside:
            return
        self._asked = weakref.ref(call)
        if asked is not None:
            for on_host in asked.saved:
                on_host.ahead = None  # nobody has asked for it
        if not any(entry.call is call for entry in self._leaving):
            self._let_go(0)
        self._receive()
        self.bring(call.saved)
        if call.before is not None:
            self._fetch(call.before.saved)

    def bring(self, wanted: list[_OnHost]) -> None:
        """Has tensors on their device, for what is computed from here on."""
        self._fetch(wanted)
        self._receive()

    def _sent(self, tensor: Tensor, leaving: _Leaving) -> _OnHost:
        with _uncounted():
            copy, mark = self._copies.out(tensor)
        on_host = _OnHost(tensor, copy, mark, leaving.call, self)
        leaving.call.add(on_host)
        if mark is not None:
            leaving.tensors.append(tensor)
            leaving.marks.append(mark)
        return on_host

    def _let_go(self, count: int) -> None:
        """Of all but the last `count` calls what leaves is waited for, and its memory is free."""
        while len(self._leaving) > count:
            leaving = self._leaving.popleft()
            self._copies.wait(leaving.marks[-1])
            leaving.tensors.clear()

    def _fetch(self, wanted: list[_OnHost]) -> None:
        missing = [on_host for on_host in wanted if on_host.on_device() is None]
        if not missing:
            return
        # Copies are made in their order.
        copies = [on_host.copy for on_host in missing]
        tensors, self._arrival = self._copies.back(copies, missing[-1].made)
        for on_host, tensor in zip(missing, tensors, strict=True):
            on_host.put(tensor)
        # Kept until they are waited for: no other gets their memory while it is being written.
        self._coming += tensors
        if MemoryLedger.active is not None:
            MemoryLedger.active.mark("activations", tensors)

    def _receive(self) -> None:
        if self._coming:
            self._copies.wait(self._arrival)
            self._coming = []


def _unpack(saved: Tensor | _OnHost) -> Tensor:
    return saved.back() if isinstance(saved, _OnHost) else saved


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
