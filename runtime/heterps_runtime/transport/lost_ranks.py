"""The one error that says that another rank has gone, raised where ranks talk to one another.

What torch raises in a message, a collective, the making of a group or a request to the store is
turned into it there. All other errors are of those who made them, whatever their text says.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist


class LostRankError(RuntimeError):
    """Another rank has gone, or cannot be reached."""


@contextmanager
def talking() -> Iterator[None]:
    """Nothing but talk with other ranks stands inside: where that fails, one of them is lost.

    Raises:
        LostRankError: It failed.
    """
    try:
        yield
    except LostRankError:
        raise
    except RuntimeError as error:
        raise LostRankError(str(error)) from error


def forget_frames(error: BaseException | None) -> None:
    """Drops what the frames of an error refer to: messages under way keep connections open."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


class CheckedWork:
    """A message or sum of a process group, under way.

    Args:
        work: The group's own.
        limit: How long it may take; None for as long as its group says.
    """

    __slots__ = ("_limit", "_work")

    def __init__(self, work: dist.Work, limit: timedelta | None = None) -> None:
        self._work, self._limit = work, limit

    def wait(self) -> None:
        """Returns when it is done.

        Raises:
            LostRankError: The other rank has gone.
        """
        try:
            if self._limit is None:
                self._work.wait()
            else:
                self._work.wait(self._limit)
        except RuntimeError as error:
            raise LostRankError(str(error)) from error

    def is_completed(self) -> bool:
        """Whether it is done; the group may learn of it only by waiting."""
        return self._work.is_completed()
