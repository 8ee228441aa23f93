"""Groups of a run: who sends what to whom, and which groups cannot be run."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.actions import Action
from heterps_runtime.specification.groups import actions_of_members, check_groups
from tests.runtime.small_runs import chain_of, problem_of


def _two_groups(front: int, back: int) -> Plan:
    """A chain of two stages on groups of so many devices, which need not be in a cluster."""
    plan = chain_of(problem_of("sequential"), 4)
    first, last = plan.stages
    return plan.changed(
        stages=(
            first.changed(devices=tuple(f"a{i}" for i in range(front))),
            last.changed(devices=tuple(f"b{i}" for i in range(back))),
        )
    )


@given(front=st.integers(1, 8), back=st.integers(1, 8))
def test_each_device_of_a_group_gets_each_message_once(front: int, back: int) -> None:
    plan = _two_groups(front, back)
    lists = actions_of_members(
        plan,
        {
            "a0": [
                Action("send", "s0", 0, "forward", "b0"),
                Action("receive", "s0", 0, "backward", "b0"),
            ],
            "b0": [
                Action("receive", "s1", 0, "forward", "a0"),
                Action("send", "s1", 0, "backward", "a0"),
            ],
        },
    )
    sent, received = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for device, actions in lists.items():
        for action in actions:
            if action.kind == "send":
                sent[device, action.peer, action.direction] += 1
            else:
                received[action.peer, device, action.direction] += 1
    assert sent == received
    assert set(sent.values()) == {1}
    arrived = Counter((end, direction) for _, end, direction in sent.elements())
    assert arrived == {
        **{(f"b{i}", "forward"): 1 for i in range(back)},
        **{(f"a{i}", "backward"): 1 for i in range(front)},
    }


def test_replicas_in_unlike_groups_are_refused_where_they_share_state() -> None:
    profile = problem_of("sequential").profile
    plan = _two_groups(1, 2)
    twice = plan.changed(
        stages=tuple(stage.changed(first_layer=0, last_layer=7) for stage in plan.stages),
        pipelines=tuple(
            plan.pipelines[0].changed(stages=(name,), micro_batches=share)
            for name, share in (("s0", (0, 1)), ("s1", (2, 3)))
        ),
    )
    check_groups(profile, twice)
    shared = twice.changed(sharded_state=(LayerRange(first_layer=0, last_layer=7),))
    with pytest.raises(HeterpsError, match=r"'s0' and 's1' hold the same .* of 1 and 2 devices"):
        check_groups(profile, shared)


def test_one_group_cannot_hold_a_tie_with_unlike_shares() -> None:
    profile, plan = problem_of("gpt2").profile, _two_groups(2, 2)
    first, last = plan.stages
    tied = plan.changed(
        stages=(first, last.changed(devices=first.devices, tensor_shares=(0.25, 0.75)))
    )
    with pytest.raises(HeterpsError, match="unlike shares on the same devices"):
        check_groups(profile, tied)
