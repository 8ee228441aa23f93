"""Cross entropy of split logits is that of whole ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from heterps_runtime.tensor_parallel.cross_entropy import SplitCrossEntropy
from heterps_runtime.tracing.divided_operations import SOFTMAX_SUMS
from tests.runtime.tensor_parallel.thread_sums import ThreadGroup

CLASSES = ((0, 4), (4, 5), (5, 11))


def test_ranks_that_have_some_classes_each_compute_the_loss_of_all_of_them() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 30 * torch.randn(2, 5, 11, generator=generator, dtype=torch.float64)
    target = torch.randint(11, (2, 5), generator=generator)
    target[0, 3] = -100  # left out, as torch does
    whole = logits.clone().requires_grad_()
    expected = F.cross_entropy(whole.reshape(-1, 11), target.reshape(-1), reduction="sum")
    (3 * expected).backward()  # type: ignore[no-untyped-call]
    assert whole.grad is not None
    group = ThreadGroup(len(CLASSES))

    def work(rank: int) -> tuple[Tensor, Tensor | None]:
        start, stop = CLASSES[rank]
        own = logits[..., start:stop].clone().requires_grad_()
        loss = SplitCrossEntropy(start, group.sums(rank)).total(own, target)
        (3 * loss).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), own.grad

    for (start, stop), (loss, gradient) in zip(CLASSES, group.run(work), strict=True):
        torch.testing.assert_close(loss, expected.detach())
        torch.testing.assert_close(gradient, whole.grad[..., start:stop])
    assert group.num_sums == SOFTMAX_SUMS
