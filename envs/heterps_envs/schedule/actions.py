"""Actions: what a device does in a step. The simulator times these lists, the runtime runs them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.layer_costs.group_slice import GroupSlice

Direction = Literal["forward", "backward"]
PassKind = Literal["forward", "backward", "backward-input", "backward-weight"]
ActionKind = Literal[
    "receive",
    "forward",
    "backward",
    "backward-input",
    "backward-weight",
    "send",
    "reduce",
    "step",
    "gather",
]

# Codes of `Schedule.kind`.
RECEIVE_FORWARD, RECEIVE_BACKWARD, SEND_FORWARD, SEND_BACKWARD = 0, 1, 2, 3
FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT = 4, 5, 6, 7
REDUCE, STEP, GATHER = 8, 9, 10
_KINDS: tuple[tuple[ActionKind, Literal["forward", "backward", ""]], ...] = (
    ("receive", "forward"),
    ("receive", "backward"),
    ("send", "forward"),
    ("send", "backward"),
    ("forward", ""),
    ("backward", ""),
    ("backward-input", ""),
    ("backward-weight", ""),
    ("reduce", ""),
    ("step", ""),
    ("gather", ""),
)


class Action(NamedTuple):
    """One action of one device.

    Attributes:
        kind: `receive` waits for a message, `send` hands one to the link and goes on. `backward` is
            a whole backward pass; a zero-bubble schedule has two actions in its place:
            `backward-input` computes the gradients of what the stage received, which are sent right
            after it, `backward-weight` those of its parameters, and frees the activations. `reduce`
            is one gradient all-reduce, `step` the optimizer. Where the optimizer state of a bucket
            is sharded, `reduce` sums for each replica its part of the gradients, and after the step
            `gather` hands out the parameters that each has stepped.
        stage: Name of the stage that acts; empty for `reduce`, `step` and `gather`.
        micro_batch: Index of the micro-batch; -1 for `reduce`, `step` and `gather`.
        direction: For messages: `forward` carries activations, `backward` their gradients.
        peer: For messages: the other device.
        bucket: For `reduce` and `gather`: index into the schedule's buckets.
        ready_share: For `reduce`: the share of the pass before it after which its gradients
            are complete, and an all-reduce that overlaps may start.
    """

    kind: ActionKind
    stage: str = ""
    micro_batch: int = -1
    direction: Literal["forward", "backward", ""] = ""
    peer: str = ""
    bucket: int = -1
    ready_share: float = 1.0


class ReduceBucket(NamedTuple):
    """Layers whose gradients are summed over the same devices in one all-reduce.

    A layer that owns tied parameters stands for its other parameters; each user of tied parameters
    (`LayerProfile.tied_to`) stands for those, too, and its devices hold the owner or a user. Where
    fewer devices have the user itself, its other parameters are in a bucket of these devices.

    Attributes:
        groups: Where any of the devices stands for a tensor-parallel group: the devices of each.
        slices: Of each of them, the largest share that one of its devices has; None: all the same.
        is_sharded: Each replica keeps the optimizer state of a part of the layers' parameters.
        whole_layers: Of each of the groups, the layers that it does not split.
        tied_only: Users of tied parameters of which it has these alone.
        own_only: Users of tied parameters of which it has all others.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    groups: tuple[tuple[str, ...], ...] = ()
    slices: tuple[GroupSlice | None, ...] = ()
    is_sharded: bool = False
    whole_layers: tuple[tuple[int, ...], ...] = ()
    tied_only: tuple[int, ...] = ()
    own_only: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Schedule:
    """The action lists of one step, and the gradient buckets in their global order.

    The lists of all devices stand one after the other in arrays of A actions.

    Attributes:
        devices: Names of the D devices; of a tensor-parallel group the first, which stands for all.
        stages: Names of the stages.
        offsets: (D + 1,) the actions of device d are `offsets[d] .. offsets[d + 1] - 1`.
        kind: (A,) int8, `RECEIVE_FORWARD` .. `GATHER`.
        stage: (A,) int32, index into `stages`; -1 for `REDUCE`, `STEP` and `GATHER`.
        micro_batch: (A,) int32; for `REDUCE` and `GATHER` the bucket's index, for `STEP` -1.
        peer: (A,) int32, for messages the index of the other device, else -1.
        buckets: What is reduced.
        overlaps_reduce: A `reduce` only starts its all-reduce, or finds that it was started by the
            pass in front, and `step` waits for all of them. A device has one on its way at a time,
            in the order of its list. Otherwise a `reduce` keeps its device until it is done.
        ready_share: (A,) `Action.ready_share`; 1 for all but `REDUCE`.
    """

    devices: tuple[str, ...]
    stages: tuple[str, ...]
    offsets: NDArray[np.int64]
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    peer: NDArray[np.int32]
    buckets: tuple[ReduceBucket, ...] = ()
    overlaps_reduce: bool = False
    ready_share: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @cached_property
    def actions(self) -> dict[str, tuple[Action, ...]]:
        """The action lists by device, made when they are first asked for."""
        return {
            device: tuple(self.action(index) for index in range(first, stop))
            for device, first, stop in zip(
                self.devices, self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True
            )
        }

    @cached_property
    def device_of(self) -> NDArray[np.int64]:
        """(A,) index of the device that each action is of."""
        return np.repeat(np.arange(len(self.devices)), np.diff(self.offsets))

    def action(self, index: int) -> Action:
        """One of the A actions as a tuple."""
        code = int(self.kind[index])
        kind, direction = _KINDS[code]
        if code == STEP:
            return Action(kind)
        if code in (REDUCE, GATHER):
            share = float(self.ready_share[index])
            return Action(kind, bucket=int(self.micro_batch[index]), ready_share=share)
        peer = int(self.peer[index])
        return Action(
            kind,
            self.stages[self.stage[index]],
            int(self.micro_batch[index]),
            direction,
            self.devices[peer] if peer >= 0 else "",
        )
