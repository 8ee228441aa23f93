"""The order in which DeepSpeed's pipeline engine runs a step (`TrainSchedule`, its 1F1B).

Passes come in the usual order, with S - s forwards on stage s first. Messages come late: a stage
sends the activations of a forward pass only in the slot of its next backward pass, after it has
received the gradients for that one, and sends gradients in the slot of its next forward pass. So
between two neighbours gradients and activations take turns on the link and never overlap:

    forward slot:   send gradients back, receive activations, forward
    backward slot:  receive gradients, send activations on, backward

Even slots are forward on even stages and backward on odd ones, so that neighbours meet. Source:
DeepSpeed, `deepspeed/runtime/pipe/schedule.py`.
"""

from __future__ import annotations

from heterps_configs.documents.plan import Plan
from heterps_envs.schedule.actions import Action


def deepspeed_order(plan: Plan) -> dict[str, tuple[Action, ...]]:
    """Passes and messages of every device; each stage must have a device of its own."""
    lists = {}
    for pipeline in plan.pipelines:
        names = pipeline.stages
        devices = [plan.stage(name).devices[0] for name in names]
        for index, device in enumerate(devices):
            assert device not in lists, "a device has one stage"
            lists[device] = _stage_order(index, names, devices, pipeline.micro_batches)
    return lists


def _stage_order(
    index: int, names: tuple[str, ...], devices: list[str], micro_batches: tuple[int, ...]
) -> tuple[Action, ...]:
    """The list of the stage with this index on its pipeline."""
    name, count = names[index], len(micro_batches)
    front = devices[index - 1] if index > 0 else None
    behind = devices[index + 1] if index + 1 < len(names) else None
    actions: list[Action] = []
    passed: int | None = None  # the micro-batch of the slot before
    for slot in range(2 * (count + len(names) - 1)):
        position, is_forward = _slot(slot, index, len(names))
        now = micro_batches[position] if 0 <= position < count else None
        peer = front if is_forward else behind
        if peer is not None:
            exchange = _exchange(name, peer, is_forward, passed, now)
            actions.extend(exchange)
        if now is not None:
            actions.append(Action("forward" if is_forward else "backward", name, now))
        passed = now
    return tuple(actions)


def _exchange(
    name: str, peer: str, is_forward: bool, passed: int | None, now: int | None
) -> list[Action]:
    """What a stage exchanges with a neighbour before a pass: gradients first, then activations."""
    if is_forward:
        sent = [] if passed is None else [Action("send", name, passed, "backward", peer)]
        return sent + ([] if now is None else [Action("receive", name, now, "forward", peer)])
    received = [] if now is None else [Action("receive", name, now, "backward", peer)]
    return received + ([] if passed is None else [Action("send", name, passed, "forward", peer)])


def _slot(slot: int, index: int, num_stages: int) -> tuple[int, bool]:
    """Position of the micro-batch in a slot (it may lie outside), and whether it goes forward."""
    if slot % 2 == index % 2:
        return (slot - index) // 2, True
    return (slot - 2 * num_stages + 1 + index) // 2, False
