"""Stages and routes of chains on named devices."""

from __future__ import annotations

from heterps_agents.finishing.chains import Column, routed

WHOLE = (Column(0, 1, ("a", "b")), Column(2, 2, ("c",), (2,)))


def test_replicas_take_micro_batches_in_turns() -> None:
    stages, pipelines = routed([WHOLE], [range(4)])
    assert [(s.name, s.devices, s.recompute_layers) for s in stages] == [
        ("s0r0", ("a",), ()),
        ("s1", ("c",), (2,)),
        ("s0r1", ("b",), ()),
    ]
    assert [(p.stages, p.micro_batches) for p in pipelines] == [
        (("s0r0", "s1"), (0, 2)),
        (("s0r1", "s1"), (1, 3)),
    ]


def test_a_replica_that_no_micro_batch_reaches_is_left_out() -> None:
    stages, pipelines = routed([WHOLE], [range(1)])
    assert [stage.name for stage in stages] == ["s0r0", "s1"]
    assert len(pipelines) == 1


def test_given_turns_are_kept() -> None:
    _, pipelines = routed([WHOLE], [range(4)], [[[0, 0, 0, 1], [0, 0, 0, 0]]])
    assert [p.micro_batches for p in pipelines] == [(0, 1, 2), (3,)]


def test_chains_share_a_stage_of_the_same_layers_on_the_same_device() -> None:
    other = (Column(0, 0, ("d",)), Column(1, 1, ("e",)), Column(2, 2, ("c",)))
    stages, pipelines = routed([WHOLE[:1] + other[2:], other], [range(2), range(2, 4)])
    assert [stage.devices[0] for stage in stages] == ["a", "c", "b", "d", "e"]
    assert pipelines[-1].stages == ("p1s0", "p1s1", "p0s1")


def test_a_column_of_some_degree_has_a_stage_for_each_group_of_its_devices() -> None:
    column = Column(0, 2, ("a", "b", "c", "d"), degree=2)
    stages, pipelines = routed([(column,)], [range(2)])
    assert [(s.name, s.devices) for s in stages] == [("s0r0", ("a", "b")), ("s0r1", ("c", "d"))]
    assert [p.micro_batches for p in pipelines] == [(0,), (1,)]
