"""What autograd saves goes to host memory and comes back ahead of its use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import Tensor, nn

from heterps_runtime.process.host_copies import Copies, Mark, copies_of
from heterps_runtime.stages.host_memory import HostMemory

CPU = torch.device("cpu")
WIDTH, NUM_CALLS = 8, 5


class Beside:
    """Copies of a device that makes them when they are waited for, as late as is allowed."""

    run_beside = True

    def __init__(self) -> None:
        self.log: list[str] = []
        self._open: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._number = 0

    def out(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        copy = torch.full_like(tensor, float("nan"))
        self.log.append("out")
        return copy, self._begin([(copy, tensor.detach())])

    def back(self, copies: Sequence[Tensor], made: Mark) -> tuple[list[Tensor], Mark]:
        self._finish(made)
        tensors = [torch.full_like(copy, float("nan")) for copy in copies]
        self.log.append(f"back {len(copies)}")
        return tensors, self._begin(list(zip(tensors, copies, strict=True)))

    def wait(self, mark: Mark) -> None:
        self.log.append("wait")
        self._finish(mark)

    def _begin(self, pairs: list[tuple[Tensor, Tensor]]) -> int:
        self._number += 1
        self._open[self._number] = pairs
        return self._number

    def _finish(self, mark: int) -> None:
        for number in [number for number in self._open if number <= mark]:
            for target, source in self._open.pop(number):
                # Written behind autograd's back, as a copy engine does.
                target.data.copy_(source.data)


class OneMemory:
    """Copies of a CPU, counted."""

    run_beside = False

    def __init__(self) -> None:
        self.log: list[str] = []

    def out(self, tensor: Tensor) -> tuple[Tensor, Mark]:
        self.log.append("out")
        return copies_of(CPU).out(tensor)

    def back(self, copies: Sequence[Tensor], made: Mark) -> tuple[list[Tensor], Mark]:
        self.log.append(f"back {len(copies)}")
        return copies_of(CPU).back(copies, made)

    def wait(self, mark: Mark) -> None:
        pass


def _layers() -> nn.ModuleList:
    torch.manual_seed(0)
    calls = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(NUM_CALLS)]
    return nn.ModuleList(calls)


def _forward(layers: nn.ModuleList, inputs: Tensor, memory: HostMemory | None) -> Tensor:
    if memory is None:
        for layer in layers:
            inputs = layer(inputs)
        return inputs
    memory.begin_pass()
    for layer in layers:
        with memory.saved_here():
            inputs = layer(inputs)
    return inputs


def _gradients(copies: Copies | None, num_passes: int = 3) -> list[Tensor]:
    """Of passes that are all in flight at once, as under GPipe; copies None: nothing leaves."""
    layers = _layers()
    memory = None if copies is None else HostMemory(CPU, copies)
    batches = torch.randn(num_passes, 4, WIDTH, generator=torch.Generator().manual_seed(1))
    outputs = [_forward(layers, batch, memory) for batch in batches]
    for output in outputs:
        output.square().sum().backward()  # type: ignore[no-untyped-call]
    return [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("make", [Beside, lambda: copies_of(CPU)])
def test_gradients_are_those_of_passes_that_keep_everything(make: type[Beside]) -> None:
    for found, expected in zip(_gradients(make()), _gradients(None), strict=True):
        assert torch.equal(found, expected)


def test_what_the_call_before_saved_is_fetched_before_it_is_asked_for() -> None:
    copies = Beside()
    memory = HostMemory(CPU, copies)
    inputs = torch.randn(4, WIDTH, requires_grad=True)
    output = inputs
    memory.begin_pass()
    fetches: list[int] = []

    def count(gradient: Tensor) -> None:
        fetches.append(len([entry for entry in copies.log if entry.startswith("back")]))

    for _ in range(NUM_CALLS):
        with memory.saved_here():
            output = output.square()  # saves its input alone
        output.register_hook(count)  # type: ignore[no-untyped-call]
    copies.log.clear()
    output.sum().backward()  # type: ignore[no-untyped-call]
    # Each hook runs before its call's tensor is asked for: the call after has fetched it already.
    # The last two calls' tensors have not left, and the first one's is the test's own.
    assert fetches == [0, 0, 1, 2, 2]


def test_two_calls_at_most_leave_at_a_time() -> None:
    copies, most = Beside(), []
    memory = HostMemory(CPU, copies)
    memory.begin_pass()
    inputs = torch.randn(4, WIDTH)
    for layer in _layers():
        with memory.saved_here():
            inputs = layer(inputs)
        most.append(len(memory._leaving))
    assert max(most) == 2
    assert most[-1] == 2


@pytest.mark.parametrize("make", [Beside, OneMemory])
def test_what_two_neighbours_save_goes_and_comes_once(make: type[Beside | OneMemory]) -> None:
    copies, layers = make(), _layers()
    memory = HostMemory(CPU, copies)
    output = _forward(layers, torch.randn(4, WIDTH), memory)
    # What enters the first call, and what each returns: the next one reads it.
    assert copies.log.count("out") == NUM_CALLS + 1
    output.sum().backward()  # type: ignore[no-untyped-call]
    brought = sum(int(entry.split()[1]) for entry in copies.log if entry.startswith("back"))
    assert brought <= NUM_CALLS + 1


def test_a_neighbour_saves_a_tensor_that_was_changed_in_between_anew() -> None:
    def gradients(memory: HostMemory | None) -> list[Tensor]:
        first, second = (torch.full((4,), value, requires_grad=True) for value in (2.0, 3.0))
        factor = torch.full((4,), 5.0)
        calls: list[AbstractContextManager[None]] = [nullcontext(), nullcontext()]
        if memory is not None:
            memory.begin_pass()
            calls = [memory.saved_here() for _ in range(2)]
        with calls[0]:
            product = first * (factor if memory is not None else factor.clone())
        with torch.no_grad():
            factor.fill_(7.0)
        with calls[1]:
            product = product + second * factor
        product.sum().backward()  # type: ignore[no-untyped-call]
        return [leaf.grad for leaf in (first, second) if leaf.grad is not None]

    for found, expected in zip(gradients(HostMemory(CPU)), gradients(None), strict=True):
        assert torch.equal(found, expected)


def test_a_tensor_that_is_changed_after_it_was_saved_comes_back_as_it_was() -> None:
    memory, weight = HostMemory(CPU, copies_of(CPU)), torch.ones(4, requires_grad=True)
    factor = torch.full((4,), 2.0)
    memory.begin_pass()
    with memory.saved_here():
        product = weight * factor
    with torch.no_grad():
        factor.fill_(7.0)
    product.sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_computes_the_same_with_everything_away() -> None:
    device = torch.device("cuda:0")
    layers = _layers().to(device)
    inputs = torch.randn(4, WIDTH, device=device)
    _forward(layers, inputs, None).sum().backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in layers.parameters()]
    kept = [gradient.clone() for gradient in gradients if gradient is not None]
    layers.zero_grad()
    _forward(layers, inputs, HostMemory(device)).sum().backward()  # type: ignore[no-untyped-call]
    for parameter, expected in zip(layers.parameters(), kept, strict=True):
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, expected)
