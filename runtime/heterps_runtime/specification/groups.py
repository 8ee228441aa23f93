"""Tensor-parallel groups of a run: who is in them, and the action list of each of their devices.

The schedule has one list for a group, that of its first device. All devices of the group carry it
out together. Everyone holds all of what crosses a cut, so a message between groups of a and b
devices comes to receiver j from sender j mod a: each receiver gets it once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.actions import Action


class Membership(NamedTuple):
    """A device's place in its group.

    Attributes:
        devices: Of the group; the device alone where there is none.
        position: The device's.
    """

    devices: tuple[str, ...]
    position: int


def memberships(plan: Plan) -> dict[str, Membership]:
    """The group of every device of a plan."""
    return {
        device: Membership(group, position)
        for group in plan.device_groups
        for position, device in enumerate(group)
    }


def actions_of_members(
    plan: Plan, actions: Mapping[str, Sequence[Action]]
) -> dict[str, tuple[Action, ...]]:
    """The action list of every device of a plan, from those of the first ones of its groups."""
    found = memberships(plan)
    lists = {
        device: tuple(_for_member(member, actions[member.devices[0]], found))
        for device, member in found.items()
    }
    assert actions.keys() <= lists.keys()
    return lists


def _for_member(
    member: Membership, actions: Sequence[Action], found: Mapping[str, Membership]
) -> Iterator[Action]:
    size, position = len(member.devices), member.position
    for action in actions:
        if not action.peer:
            yield action
            continue
        peers = found[action.peer].devices
        if action.kind == "receive":
            yield action._replace(peer=peers[position % len(peers)])
        else:
            yield from (
                action._replace(peer=peer)
                for receiver, peer in enumerate(peers)
                if receiver % size == position
            )


def check_groups(profile: ModelProfile, plan: Plan) -> None:
    """Refuses groups that cannot be run.

    Raises:
        HeterpsError: Devices that hold the same parameters are in groups of another size, or have
            other shares.
    """
    # Workers import no problem.
    from heterps_envs.simulator.notes import not_run_yet

    reason = not_run_yet(profile, plan)
    if reason is not None:
        raise HeterpsError(reason)
