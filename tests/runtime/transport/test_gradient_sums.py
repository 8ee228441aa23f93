"""Gradients are summed in pieces: the same sums, and never more than the bound in copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heterps_runtime.transport import gradient_sums
from heterps_runtime.transport.gradient_sums import GradientSum, finish_sums


class Doubled:
    """Stands for a sum over two equal ranks; it is made when it is waited for."""

    def __init__(self, piece: Tensor) -> None:
        self._piece = piece

    def wait(self) -> None:
        self._piece.mul_(2)

    def is_completed(self) -> bool:
        return False


def parameters_of(shapes: list[tuple[int, int]], used: list[bool]) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for index, parameter in enumerate(parameters):
        if used[index]:
            parameter.grad = torch.randn(parameter.shape)
    return parameters


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7), st.booleans()), min_size=1),
    st.integers(1, 40),
)
@settings(max_examples=100, deadline=None)
def test_pieces_of_every_size_give_the_same_sums(
    found: list[tuple[int, int, bool]], most_numbers: int
) -> None:
    parameters = parameters_of([(a, b) for a, b, _ in found], [used for *_, used in found])
    before = [None if p.grad is None else p.grad.clone() for p in parameters]
    pieces: list[Tensor] = []

    def start(piece: Tensor) -> Doubled:
        pieces.append(piece)
        return Doubled(piece)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_sums, "REDUCE_COPY_BYTES", 4 * most_numbers)
        patch.setattr(gradient_sums, "LARGE_GRADIENT_BYTES", 2 * most_numbers)
        GradientSum(parameters, start).finish()
    for parameter, gradient in zip(parameters, before, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, 2 * gradient)
    assert sum(map(len, pieces)) == sum(p.numel() for p in parameters) + len(parameters)
    large = {p.numel() for p in parameters if p.numel() >= 2 * most_numbers // 4}
    flags = len(parameters)
    assert all(len(piece) <= most_numbers + flags or len(piece) in large for piece in pieces)


def test_gradients_become_parts_of_what_is_summed_and_large_ones_stay_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_sums, "REDUCE_COPY_BYTES", 4 * 20)
    monkeypatch.setattr(gradient_sums, "LARGE_GRADIENT_BYTES", 4 * 10)
    parameters = parameters_of([(2, 3), (4, 5), (1, 4)], [True, True, True])
    large = parameters[1].grad
    pieces: list[Tensor] = []

    def start(piece: Tensor) -> Doubled:
        pieces.append(piece)
        return Doubled(piece)

    begun = GradientSum(parameters, start)
    assert [len(piece) for piece in pieces] == [20, 6 + 4 + 3]
    assert parameters[1].grad is large
    for index in (0, 2):
        gradient = parameters[index].grad
        assert gradient is not None
        assert gradient.untyped_storage().data_ptr() == pieces[1].untyped_storage().data_ptr()
    begun.finish()


def test_a_parameter_that_only_another_rank_used_gets_its_gradient() -> None:
    """The other rank's gradients are all ones, its flags too."""
    parameters = parameters_of([(2, 3), (4, 1)], [True, False])
    alone = parameters[0].grad
    assert alone is not None
    expected = alone + 1

    class OneMore(Doubled):
        def wait(self) -> None:
            self._piece.add_(1)

    GradientSum(parameters, OneMore).finish()
    assert parameters[0].grad is not None
    assert torch.equal(parameters[0].grad, expected)
    assert parameters[1].grad is not None
    assert parameters[1].grad.tolist() == [[1.0]] * 4


def test_sums_that_are_finished_together_keep_their_own_flags() -> None:
    used = ([True, False], [False], [False, True, True])
    lists = [parameters_of([(2, 3)] * len(own), own) for own in used]
    finish_sums([GradientSum(parameters, Doubled) for parameters in lists])
    found = [[parameter.grad is not None for parameter in parameters] for parameters in lists]
    assert found == list(used)
    finish_sums([])
