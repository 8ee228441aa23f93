"""One error on every rank: who fails tells the others, and lets go of their connections.

Messages between ranks wait for half an hour. A rank that fails therefore leaves a line in the store
of the process group and closes its connections, so that those who wait for it stop waiting at once
and find the line.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch.distributed as dist

from heterps_configs.errors import HeterpsError
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import LostRankError

_KEY = "heterps/failure"
# How long a rank that lost its connections waits for the line of the one that failed.
CAUSE_S = 3.0
_POLL_S = 0.05
UNKNOWN = "another rank has failed; its message says why"


class AgreedError(HeterpsError):
    """All ranks raise it in the same place: nobody waits, and all may go on."""


class SharedFailures:
    """The errors of one training run.

    Args:
        communicator: The processes.
        device: Of this rank; errors name it.

    Attributes:
        message: What all ranks raise from now on; None while all is well.
    """

    def __init__(self, communicator: Communicator, device: str) -> None:
        self._communicator, self._device = communicator, device
        # The store outlives the process group.
        self._store = dist.distributed_c10d._get_default_store()
        self.message: str | None = None

    @contextlib.contextmanager
    def shared(self, let_go: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Turns an error of any rank into the same error on all of them.

        Args:
            let_go: Drops what refers to messages that are under way.

        Raises:
            HeterpsError: A rank failed, now or before.
        """
        self.check()
        try:
            yield
        except AgreedError:
            raise
        except Exception as error:
            is_lost = isinstance(error, LostRankError)
            if not is_lost:
                self.tell(error)
            let_go()
            self._communicator.sever()
            self.message = self._first(CAUSE_S if is_lost else 0.0) or UNKNOWN
            raise HeterpsError(self.message) from error

    def check(self) -> None:
        """Refuses to go on after an error.

        Raises:
            HeterpsError: The same once more.
        """
        if self.message is not None:
            raise HeterpsError(self.message)

    def tell(self, error: BaseException) -> None:
        """Leaves the line for the others, where there is none yet."""
        text = str(error).strip() or "no message"
        message = text if isinstance(error, HeterpsError) else f"{type(error).__name__}: {text}"
        rank = self._communicator.rank
        with contextlib.suppress(RuntimeError):  # the store may have gone with its rank
            self._store.compare_set(_KEY, "", f"rank {rank} ({self._device}): {message}")

    def _first(self, wait_s: float) -> str | None:
        """The first error of any rank."""
        deadline_s = time.monotonic() + wait_s
        with contextlib.suppress(RuntimeError):
            while True:
                if self._store.check([_KEY]):
                    return str(self._store.get(_KEY).decode())
                if time.monotonic() >= deadline_s:
                    return None
                time.sleep(_POLL_S)
        return None
