"""Process groups: one for each message direction and each set of owners; small gatherings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)


class Gatherer(Protocol):
    """What agreeing on the owners of parameters takes."""

    @property
    def rank(self) -> int:
        """The own rank."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """One object from each rank, by rank."""
        ...

    def groups(self, owners: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], Any]:
        """A group for each set of ranks."""
        ...


class Communicator:
    """The processes of one run. All ranks call every method, in one order.

    Activations and gradients have a group each: messages of the two directions between two ranks
    cannot overtake or block one another.
    """

    def __init__(self) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=TIMEOUT)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        everyone = range(self.world_size)
        self.directions = {"forward": self._new(everyone), "backward": self._new(everyone)}
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}

    def groups(self, owners: Iterable[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
        """A group for each set of ranks; sets that were asked for before keep their group."""
        wanted = sorted(set(owners))
        for ranks in wanted:
            if ranks not in self._groups:
                self._groups[ranks] = self._new(ranks)
        return {ranks: self._groups[ranks] for ranks in wanted}

    def gather(self, value: Any) -> list[Any]:
        """One picklable object from each rank, by rank."""
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    def gather_numbers(self, *values: float) -> list[list[float]]:
        """A few numbers from each rank: (rank, value)."""
        own = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(gathered, own)
        return [row.tolist() for row in gathered]

    def broadcast_numbers(self, *values: float) -> list[float]:
        """Rank 0's numbers."""
        numbers = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(numbers, 0)
        return [float(number) for number in numbers]

    def broadcast_text(self, text: str | None) -> str:
        """Rank 0's text."""
        boxed = [text]
        dist.broadcast_object_list(boxed, 0)
        assert boxed[0] is not None
        return boxed[0]

    def barrier(self) -> None:
        """Returns when all ranks have come here."""
        dist.barrier()

    def close(self) -> None:
        """Waits for all, and leaves."""
        dist.barrier()
        dist.destroy_process_group()

    def _new(self, ranks: Iterable[int]) -> dist.ProcessGroup:
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=TIMEOUT)
        return group
