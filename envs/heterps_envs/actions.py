"""Actions: what a device does in a step. The simulator times these lists, the runtime runs them."""

from __future__ import annotations

from typing import Literal, NamedTuple

ActionKind = Literal["receive", "forward", "backward", "send", "reduce", "step"]


class Action(NamedTuple):
    """One action of one device.

    Attributes:
        kind: `receive` waits for a message, `send` hands one to the link and goes on, `reduce` is
            one gradient all-reduce, `step` the optimizer.
        stage: Name of the stage that acts; empty for `step`.
        micro_batch: Index of the micro-batch; -1 for `reduce` and `step`.
        direction: For messages: `forward` carries activations, `backward` their gradients.
        peer: For messages: the other device.
        bucket: For `reduce`: index into the schedule's buckets.
    """

    kind: ActionKind
    stage: str = ""
    micro_batch: int = -1
    direction: Literal["forward", "backward", ""] = ""
    peer: str = ""
    bucket: int = -1


class ReduceBucket(NamedTuple):
    """Layers whose gradients are summed over the same devices in one all-reduce.

    A layer that owns tied parameters stands for its other parameters; each user of tied parameters
    (`LayerProfile.tied_to`) stands for those, and its devices hold the owner or a user.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]


class Schedule(NamedTuple):
    """The action lists of one step by device, and the gradient buckets in their global order."""

    actions: dict[str, tuple[Action, ...]]
    buckets: tuple[ReduceBucket, ...]
