"""Offloading: what autograd saves in a call goes to host memory, and comes back when asked for.

On a GPU, copies go and come on streams of their own, through pinned memory, beside the computation.
What one call saved leaves while the next one computes, which is waited for before a third begins;
on the way back, what the call before saved comes while this one's gradients are computed. So two
calls' worth is on the device at a time, as the memory model counts. What two neighbours save (an
activation's output, which the next call reads) goes once and comes once, as it counts, too. On a
CPU there is one memory: a plain copy stands for the host's, so that a run without a GPU does what a
run with one does.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, UntypedStorage, nn

from heterps_runtime.process.host_copies import Copies, Mark, copies_of
from heterps_runtime.process.memory_ledger import MemoryLedger

# Calls whose tensors leave while another one computes.
_NUM_LEAVING = 1
# Where a tensor's numbers are, what they are, and how often they were changed.
_Key = tuple[object, ...]


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
        # Weak: what autograd lets go is free at once.
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
        number: In the order in which copies are made.
        call: The first that saved it, whose gradients are the last to need it.

    Attributes:
        copy, made, number, call: The same.
        ahead: It, on its device for those that will ask for it.
    """

    def __init__(
        self, tensor: Tensor, copy: Tensor, made: Mark, number: int, call: _SavedCall
    ) -> None:
        self.copy, self.made, self.number, self.call = copy, made, number, call
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


class _Known(NamedTuple):
    """What is in host memory of a tensor, as long as autograd needs it.

    While the tensor's storage lives, no other has its memory.
    """

    storage: weakref.ref[UntypedStorage]
    on_host: weakref.ref[_OnHost]

    def found(self) -> _OnHost | None:
        """It, unless the tensor or the copy are gone."""
        return None if self.storage() is None else self.on_host()


class _Saved(NamedTuple):
    """What autograd keeps of a tensor that a call saved."""

    on_host: _OnHost
    call: _SavedCall
    memory: HostMemory

    def back(self) -> Tensor:
        """The tensor on its device again; one for all that ask while it lives."""
        on_host = self.on_host
        self.memory.ask(self.call)
        found = on_host.on_device()
        if found is None:
            self.memory.bring([on_host])
            found = on_host.on_device()
        assert found is not None
        if on_host.call is self.call:
            on_host.ahead = None
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
        # What the call before saved, and what this one did.
        self._before, self._known = dict[_Key, _Known](), dict[_Key, _Known]()
        self._num_sent = 0

    def begin_pass(self) -> None:
        """A forward pass begins."""
        self._last = None
        self._known.clear()

    @contextmanager
    def saved_here(self) -> Iterator[None]:
        """What autograd saves inside waits in host memory; parameters stay where they are.

        A tensor that several operations save goes there once, those of the call before included.
        """
        self._let_go(_NUM_LEAVING)
        self._before, self._known = self._known, {}
        call = _SavedCall(self._last)
        leaving = _Leaving(call, [], [])

        def pack(tensor: Tensor) -> Tensor | _Saved:
            if _is_of_parameter(tensor):
                return tensor
            return _Saved(self._saved(tensor, leaving), call, self)

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpack):
            yield
        if not call.saved:
            return
        self._last = call
        if self._copies.run_beside:
            self._leaving.append(leaving)

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
                if on_host.call is asked:
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

    def _saved(self, tensor: Tensor, leaving: _Leaving) -> _OnHost:
        """A tensor in host memory, where it may be already."""
        storage = tensor.untyped_storage()
        key = (
            storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(),
            tensor.dtype, tensor._version,
        )  # fmt: skip
        known = self._known.get(key)
        on_host = None if known is None else known.found()
        if on_host is not None:
            return on_host
        known = self._before.get(key)
        on_host = None if known is None else known.found()
        if on_host is None:
            on_host = self._sent(tensor, leaving)
        leaving.call.add(on_host)
        self._known[key] = _Known(weakref.ref(storage), weakref.ref(on_host))
        return on_host

    def _sent(self, tensor: Tensor, leaving: _Leaving) -> _OnHost:
        with _uncounted():
            copy, mark = self._copies.out(tensor)
        self._num_sent += 1
        on_host = _OnHost(tensor, copy, mark, self._num_sent, leaving.call)
        if mark is not None:
            leaving.tensors.append(tensor)
            leaving.marks.append(mark)
        return on_host

    def _let_go(self, count: int) -> None:
        """Of all but the last `count` calls what leaves is waited for, and its memory is free."""
        while len(self._leaving) > count:
            leaving = self._leaving.popleft()
            if leaving.marks:
                self._copies.wait(leaving.marks[-1])
            leaving.tensors.clear()

    def _fetch(self, wanted: list[_OnHost]) -> None:
        missing = [on_host for on_host in wanted if on_host.on_device() is None]
        if not missing:
            return
        copies = [on_host.copy for on_host in missing]
        newest = max(missing, key=lambda on_host: on_host.number)
        tensors, self._arrival = self._copies.back(copies, newest.made)
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


def _unpack(saved: Tensor | _Saved) -> Tensor:
    return saved.back() if isinstance(saved, _Saved) else saved


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
