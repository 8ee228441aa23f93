"""Dynamic loss scaling: in float16, gradients of the plain loss would often be lost to underflow.

Backward passes start from a multiple of the loss, and the optimizer divides by it, in float32
(Micikevicius et al., Mixed Precision Training, 2018, section 3.2). A step in which a gradient
anywhere in the model overflows is skipped by all ranks, and halves the scale; after many steps
without one it doubles. The rules and numbers are those of `torch.amp.GradScaler`.

The scale belongs to the state of each parameter's optimizer, under the key `LOSS_SCALE`, as the
count of steps does: so checkpoints, moves to other plans and recoveries carry it along.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from heterps_configs.documents.base import Dtype

# The key in `optimizer.state[parameter]`.
LOSS_SCALE = "loss_scale"
INITIAL_SCALE, GROWTH_FACTOR, BACKOFF_FACTOR = 2.0**16, 2.0, 0.5
# Steps without an overflow before the scale grows.
GROWTH_INTERVAL = 2000
# As in `torch.nn.utils.clip_grad_norm_`.
_SMALL = 1e-6

logger = logging.getLogger(__name__)


class LossScale:
    """What the loss is multiplied by; the same on all ranks of a plan.

    Attributes:
        state: (2,) float32: the scale, and the steps since it changed. It stays the same tensor.
        is_used: Whether a step, or a loaded state, has given it its value.
    """

    def __init__(self) -> None:
        self.state = torch.tensor([INITIAL_SCALE, 0.0])
        self.is_used = self._is_agreed = False

    @classmethod
    def for_format(cls, dtype: Dtype) -> LossScale | None:
        """None for formats whose gradients have the range of float32."""
        return cls() if dtype == "float16" else None

    @property
    def value(self) -> float:
        """What losses are multiplied by now."""
        return float(self.state[0])

    def load(self, state: Tensor) -> None:
        """Takes the value of a `state`."""
        self.state.copy_(state)
        self.is_used = True

    def agree(self, add_up: Callable[[Tensor], None]) -> None:
        """Tells ranks that have no state what it is; does nothing but the first time.

        A rank that trains no parameter gets none from a checkpoint or from another rank.

        Args:
            add_up: Replaces a tensor by its sum over the ranks of the plan.
        """
        if self._is_agreed:
            return
        self._is_agreed = True
        total = torch.cat([self.state, torch.ones(1)]).double() * self.is_used
        add_up(total)
        if float(total[2]):
            # All that have a state have the same.
            self.load(total[:2] / total[2])

    def gradient_factor(
        self, squared_norm: float, max_norm: float | None = None, num_batches: int = 1
    ) -> float | None:
        """What gradients are multiplied by, in float32; None where the step has to be skipped.

        Args:
            squared_norm: Of all gradients of the model as they are; not finite after an overflow.
            max_norm: The true gradients are clipped to it.
            num_batches: Global batches that the gradients add up.
        """
        if not math.isfinite(squared_norm):
            return None
        factor = 1 / (num_batches * self.value)
        if max_norm is not None:
            factor *= min(1.0, max_norm / (squared_norm**0.5 * factor + _SMALL))
        return factor

    def update(self, *, is_skipped: bool) -> None:
        """Counts a step."""
        scale, num_steps = self.state.tolist()
        num_steps += 1
        if is_skipped:
            scale, num_steps = scale * BACKOFF_FACTOR, 0
            logger.info("a gradient overflowed: step skipped, loss scale now %g", scale)
        elif num_steps == GROWTH_INTERVAL:
            grown = scale * GROWTH_FACTOR
            scale = grown if grown <= torch.finfo(torch.float32).max else scale
            num_steps = 0
        self.state.copy_(torch.tensor([scale, num_steps]))
        self.is_used = True
