"""The ranks of a run: how many there are, which are on this host, and where they meet."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Self

from heterps_configs.errors import HeterpsError
from heterps_runtime.network.relay import LOOPBACK
from heterps_runtime.process.template import Passed
from heterps_runtime.transport.communication import STORE_VARIABLE


@dataclass(frozen=True)
class World:
    """The ranks of a run.

    Attributes:
        ranks: Those of this host.
        size: Of all hosts.
        port: Of this host's loopback, where the ranks here find the store of rank 0.
        listener: The socket that rank 0 takes connections on; None where it opens one itself.
    """

    ranks: range
    size: int
    port: int
    listener: socket.socket | None = None

    @classmethod
    def of_this_host(
        cls, num_ranks: int, port: int | None = None, *, size: int | None = None
    ) -> Self:
        """Rank 0 is here. Nobody else can connect: the socket is the loopback's.

        Args:
            num_ranks: How many are here.
            port: To meet at; by default a free one.
            size: With the ranks of other hosts; by default there are none.

        Raises:
            HeterpsError: The port is in use, or none.
        """
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port or 0))
        except (OSError, OverflowError) as error:
            listener.close()
            reason = "in use" if isinstance(error, OSError) else "not a port"
            raise HeterpsError(
                f"port {port} is {reason}; leave the port out to take a free one"
            ) from None
        # Those of other hosts may come before rank 0 does.
        listener.listen()
        return cls(range(num_ranks), size or num_ranks, listener.getsockname()[1], listener)

    def environment(self, rank: int) -> dict[str, str]:
        """Variables of a rank: those that torchrun sets, and how its store comes to be."""
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank - self.ranks.start),
            "WORLD_SIZE": str(self.size),
            "LOCAL_WORLD_SIZE": str(len(self.ranks)),
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(self.port),
            STORE_VARIABLE: "",
        }

    def passed(self, rank: int) -> Passed | None:
        """What rank 0 gets besides."""
        if rank > 0 or self.listener is None:
            return None
        return Passed(self.listener.fileno(), STORE_VARIABLE)

    def close(self) -> None:
        """Closes this process's side of the socket."""
        if self.listener is not None:
            self.listener.close()
