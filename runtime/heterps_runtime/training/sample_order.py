"""Which samples are due in a step: a function of seed, epoch and step, whoever asks and whenever.

So a run that is resumed, placed anew or has lost devices sees exactly the samples that are due.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError


class Position(NamedTuple):
    """How far training is in the data, before a step.

    Attributes:
        step: The step.
        epoch: Passes over the data that are done.
        sample: Samples of the epoch that are done.
    """

    step: int = 0
    epoch: int = 0
    sample: int = 0


BEGINNING = Position()


class SampleOrder(NamedTuple):
    """The order of a data set of known length.

    Attributes:
        num_samples: Of the data set.
        batch_size: Samples of a step.
        seed: Of the run.
        shuffle: Draw the order of each epoch; else it is that of the data set.
        drop_last: Leave out the samples of an epoch that fill no batch.
        origin: Where the run begins, or went on with another batch size.
    """

    num_samples: int
    batch_size: int
    seed: int = 0
    shuffle: bool = True
    drop_last: bool = False
    origin: Position = BEGINNING

    def check(self) -> None:
        """Refuses a data set that has no batch.

        Raises:
            HeterpsError: It is empty, or smaller than a batch that may not be incomplete.
        """
        if self.num_samples == 0:
            raise HeterpsError("data: is empty; at least one sample is needed")
        if self.drop_last and self.num_samples < self.batch_size:
            raise HeterpsError(
                f"data: has {self.num_samples} samples, fewer than a batch of {self.batch_size}, "
                "and drop_last leaves all of them out"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of a whole epoch."""
        return self._steps_of(self.num_samples)

    def _steps_of(self, num_samples: int) -> int:
        whole, rest = divmod(num_samples, self.batch_size)
        return whole if self.drop_last or not rest else whole + 1

    def position(self, step: int) -> Position:
        """Before a step, not in front of the origin."""
        number, left = step - self.origin.step, self.num_samples - self.origin.sample
        assert number >= 0
        if number < self._steps_of(left):
            done = self.origin.sample + number * self.batch_size
            return Position(step, self.origin.epoch, done)
        epochs, number = divmod(number - self._steps_of(left), self.steps_per_epoch)
        return Position(step, self.origin.epoch + 1 + epochs, number * self.batch_size)

    def indices(self, step: int) -> Sequence[int]:
        """The samples of a step, in order."""
        _, epoch, done = self.position(step)
        stop = min(done + self.batch_size, self.num_samples)
        if not self.shuffle:
            return range(done, stop)
        found: list[int] = _permutation(self.num_samples, self.seed, epoch)[done:stop].tolist()
        return found


@lru_cache(maxsize=2)
def _permutation(num_samples: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return np.random.default_rng((seed, epoch)).permutation(num_samples)
