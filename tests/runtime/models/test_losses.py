"""Losses add up over any split of the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from heterps_configs.documents.model.source import InputSpecification, LossName, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.losses import MeanLoss, loss_sum


def _source(loss: LossName) -> ModelSource:
    return ModelSource(
        kind="factory", factory="m:f", inputs=(InputSpecification(name="x"),), loss=loss
    )


def _case(loss: LossName, shape: tuple[int, ...], num_classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    if loss == "cross_entropy":
        output = torch.randn(*shape, num_classes, generator=generator)
        return output, torch.randint(0, num_classes, shape, generator=generator)
    output = torch.randn(*shape, generator=generator)
    return output, torch.randint(0, 2, shape, generator=generator).float()


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy", "mean_squared_error"])
@pytest.mark.parametrize("shape", [(6,), (6, 5), (6, 2, 3)])
def test_the_sum_over_parts_over_the_batch_is_the_mean_loss(
    loss: LossName, shape: tuple[int, ...]
) -> None:
    output, target = _case(loss, shape, 7)
    parts = [slice(0, 1), slice(1, 4), slice(4, 6)]
    total = sum(loss_sum(_source(loss), output[part], target[part]) for part in parts)
    if loss == "cross_entropy":
        expected = F.cross_entropy(output.reshape(-1, 7), target.reshape(-1))
    elif loss == "binary_cross_entropy":
        expected = F.binary_cross_entropy_with_logits(output, target)
    else:
        expected = F.mse_loss(output, target)
    torch.testing.assert_close(total / 6, expected)


def test_classes_may_stand_in_the_second_dimension() -> None:
    output, target = _case("cross_entropy", (4, 5, 6), 7)
    source = _source("cross_entropy")
    torch.testing.assert_close(
        loss_sum(source, output.movedim(-1, 1), target), loss_sum(source, output, target)
    )


def test_half_precision_is_summed_in_float32() -> None:
    output, target = _case("cross_entropy", (4,), 7)
    assert loss_sum(_source("cross_entropy"), output.bfloat16(), target).dtype == torch.float32


def test_a_column_of_outputs_is_compared_with_a_row_of_targets() -> None:
    output, target = _case("binary_cross_entropy", (4,), 2)
    source = _source("binary_cross_entropy")
    torch.testing.assert_close(
        loss_sum(source, output[:, None], target), loss_sum(source, output, target)
    )


def test_letters_are_aligned_with_frames_as_torch_does_it() -> None:
    output = torch.randn(3, 9, 5, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([[1, 2, 3], [4, 4, 1], [2, 1, 2]])
    whole = loss_sum(_source("ctc"), output, target)
    expected = F.ctc_loss(
        output.log_softmax(-1).transpose(0, 1), target, torch.full((3,), 9), torch.full((3,), 3)
    )
    torch.testing.assert_close(whole / 3, expected)
    parts = loss_sum(_source("ctc"), output[:1], target[:1])
    torch.testing.assert_close(parts + loss_sum(_source("ctc"), output[1:], target[1:]), whole)


def test_images_and_texts_of_a_micro_batch_are_compared_both_ways() -> None:
    alike = torch.tensor([[2.0, 0.0], [1.0, 3.0]])
    own = torch.arange(2)
    expected = (F.cross_entropy(alike, own) + F.cross_entropy(alike.T, own)) / 2
    torch.testing.assert_close(loss_sum(_source("contrastive"), alike, own) / 2, expected)


def test_a_function_that_returns_no_mean_is_one_clear_error() -> None:
    output, target = torch.zeros(4, 2), torch.ones(4, 2)
    assert float(MeanLoss(F.mse_loss).total(output, target)) == 4
    of_each = MeanLoss(lambda output, target: (output - target) ** 2)
    with pytest.raises(
        HeterpsError, match=r"loss: the function returned \(4, 2\); expected the mean"
    ):
        of_each.total(output, target)
    number = MeanLoss(lambda output, target: 3.0)  # type: ignore[arg-type,return-value]
    with pytest.raises(HeterpsError, match="returned float"):
        number.total(output, target)
