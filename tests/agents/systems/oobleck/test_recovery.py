"""Fixtures of recovery: Oobleck's code of 2023 (regrouping), its rewrite of 2026 (state kept)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.oobleck.recovery import Group, RecoveryUnavailable, recover_groups
from heterps_agents.systems.oobleck.regroup import regroup

GROUPS = [[0, 1], [2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12, 13]]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ([2], [[0, 1], [3, 4], [5, 6, 7, 8], [9, 10, 11, 12, 13]]),
        ([6, 8], [[0, 1], [5, 7], [2, 3, 4], [9, 10, 11, 12, 13]]),
        ([10, 11], [[0, 1], [2, 3, 4], [9, 12, 13], [5, 6, 7, 8]]),
        ([1, 3, 4], [[0, 13], [2, 12], [9, 10, 11], [5, 6, 7, 8]]),
        ([2, 4, 6, 7, 8], [[0, 1], [3, 13], [5, 12], [9, 10, 11]]),
        (list(range(1, 12)), [[0, 12, 13]]),
        ([1, 2, 3, 5, 6, 7, 9, 10, 11], [[0, 4], [8, 12, 13]]),
    ],
)
def test_survivors_are_regrouped_as_by_the_code_of_2023(
    lost: list[int], expected: list[list[int]]
) -> None:
    """Tests of Oobleck's artifact (SOSP 2023): four pipelines on 14 nodes, at least 2 each."""
    found = regroup(GROUPS, lost, lambda group: len(group) >= 2)
    assert sorted(map(sorted, found)) == sorted(map(sorted, expected))


@given(st.sets(st.integers(0, 13)), st.integers(1, 4))
def test_regrouping_uses_every_survivor_once_in_groups_that_are_large_enough(
    lost: set[int], least: int
) -> None:
    found = regroup(GROUPS, lost, lambda group: len(group) >= least)
    survivors = sorted(set(range(14)) - lost)
    assert all(len(group) >= least for group in found)
    used = sorted(node for group in found for node in group)
    assert used == (survivors if len(survivors) >= least else [])


def templates(*sizes: int) -> dict[int, Callable[[int], float]]:
    """As those of the tests of 2026: a stage takes 2 units in all, and each fills one more turn."""

    def time_s(size: int) -> Callable[[int], float]:
        return lambda number: 2.0 * (number + size - 1)

    return {size: time_s(size) for size in sizes}


def groups(**sizes: int) -> list[Group]:
    return [Group(k, tuple(f"{k}{i}" for i in range(n))) for k, n in sizes.items()]


def test_the_node_with_least_state_is_borrowed() -> None:
    """Tests of the rewrite of 2026."""
    found = recover_groups(
        groups(a=3, b=3), {"a0", "b0", "b1", "b2"}, templates(2, 3), 4, 1,
        {"a0": 10, "b0": 100, "b1": 1, "b2": 50},
    )  # fmt: skip
    assert found.groups == (Group("a", ("a0", "b1")), Group("b", ("b0", "b2")))
    assert found.retained_bytes == 160
    assert "borrow" in found.rules


def test_a_merged_pipeline_keeps_the_identity_with_more_state() -> None:
    """Tests of the rewrite of 2026."""
    found = recover_groups(
        groups(a=2, b=2, c=2), {"a0", "b0", "c0", "c1"}, templates(2, 4), 4, 1,
        {"a0": 1, "b0": 100, "c0": 20, "c1": 20},
    )  # fmt: skip
    assert Group("b", ("a0", "b0")) in found.groups
    assert found.retained_bytes == 140
    assert "merge" in found.rules


def test_two_losses_in_two_pipelines_move_no_node() -> None:
    """Tests of the rewrite of 2026."""
    survivors = {"a0", "a1", "b0", "b1", "c0", "c1", "c2"}
    found = recover_groups(groups(a=3, b=3, c=3), survivors, templates(2, 3), 6, 2)
    assert found.rules == ("simple",)
    assert found.moved_nodes == 0
    assert len(found.groups) == 3


def test_a_join_leaves_old_owners_in_place_and_tolerates_as_many_losses_as_before() -> None:
    """Tests of the rewrite of 2026."""
    before = [Group("p0", ("b", "c")), Group("p1", ("d", "e"))]
    found = recover_groups(
        before, set("abcdef"), templates(2), 6, 2, {"b": 50, "c": 50, "d": 40, "e": 40}
    )
    assert set(before) < set(found.groups)
    assert found.retained_bytes == 180
    assert len(found.groups) == 3
    assert sum(found.micro_batches) == 6


def test_too_few_survivors_are_said_to_be_too_few() -> None:
    with pytest.raises(RecoveryUnavailable, match="no template has 1 nodes"):
        recover_groups(groups(a=2), {"a0"}, templates(2), 2, 0)
    with pytest.raises(RecoveryUnavailable, match="1 pipelines are left"):
        recover_groups(groups(a=2), {"a0", "a1"}, templates(2), 2, 1)


@given(st.sets(st.sampled_from([f"{k}{i}" for k in "abc" for i in range(3)]), max_size=6))
def test_every_survivor_is_used_once_or_recovery_is_refused(lost: set[str]) -> None:
    before = groups(a=3, b=3, c=3)
    survivors = {node for group in before for node in group.nodes} - lost
    try:
        found = recover_groups(before, survivors, templates(2, 3, 4, 5, 6), 8, 0)
    except RecoveryUnavailable:
        assert len(survivors) < 2
        return
    assert sorted(node for group in found.groups for node in group.nodes) == sorted(survivors)
    assert sum(found.micro_batches) == 8
