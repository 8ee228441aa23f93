"""Messages of a timeline: which pass made them, which needs them, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from heterps_configs.documents.estimate import TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import workload


class Message(NamedTuple):
    """One message.

    Attributes:
        send: From when to when it is on its way.
        direction: `forward` carries activations, `backward` their gradients.
        target: The pass that needs it.
        num_bytes: Its size.
    """

    send: TimelineEvent
    direction: Literal["forward", "backward"]
    target: TimelineEvent
    num_bytes: int


def sums_beside_passes(timeline: Iterable[TimelineEvent]) -> bool:
    """Whether a device sums gradients while it computes."""
    passes: dict[str, list[TimelineEvent]] = {}
    sums = []
    for event in timeline:
        if event.action == "reduce":
            sums.append(event)
        elif event.micro_batch >= 0 and event.action not in ("send", "receive"):
            passes.setdefault(event.device, []).append(event)
    return any(
        one.start_s < other.end_s and other.start_s < one.end_s
        for one in sums
        for other in passes.get(one.device, ())
    )


def messages_of(
    timeline: Iterable[TimelineEvent], problem: Problem, plan: Plan
) -> Iterator[Message]:
    """The messages of a step, in the order in which they leave.

    Args:
        timeline: Of a plan.
        problem: Where bytes come from.
        plan: Which stage follows which.
    """
    work = workload(problem, plan)
    forwards: dict[tuple[str, int], TimelineEvent] = {}
    backwards: dict[tuple[str, int], TimelineEvent] = {}
    sends = []
    for event in timeline:
        key = event.stage, event.micro_batch
        if event.action == "forward":
            forwards[key] = event
        elif event.action in ("backward", "backward-input"):
            backwards[key] = event
        elif event.action == "send":
            sends.append(event)
    for send in sorted(sends, key=lambda event: event.start_s):
        key = send.stage, send.micro_batch
        # A gradient leaves when its backward pass is over, activations before that has begun.
        direction: Literal["forward", "backward"] = (
            "forward" if send.start_s <= backwards[key].start_s else "backward"
        )
        target = work.target(direction, *key)
        if target is None:  # all passes take no time: the other direction
            direction = "backward" if direction == "forward" else "forward"
            target = work.target(direction, *key)
        assert target is not None
        passes = forwards if direction == "forward" else backwards
        size = work.message_bytes(direction, *key)
        yield Message(send, direction, passes[target, send.micro_batch], round(size))
