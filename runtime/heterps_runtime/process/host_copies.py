"""Copies between a device and its host's memory, beside the computation where there are two."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

Mark = Any  # the end of some copies: an event of a GPU, None where they are made at once


class Copies(Protocol):
    """How tensors go to host memory and come back.

    Attributes:
        run_beside: Whether copies are made while the device computes.
    """

    run_beside: bool

    def out(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        """A copy in host memory, and when it is made: until then the tensor must live."""
        ...

    def back(self, copies: Sequence[Tensor], made: Mark) -> tuple[list[Tensor], Mark]:
        """Tensors on the device, and when they are there: until then they must live.

        Args:
            copies: In host memory.
            made: When the last of the copies is made.
        """
        ...

    def wait(self, mark: Mark) -> None:
        """What the device computes from here on comes after those copies."""
        ...


class _OneMemory:
    """On a CPU: a plain copy stands for the host's."""

    run_beside = False

    def out(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        return tensor.detach().clone(), None

    def back(self, copies: Sequence[Tensor], made: Mark) -> tuple[list[Tensor], Mark]:
        return [copy.clone() for copy in copies], None

    def wait(self, mark: Mark) -> None:
        """They are made."""


class _HostLink:
    """Of a GPU: one stream for each direction, pinned memory on the host."""

    run_beside = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def out(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._out):
            copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
            copy.copy_(tensor.detach(), non_blocking=True)
        return copy, self._out.record_event()

    def back(self, copies: Sequence[Tensor], made: Mark) -> tuple[list[Tensor], Mark]:
        # Memory of the stream that computes: what had it before is done before it is written.
        tensors = [torch.empty_like(copy, device=self._device) for copy in copies]
        self._in.wait_stream(torch.cuda.current_stream(self._device))
        self._in.wait_event(made)
        with torch.cuda.stream(self._in):
            for tensor, copy in zip(tensors, copies, strict=True):
                tensor.copy_(copy, non_blocking=True)
        return tensors, self._in.record_event()

    def wait(self, mark: Mark) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)


@cache
def copies_of(device: torch.device) -> Copies:
    """Those of a device; its streams are shared by all stages on it."""
    return _HostLink(device) if device.type == "cuda" else _OneMemory()
