"""Gradients are summed in pieces: the same sums, and never more than the bound in copies."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from heterps_runtime import gradient_sums
from heterps_runtime.gradient_sums import PIECES_AT_A_TIME, flatten_gradients, sum_gradients


class Doubled:
    """Stands for a sum over two equal ranks; it is made when it is waited for."""

    open_numbers = 0
    most_numbers = 0
    num_pieces = 0

    def __init__(self, piece: Tensor) -> None:
        self._piece = piece
        Doubled.num_pieces += 1
        Doubled.open_numbers += len(piece)
        Doubled.most_numbers = max(Doubled.most_numbers, Doubled.open_numbers)

    def wait(self) -> None:
        self._piece.mul_(2)
        Doubled.open_numbers -= len(self._piece)

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
    expected = 2 * flatten_gradients(parameters)
    Doubled.most_numbers = Doubled.num_pieces = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient_sums, "REDUCE_COPY_BYTES", 4 * most_numbers * PIECES_AT_A_TIME)
        sum_gradients(parameters, Doubled)
    unused = [parameter.grad is None for parameter in parameters]
    assert unused == [not used for *_, used in found]
    sums = flatten_gradients(parameters)
    assert torch.equal(sums[: -len(found)], expected[: -len(found)])
    assert Doubled.most_numbers <= most_numbers * PIECES_AT_A_TIME
    assert Doubled.num_pieces == -(-len(expected) // most_numbers)


def test_a_parameter_that_only_another_rank_used_gets_its_gradient() -> None:
    """The other rank's gradients are all ones, its flags too."""
    parameters = parameters_of([(2, 3), (4, 1)], [True, False])
    alone = parameters[0].grad
    assert alone is not None
    expected = alone + 1

    class OneMore(Doubled):
        def wait(self) -> None:
            self._piece.add_(1)

    sum_gradients(parameters, OneMore)
    assert parameters[0].grad is not None
    assert torch.equal(parameters[0].grad, expected)
    assert parameters[1].grad is not None
    assert parameters[1].grad.tolist() == [[1.0]] * 4
