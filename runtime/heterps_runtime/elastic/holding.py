"""What a process of an elastic run holds from generation to generation, and the commit of steps.

A step is *prepared* on a rank when its gradients are complete, and *committed* when all ranks of
the generation have prepared it: they tell one another so before any of them updates a parameter. A
rank that has heard of all updates at once. So a broken generation leaves one of two cases. One of
the survivors has updated: then all of them have prepared, and update, too. None has: then all drop
their gradients, and the step is run again on the same samples. No sample is lost or counts twice.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from torch import Tensor

from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.layout import HeldState
from heterps_runtime.state.migrate import held_by
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.transport.communication import Communicator

logger = logging.getLogger(__name__)


class Committed(NamedTuple):
    """The last step that a process knows to be committed.

    Attributes:
        loss: Mean of the global batch.
        generation: That ran it.
    """

    step: int
    loss: float
    generation: int


_NOTHING = Committed(-1, 0.0, -1)


class Holding:
    """The state of one process; its stages outlive the generation that trained them.

    Attributes:
        owned: None before the first generation.
        step: Steps that are committed and updated, which is the next one's number; None for a
            process that holds nothing.
        own_state: Of the training program; None before the first generation.
    """

    def __init__(self) -> None:
        self.owned: OwnedStages | None = None
        self.step: int | None = None
        self.own_state: OwnState | None = None
        self._is_prepared = False
        self._last = _NOTHING
        self._buffers: dict[str, Tensor] = {}

    def take(self, owned: OwnedStages, step: int) -> None:
        """From here on the process holds these stages, with the values after `step` steps."""
        self.owned, self.step = owned, step
        self._is_prepared = False
        self._buffers = {}

    @property
    def state(self) -> HeldState:
        """Parameters, buffers and optimizer state by name; empty for a process without any."""
        return HeldState({}) if self.owned is None else held_by(self.owned)

    # -- a step

    def begin_step(self) -> None:
        """Keeps running statistics, which forward passes change before anything is committed."""
        assert self.owned is not None
        self._buffers = {
            f"{stage} {name}": buffer.clone()
            for stage, module in self.owned.modules.items()
            for name, buffer in module.buffers_by_name().items()
        }

    def prepare(self) -> None:
        """The gradients of the step are complete."""
        self._is_prepared = True

    def commit(self, loss: float, generation: int) -> None:
        """All ranks have prepared the step; the caller updates now."""
        assert self.step is not None
        self._last = Committed(self.step, loss, generation)
        self.step += 1
        self._is_prepared, self._buffers = False, {}

    # -- between two generations

    def settle(self, communicator: Communicator) -> Committed | None:
        """Ends the step that the last generation has left, in one way on all ranks.

        Returns:
            The last committed step, where a rank knows it: the rank that would have reported it may
            have gone.
        """
        rows = communicator.gather_numbers(
            -1 if self.step is None else self.step, float(self._is_prepared), *self._last
        )
        newest = int(max(row[0] for row in rows))
        last = next((row[2:] for row in rows if row[2] == newest - 1 >= 0), None)
        known = None if last is None else Committed(int(last[0]), last[1], int(last[2]))
        if self.owned is None or self.step is None:
            return known
        if self._is_prepared and newest == self.step + 1:
            logger.info("step %d is committed: another rank has updated already", self.step + 1)
            self.owned.apply_gradients()
            self.step, self._buffers = newest, {}
            self._last = known or self._last
        else:
            self._drop()
        self._is_prepared = False
        return known

    def _drop(self) -> None:
        """Forgets gradients and changed statistics of a step that was not committed."""
        assert self.owned is not None
        for parameter in self.owned.parameters.values():
            parameter.grad = None
        for stage, module in self.owned.modules.items():
            for name, buffer in module.buffers_by_name().items():
                kept = self._buffers.get(f"{stage} {name}")
                if kept is not None:
                    buffer.copy_(kept)
