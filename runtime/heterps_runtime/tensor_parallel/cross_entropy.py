"""Cross entropy of logits of which every rank has those of some classes.

Nobody ever has all logits: the group adds up three numbers for each place, as the cost model counts
(`tracing.divided_operations.SOFTMAX_SUMS`): the largest logit, the sum of the exponentials, and the
target's logit.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from heterps_runtime.models.losses import elements_per_sample
from heterps_runtime.tensor_parallel.sums import GroupSums

# What `torch.nn.functional.cross_entropy` leaves out.
_IGNORED = -100


class SplitCrossEntropy(NamedTuple):
    """A `heterps_runtime.models.losses.Loss` of a rank's logits.

    Attributes:
        first_class: Of the rank.
        sums: Over the group, whose ranks all compute the same loss.
    """

    first_class: int
    sums: GroupSums

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """Sum over the places; (B, ..., own classes) and (B, ...)."""
        output = output.to(torch.promote_types(output.dtype, torch.float32))
        rows, places = output.reshape(-1, output.shape[-1]), target.reshape(-1)
        made = _CrossEntropy.apply(rows, places, self.first_class, self.sums)  # type: ignore[no-untyped-call]
        return cast(Tensor, made)

    def elements(self, target: Tensor) -> int:
        """See `Loss.elements`."""
        return elements_per_sample(target)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, first: int, sums: GroupSums) -> Tensor:
        largest = sums.max(logits.amax(dim=-1))
        powers = (logits - largest.unsqueeze(-1)).exp_()
        total = sums.sum(powers.sum(dim=-1))
        own = target - first
        is_foreign = (own < 0) | (own >= logits.shape[-1])
        own = own.masked_fill(is_foreign, 0).unsqueeze(-1)
        found = logits.gather(-1, own).squeeze(-1).masked_fill(is_foreign, 0.0)
        losses = total.log() + largest - sums.sum(found)
        is_ignored = target == _IGNORED
        ctx.save_for_backward(powers.div_(total.unsqueeze(-1)), own, is_foreign, is_ignored)
        return losses.masked_fill(is_ignored, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        shares, own, is_foreign, is_ignored = ctx.saved_tensors
        hits = (~is_foreign).to(shares.dtype).unsqueeze(-1)
        gradient = shares.scatter_add(-1, own, -hits) * gradients[0]
        return gradient.masked_fill_(is_ignored.unsqueeze(-1), 0.0), None, None, None
