"""The memory ledger: which bytes are alive on a device, operation by operation, and what they are.

Every operation's results are seen by a dispatch mode, and the end of their storage by a weak
reference; a storage counts once, however many tensors share it. What an operation needs inside its
kernel is not seen. One step runs under a ledger, of its own: each operation costs some ten
microseconds of the host.

The kinds are exact at every moment in which the accounted sum can rise:

- `parameters` (with buffers such as running statistics, and copies of weights in bfloat16 under
  mixed precision), `optimizer`: all that the device holds.
- `gradients`: of parameters, from the moment in which autograd hands them over.
- `activations`: what a stage keeps from a forward to its backward pass, whatever keeps it: tensors
  saved by autograd, the stage's inputs and its outputs.
- `inputs`: the samples and targets of the step's micro-batches.
- `messages`: receives posted ahead, received and not yet used, sent and not yet known to have
  arrived, and the copies of a gradient all-reduce.
- `workspace`: all else, which dies within its action. It is not part of the accounted sum.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heterps_envs.schedule.actions import Action
from heterps_runtime.process.memory_report import MemoryByKind, MemoryReport

Kind = Literal[
    "parameters", "gradients", "optimizer", "activations", "inputs", "messages", "workspace"
]
# What an action makes and does not say otherwise.
_BORN_AS: dict[str, Kind] = {"receive": "messages", "send": "messages", "reduce": "messages"}
# What is left of an action's workspace when it is over.
_LEFT_AS: dict[str, Kind] = {
    "forward": "activations",
    "backward-input": "activations",
    "backward-weight": "gradients",
    "step": "optimizer",
}


class ActionMemory(NamedTuple):
    """The most that was accounted for during one action, and what was left when it was over."""

    kind: str
    stage: str
    micro_batch: int
    peak: MemoryByKind
    after: MemoryByKind


class _Storage(NamedTuple):
    reference: weakref.ref[Any]
    num_bytes: int


class MemoryLedger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the live bytes of one device while it is entered.

    Attributes:
        actions: What each action of the step held.
        active: The ledger that is entered, if any.
    """

    active: ClassVar[MemoryLedger | None] = None

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.actions: list[ActionMemory] = []
        self._storages: dict[int, _Storage] = {}
        self._kinds: dict[int, Kind] = {}
        self._bytes: dict[Kind, int] = dict.fromkeys(get_args(Kind), 0)
        self._born_as: Kind = "workspace"
        self._born: list[int] = []
        self._recomputed_from: int | None = None
        self._action = Action("step")
        self._accounted = 0
        self._action_peak_bytes, self._action_peak = 0, dict(self._bytes)
        self._peak_bytes, self._peak, self._peak_action = 0, dict(self._bytes), self._action
        self._peak_with_workspace_bytes = 0
        self._largest = dict(self._bytes)

    def __enter__(self) -> MemoryLedger:
        """Counts from here on."""
        super().__enter__()  # type: ignore[no-untyped-call]
        MemoryLedger.active = self
        return self

    def __exit__(self, *error: Any) -> None:
        """Stops counting; what is alive stays known."""
        MemoryLedger.active = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation and counts what it made."""
        if self._recomputed_from is not None:
            self._settle("activations", self._recomputed_from)
        results = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.lift_fresh.default:
            return results  # numbers of the host: time stamps of emulated links, flags
        for result in (results,) if isinstance(results, Tensor) else tree_leaves(results):
            if isinstance(result, Tensor):
                self._see(result)
        if func is torch.ops.aten._to_copy.default and self._is_forward_copy(args[0]):
            self.mark("parameters", (results,))
        return results

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out what is made inside: it is not on the device."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    def mark(self, kind: Kind, tensors: Iterable[Tensor | None]) -> None:
        """Says what some tensors are; those that were not known are counted from now on."""
        for tensor in tensors:
            if tensor is not None:
                self._move(self._see(tensor), kind)

    def keep(self, tensors: Iterable[Tensor | None]) -> None:
        """Counts messages and workspace among `tensors` as activations."""
        for tensor in tensors:
            if tensor is not None:
                key = self._see(tensor)
                if self._kinds[key] in ("messages", "workspace"):
                    self._move(key, "activations")

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """What a layer that is computed again leaves is for its backward pass.

        Torch ends such a pass by an exception, whose frames still hold what the pass no longer
        needs: what is left is seen at the next operation.
        """
        before = len(self._born)
        try:
            yield
        finally:
            self._recomputed_from = before

    @contextmanager
    def born_as(self, kind: Kind) -> Iterator[None]:
        """Counts what is made inside as `kind`."""
        with self, self.making(kind):
            yield

    @contextmanager
    def making(self, kind: Kind) -> Iterator[None]:
        """The same for a part of what it counts already."""
        self._born_as, before = kind, self._born_as
        yield
        self._born_as = before

    @contextmanager
    def during(self, action: Action) -> Iterator[None]:
        """Counts during one action; what is left of its workspace then gets its kind."""
        self._action, self._born, self._recomputed_from = action, [], None
        self._action_peak_bytes = 0
        self._look()
        with self.born_as(_BORN_AS.get(action.kind, "workspace")):
            yield
            self._settle(_LEFT_AS.get(action.kind, "messages"))
        self.actions.append(
            ActionMemory(
                action.kind,
                action.stage,
                action.micro_batch,
                _by_kind(self._action_peak),
                _by_kind(self._bytes),
            )
        )

    def report(self) -> MemoryReport:
        """The step's peak."""
        return MemoryReport(
            device=self.device,
            peak_bytes=self._peak_bytes,
            at_peak=_by_kind(self._peak),
            largest=_by_kind(self._largest),
            peak_with_workspace_bytes=self._peak_with_workspace_bytes,
            peak_action=self._peak_action.kind,
            peak_stage=self._peak_action.stage,
            peak_micro_batch=self._peak_action.micro_batch,
        )

    def _is_forward_copy(self, tensor: Tensor) -> bool:
        """Whether a copy of a parameter is one that autocast makes, which the whole step shares."""
        kind = self._kinds.get(tensor.untyped_storage()._cdata)
        return kind == "parameters" and self._action.kind == "forward"

    def _see(self, tensor: Tensor) -> int:
        """Counts the tensor's storage where it is new; returns its key."""
        storage = tensor.untyped_storage()
        key: int = storage._cdata
        known = self._storages.get(key)
        if known is None or known.reference() is not storage:
            num_bytes = 0 if tensor.device.type == "meta" else storage.nbytes()
            self._storages[key] = _Storage(
                weakref.ref(storage, lambda reference: self._forget(key, reference)), num_bytes
            )
            self._kinds[key] = self._born_as
            self._born.append(key)
            self._count(self._born_as, num_bytes)
        return key

    def _forget(self, key: int, reference: weakref.ref[Any]) -> None:
        known = self._storages.get(key)
        if known is not None and known.reference is reference:
            del self._storages[key]
            self._count(self._kinds.pop(key), -known.num_bytes)

    def _move(self, key: int, kind: Kind) -> None:
        before = self._kinds[key]
        if before != kind:
            num_bytes = self._storages[key].num_bytes
            self._kinds[key] = kind
            self._count(before, -num_bytes)
            self._count(kind, num_bytes)

    def _settle(self, kind: Kind, first: int = 0) -> None:
        """Gives what is left of the action's workspace a kind, from a number of storage on."""
        self._recomputed_from = None
        for key in self._born[first:]:
            if self._kinds.get(key) == "workspace":
                self._move(key, kind)
        del self._born[first:]

    def _count(self, kind: Kind, num_bytes: int) -> None:
        self._bytes[kind] += num_bytes
        self._largest[kind] = max(self._largest[kind], self._bytes[kind])
        if kind != "workspace":
            self._accounted += num_bytes
        if num_bytes > 0:
            self._look()

    def _look(self) -> None:
        total = self._accounted + self._bytes["workspace"]
        self._peak_with_workspace_bytes = max(self._peak_with_workspace_bytes, total)
        if self._accounted > self._action_peak_bytes:
            self._action_peak_bytes, self._action_peak = self._accounted, dict(self._bytes)
        if self._accounted > self._peak_bytes:
            self._peak_bytes, self._peak = self._accounted, dict(self._bytes)
            self._peak_action = self._action


def _by_kind(num_bytes: Mapping[Kind, int]) -> MemoryByKind:
    return MemoryByKind(**{str(kind): value for kind, value in num_bytes.items()})


def reset_on_cuda(parameters: Iterable[Tensor]) -> torch.device | None:
    """Resets torch's peak counter of the parameters' device; None where that is a CPU."""
    device = next((p.device for p in parameters if p.device.type == "cuda"), None)
    if device is not None:
        torch.cuda.reset_peak_memory_stats(device)
    return device


def allocated_on_cuda_bytes(device: torch.device) -> int:
    """What torch has allocated at most on a CUDA device since its counter was reset."""
    return torch.cuda.max_memory_allocated(device)
