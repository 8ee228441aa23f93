"""The program of a device: its action list with every name resolved, once for all steps.

An executor that looked up ranks, tags, shapes and neighbours in every step would spend more time on
that than on sending.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

from torch import Tensor

from heterps_envs.schedule.actions import Action
from heterps_runtime.models.recording import TensorSpec
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.transport.messages import Layout
from heterps_runtime.transport.messenger import Direction, Work

# Buffers of one message (one for each dtype), and the time stamp of an emulated link.
TAGS_PER_MESSAGE = 16
STAMP_TAG = TAGS_PER_MESSAGE - 1

Key = tuple[str, int]  # stage, micro-batch


class _MessageKey(NamedTuple):
    """A message of this device: the stage that sends or receives it here."""

    stage: str
    micro_batch: int
    direction: Direction


def _message_key(action: Action) -> _MessageKey:
    return _MessageKey(action.stage, action.micro_batch, cast(Direction, action.direction))


# A message that is sent, and to whom.
_SentKey = tuple[_MessageKey, str]


def _sent_key(action: Action) -> _SentKey:
    return _message_key(action), action.peer


@dataclass(slots=True, eq=False)
class Cell:
    """What this device holds of one micro-batch at one stage, in the course of a step.

    Attributes:
        received: Activations that came over the front cut, until the backward pass.
        outputs: What the forward pass made of them (the loss, of the last stage).
        gradients: Of the outputs, from their arrival to the backward pass.
        seed: Of the last stage, the gradient of its loss.
    """

    received: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] | None = None
    gradients: tuple[Tensor | None, ...] | None = None
    seed: Tensor | None = None


@dataclass(slots=True, eq=False)
class Pass:
    """A forward or backward pass (or half of one).

    Attributes:
        cell: Where its tensors are.
        is_first: Whether no stage is in front of it on the micro-batch's route.
        is_last: Whether no stage is behind it.
        before: The cell of the stage in front, where this device holds it.
        behind: The cell of the stage behind, where this device holds it.
        activations: The messages that carry the stage's outputs, where other devices get them:
            one, or one to each of a group that this device sends to.
        gradients: The messages that carry the gradients of what the stage received.
        target_s: What an emulated device takes; 0 where it is not emulated.
    """

    action: Action
    key: Key
    module: StageModule
    cell: Cell
    is_first: bool
    is_last: bool
    before: Cell | None
    behind: Cell | None
    activations: tuple[Message, ...]
    gradients: tuple[Message, ...]
    target_s: float


@dataclass(slots=True, eq=False)
class Message:
    """A message that this device sends or receives.

    Attributes:
        rank: The peer's.
        tag: Of its first buffer; unique among messages of one direction.
        cell: Where its tensors come from or go to.
        layout: Of its buffers; None for a message that is sent.
        requires_grad: For each tensor of received activations.
        confirms: Sent messages that have arrived when this one has.
        tensors: What is to be sent, or received: from their making to their use.
        stamp: Of an emulated link: when it arrives.
        works: What is under way.
    """

    action: Action
    direction: Direction
    rank: int
    tag: int
    cell: Cell
    layout: Layout | None
    requires_grad: tuple[bool, ...]
    confirms: tuple[Message, ...]
    tensors: Sequence[Tensor | None] = ()
    stamp: Tensor | None = None
    works: list[Work] = field(default_factory=list)


@dataclass(slots=True)
class Other:
    """A gradient all-reduce or the optimizer step."""

    action: Action


Step = Pass | Message | Other


def build_program(
    specification: RunSpecification, device: str, modules: Mapping[str, StageModule]
) -> list[Step]:
    """The actions of `device`, resolved, in their order."""
    return _Builder(specification, device, modules).build()


class _Builder:
    def __init__(
        self, specification: RunSpecification, device: str, modules: Mapping[str, StageModule]
    ) -> None:
        self._specification, self._device, self._modules = specification, device, modules
        self._stage_index = {s.name: i for i, s in enumerate(specification.plan.stages)}
        self._before, self._behind = _neighbours(specification)
        self._layouts: dict[tuple[str, Direction, int], Layout] = {}
        self._emulated = specification.emulated_device(device)
        self._cells: defaultdict[Key, Cell] = defaultdict(Cell)
        self._confirmed = _confirmed_sends(specification, device, self._before, self._behind)
        actions = specification.actions.get(device, ())
        sends = [action for action in actions if action.kind == "send"]
        self._sends = {_sent_key(action): self._send(action) for action in sends}
        self._carriers: defaultdict[_MessageKey, tuple[Message, ...]] = defaultdict(tuple)
        for action in sends:
            self._carriers[_message_key(action)] += (self._sends[_sent_key(action)],)

    def build(self) -> list[Step]:
        steps: list[Step] = []
        for action in self._specification.actions.get(self._device, ()):
            if action.kind == "send":
                steps.append(self._sends[_sent_key(action)])
            elif action.kind == "receive":
                steps.append(self._receive(action))
            elif action.kind in ("reduce", "step", "gather"):
                steps.append(Other(action))
            else:
                steps.append(self._pass(action))
        return steps

    def _pass(self, action: Action) -> Pass:
        key = action.stage, action.micro_batch
        before, behind = self._before[key], self._behind[key]
        return Pass(
            action,
            key,
            self._modules[action.stage],
            self._cells[key],
            before is None,
            behind is None,
            self._cell_here(before, action.micro_batch),
            self._cell_here(behind, action.micro_batch),
            self._carriers[_MessageKey(*key, "forward")],
            self._carriers[_MessageKey(*key, "backward")],
            self._emulated.seconds(action.kind, *key) if self._emulated else 0.0,
        )

    def _cell_here(self, stage: str | None, micro_batch: int) -> Cell | None:
        if stage is None or stage not in self._modules:
            return None
        return self._cells[stage, micro_batch]

    def _send(self, action: Action) -> Message:
        key = _message_key(action)
        rank, cell = self._specification.ranks[action.peer], self._cells[key[:2]]
        return Message(action, key.direction, rank, self._tag(action), cell, None, (), ())

    def _receive(self, action: Action) -> Message:
        key = _message_key(action)
        size = self._specification.plan.job.micro_batch_sizes[action.micro_batch]
        received, sent = self._modules[action.stage].specs(size)
        specs = received if key.direction == "forward" else sent
        peer, confirmed = action.peer, self._confirmed.get((key, action.peer), ())
        return Message(
            action,
            key.direction,
            self._specification.ranks[action.peer],
            self._tag(action),
            self._cells[key[:2]],
            self._layout(action.stage, key.direction, size, specs),
            tuple(spec.requires_grad for spec in specs),
            tuple(self._sends[sent, peer] for sent in confirmed if (sent, peer) in self._sends),
        )

    def _layout(
        self, stage: str, direction: Direction, size: int, specs: tuple[TensorSpec, ...]
    ) -> Layout:
        """Gradients come back only for what needs them."""
        key = stage, direction, size
        if key not in self._layouts:
            is_gradient = direction == "backward"
            self._layouts[key] = Layout(
                [None if is_gradient and not spec.requires_grad else spec for spec in specs],
                self._modules[stage].device,
            )
        return self._layouts[key]

    def _tag(self, action: Action) -> int:
        """Unique for a message of one direction: micro-batch and the stage in front of the cut."""
        stage = action.stage
        is_front = (action.kind == "send") == (action.direction == "forward")
        front = stage if is_front else self._before[stage, action.micro_batch]
        assert front is not None
        message = action.micro_batch * len(self._stage_index) + self._stage_index[front]
        return message * TAGS_PER_MESSAGE


Neighbours = dict[Key, str | None]


def _neighbours(specification: RunSpecification) -> tuple[Neighbours, Neighbours]:
    """The stage in front of each stage on a micro-batch's route, and the one behind it."""
    before: Neighbours = {}
    behind: Neighbours = {}
    for pipeline in specification.plan.pipelines:
        names = pipeline.stages
        for micro_batch in pipeline.micro_batches:
            for name, front, back in zip(
                names, (None, *names[:-1]), (*names[1:], None), strict=True
            ):
                before[name, micro_batch], behind[name, micro_batch] = front, back
    return before, behind


def _confirmed_sends(
    specification: RunSpecification, device: str, before: Neighbours, behind: Neighbours
) -> dict[_SentKey, tuple[_MessageKey, ...]]:
    """For each message that `device` receives of a peer, which of its sends to it have arrived.

    The peer has carried out its list up to the send of the message, and with it the receives before
    that. So the buffers of those sends can go, and waiting for them takes no time.
    """
    confirmed: dict[_SentKey, tuple[_MessageKey, ...]] = {}
    for peer, actions in specification.actions.items():
        if peer == device:
            continue
        arrived: list[_MessageKey] = []
        for action in actions:
            if action.peer != device:
                continue
            # What is a send there is a receive here, of the stage on the other side of the cut.
            is_forward = action.direction == "forward"
            other = behind if (action.kind == "send") == is_forward else before
            stage = other[action.stage, action.micro_batch]
            assert stage is not None
            key = _MessageKey(stage, action.micro_batch, cast(Direction, action.direction))
            if action.kind == "receive":
                arrived.append(key)
            elif arrived:
                confirmed[key, peer] = tuple(arrived)
                arrived = []
    return confirmed
