"""Process groups: one for each message direction and each set of owners; small gatherings.

Gatherings and all that CPUs take part in go over gloo. Sums among ranks that each have a GPU of
their own go over nccl (`heterps_runtime.specification.devices.backend_of`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import HashStore, TCPStore  # type: ignore[attr-defined]

from heterps_runtime.specification.devices import CPU, Backend, Place, backend_of, own_place
from heterps_runtime.transport.lost_ranks import talking
from heterps_runtime.transport.typed_messages import broadcast_content, gather_messages

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
# Set for ranks that our launcher starts; for rank 0 the number of a socket that listens already.
STORE_VARIABLE = "HETERPS_STORE_DESCRIPTOR"


class Gatherer(Protocol):
    """What agreeing on the owners of parameters takes."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    def gather(self, value: T, kind: type[T]) -> list[T]:
        """One value from each rank, by rank."""
        ...

    def groups(self, owners: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], Any]:
        """A group for each set of ranks."""
        ...


class Communicator:
    """The processes of one run. All ranks call every method, in one order.

    Every method raises `LostRankError` where another rank has gone.

    Activations and gradients have a group each: messages of the two directions between two ranks
    cannot overtake or block one another.

    Args:
        device: Where this rank computes.
        has_nccl: Whether GPUs may use nccl. It waits for ever for a rank that has gone.
        connect_timeout: How long ranks may take to connect where one of them may go meanwhile: in
            that, nothing can interrupt gloo. None for as long as anything else may take.

    Attributes:
        device: The same.
        has_nccl: The same.
        connect_timeout: The same.
        places: Where all ranks compute, by rank.
    """

    def __init__(
        self,
        device: torch.device = CPU,
        *,
        has_nccl: bool = True,
        connect_timeout: timedelta | None = None,
    ) -> None:
        if not dist.is_initialized():
            with talking():
                _join()
        self.connect_timeout = connect_timeout
        self._lengthen(dist.group.WORLD)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        everyone = range(self.world_size)
        self.directions = {"forward": self._new(everyone), "backward": self._new(everyone)}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._channels: dict[tuple[object, ...], dist.ProcessGroup] = {}
        self.device, self.has_nccl = device, has_nccl
        self.places: list[Place] = self.gather(own_place(device), Place)

    @property
    def may_lose_ranks(self) -> bool:
        """Whether training goes on where one of them goes."""
        return self.connect_timeout is not None

    def groups(self, owners: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """A group for each set of ranks; sets that were asked for before keep their group."""
        wanted = sorted(set(owners))
        for ranks in wanted:
            if ranks not in self._groups:
                self._groups[ranks] = self._new(ranks, self.backend_of(ranks))
        return {ranks: self._groups[ranks] for ranks in wanted}

    def backend_of(self, ranks: Iterable[int]) -> Backend:
        """What carries messages among some ranks."""
        return backend_of(ranks, self.places) if self.has_nccl else "gloo"

    def new_group(self) -> dist.ProcessGroup:
        """One more group of all ranks, over gloo."""
        return self._new(range(self.world_size))

    def channel(self, name: tuple[object, ...], ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of its own over nccl; one of the same name is kept."""
        if name not in self._channels:
            self._channels[name] = self._new(ranks, "nccl")
        return self._channels[name]

    def gather(self, value: T, kind: type[T]) -> list[T]:
        """One value from each rank, by rank.

        Args:
            value: Plain values, named tuples or documents.
            kind: The type of all of them, which what arrives is compared with.

        Raises:
            MessageError: A rank sent something else.
        """
        return gather_messages(value, kind, None)

    def gather_numbers(self, *values: float) -> list[list[float]]:
        """A few numbers from each rank: (rank, value)."""
        own = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        with talking():
            dist.all_gather(gathered, own)
        return [row.tolist() for row in gathered]

    def broadcast_numbers(self, *values: float) -> list[float]:
        """Sends rank 0's numbers to all ranks, and returns them."""
        numbers = torch.tensor(values, dtype=torch.float64)
        with talking():
            dist.broadcast(numbers, 0)
        return [float(number) for number in numbers]

    def broadcast_text(self, text: str | None) -> str:
        """Sends rank 0's text to all ranks, and returns it."""
        return broadcast_content((text or "").encode()).decode()

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Sends rank 0's bytes to all ranks, and returns them."""
        return broadcast_content(data)

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        with talking():
            dist.barrier()

    def sever(self) -> None:
        """Closes all connections without waiting for anybody."""
        self.directions.clear()
        self._groups.clear()
        self._channels.clear()
        if dist.is_initialized():
            dist.destroy_process_group()

    def close(self) -> None:
        """Waits for all, and leaves."""
        self.barrier()
        dist.destroy_process_group()

    def _new(self, ranks: Iterable[int], backend: Backend = "gloo") -> dist.ProcessGroup:
        members = list(ranks)
        # With a device, nccl connects now: no step waits for it, and its errors come early.
        is_bound = backend == "nccl" and self.rank in members
        with talking():
            group: dist.ProcessGroup = dist.new_group(
                members,
                timeout=self.connect_timeout or TIMEOUT,
                backend=backend,
                device_id=self.device if is_bound else None,
            )
        if self.rank in members:
            self._lengthen(group)
        return group

    def _lengthen(self, group: dist.ProcessGroup | None) -> None:
        """The ranks are connected: collectives may take longer than connecting."""
        if self.connect_timeout is not None and group is not None:
            group._get_backend(CPU)._set_default_timeout(TIMEOUT)


def count_groups_anew() -> None:
    """After an attempt to connect that failed in this process, while it has no group.

    Ranks find one another by the numbers of their groups. torch counts an attempt even where it
    fails, and begins again only when a group ends: a rank whose attempt failed, where those of the
    others did not, would look for them under another number for ever. So a group of its own ends.
    """
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def _join() -> None:
    """Meets the other ranks, as the environment says: that of our launcher, or of torchrun."""
    descriptor = os.environ.get(STORE_VARIABLE)
    if descriptor is None:
        dist.init_process_group("gloo", timeout=TIMEOUT)
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world_size,
        is_master=rank == 0,
        timeout=TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=int(descriptor) if descriptor else None,
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
