"""The program of a device: its action list with every name resolved, once for all steps.

An executor that looked up ranks, tags, shapes and neighbours in every step would spend more time on
that than on sending.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, cast

from heterps_envs.actions import Action
from heterps_runtime.messages import Layout
from heterps_runtime.messenger import Direction
from heterps_runtime.recording import TensorSpec
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.stage import StageModule

# Buffers of one message (one for each dtype), and the time stamp of an emulated link.
TAGS_PER_MESSAGE = 16
STAMP_TAG = TAGS_PER_MESSAGE - 1

Key = tuple[str, int]  # stage, micro-batch


class MessageKey(NamedTuple):
    """A message of this device: the stage that sends or receives it here."""

    stage: str
    micro_batch: int
    direction: Direction


@dataclass(slots=True)
class Pass:
    """A forward or backward pass (or half of one).

    Attributes:
        before: The stage in front of it on the micro-batch's route, if any.
        behind: The stage behind it.
        before_is_here: Whether this device holds the stage in front.
        behind_is_here: The same for the stage behind.
        sent: The message that carries the stage's activations.
        target_s: What an emulated device takes; 0 where it is not emulated.
    """

    action: Action
    key: Key
    module: StageModule
    before: str | None
    behind: str | None
    before_is_here: bool
    behind_is_here: bool
    sent: MessageKey
    target_s: float


@dataclass(slots=True)
class Message:
    """A message that this device sends or receives.

    Attributes:
        rank: The peer's.
        tag: Of its first buffer; unique among messages of one direction.
        layout: Of its buffers; None for a message that is sent.
        requires_grad: For each tensor of received activations.
        confirms: Sent messages that have arrived when this one has.
    """

    action: Action
    key: MessageKey
    rank: int
    tag: int
    layout: Layout | None
    requires_grad: tuple[bool, ...]
    confirms: tuple[MessageKey, ...]


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
        self._confirmed = _confirmed_sends(specification, device, self._before, self._behind)

    def build(self) -> list[Step]:
        steps: list[Step] = []
        for action in self._specification.actions.get(self._device, ()):
            if action.kind in ("receive", "send"):
                steps.append(self._message(action))
            elif action.kind in ("reduce", "step"):
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
            before,
            behind,
            before in self._modules,
            behind in self._modules,
            MessageKey(*key, "forward"),
            self._emulated.seconds(action.kind, *key) if self._emulated else 0.0,
        )

    def _message(self, action: Action) -> Message:
        direction = cast(Direction, action.direction)
        key = MessageKey(action.stage, action.micro_batch, direction)
        rank, tag = self._specification.ranks[action.peer], self._tag(action)
        if action.kind == "send":
            return Message(action, key, rank, tag, None, (), ())
        size = self._specification.plan.job.micro_batch_sizes[action.micro_batch]
        received, sent = self._modules[action.stage].specs(size)
        specs = received if direction == "forward" else sent
        requires_grad = tuple(spec.requires_grad for spec in specs)
        return Message(
            action,
            key,
            rank,
            tag,
            self._layout(action.stage, direction, size, specs),
            requires_grad,
            self._confirmed.get(key, ()),
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
) -> dict[MessageKey, tuple[MessageKey, ...]]:
    """For each message that `device` receives, which of its own sends have then arrived.

    The peer has carried out its list up to the send of the message, and with it the receives before
    that. So the buffers of those sends can go, and waiting for them takes no time.
    """
    confirmed: dict[MessageKey, tuple[MessageKey, ...]] = {}
    for peer, actions in specification.actions.items():
        if peer == device:
            continue
        arrived: list[MessageKey] = []
        for action in actions:
            if action.peer != device:
                continue
            # What is a send there is a receive here, of the stage on the other side of the cut.
            is_forward = action.direction == "forward"
            other = behind if (action.kind == "send") == is_forward else before
            stage = other[action.stage, action.micro_batch]
            assert stage is not None
            key = MessageKey(stage, action.micro_batch, cast(Direction, action.direction))
            if action.kind == "receive":
                arrived.append(key)
            elif arrived:
                confirmed[key] = tuple(arrived)
                arrived = []
    return confirmed
