"""One way to carry out a stage on a class of devices."""

from __future__ import annotations

from typing import Literal, NamedTuple

# A coded placement has eight bits for the option.
MAX_OPTIONS = 256
# What a stage does with its activations.
Memory = Literal["keep", "recompute", "offload"]
ACTIONS: tuple[Memory, ...] = ("keep", "recompute", "offload")


class StageOption(NamedTuple):
    """One way to carry out a stage.

    Attributes:
        device_class: Index of the class.
        degree: Devices of one node of the class that split each layer.
        memory: Whether activations are kept, dropped and computed again, or kept by the host.
        shards_state: Whether replicas divide the optimizer state among them.
    """

    device_class: int
    degree: int = 1
    memory: Memory = "keep"
    shards_state: bool = False

    @property
    def order(self) -> tuple[bool, int, int, bool]:
        """Where it stands among others: one device that keeps all first."""
        way = self.degree, ACTIONS.index(self.memory), self.shards_state
        return way != (1, 0, False), *way
