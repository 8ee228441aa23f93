"""Who is taken for lost: nobody who is only slow, or whom the supervisor could not hear."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from heterps_configs.documents.run_settings import ElasticSettings
from heterps_runtime.elastic import heartbeats as elastic_heartbeats
from heterps_runtime.elastic.heartbeats import Heartbeats, whom_to_wait_for, with_stall_s
from heterps_runtime.fleet.processes import DeviceProcess, Member

LIMITS = ElasticSettings(stall_s=30.0)


class _Scene:
    """One process, and a clock that stands still until it is told."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, is_ready: bool = False, is_warm: bool = False
    ) -> None:
        self.now_s, self.is_stopped = 100.0, False
        self.beat = "1 -"
        process = Mock(spec=DeviceProcess)
        process.is_stopped = lambda: self.is_stopped
        self.member = Member("d0", process, is_ready, is_warm, beat_at_s=self.now_s)
        monkeypatch.setattr(
            elastic_heartbeats, "read_beats", lambda store, devices: {"d0": self.beat}
        )
        self.heartbeats = Heartbeats(Mock(), LIMITS, clock=lambda: self.now_s)
        self.heartbeats.overdue([self.member])

    def pass_s(self, seconds: float, every_s: float = 0.05) -> list[float]:
        """Time goes on, and the supervisor looks now and then."""
        late: list[float] = []
        for _ in range(round(seconds / every_s)):
            self.now_s += every_s
            late += [limit_s for _, limit_s in self.heartbeats.overdue([self.member])]
        return late


def test_a_silent_process_is_overdue_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _Scene(monkeypatch, is_ready=True, is_warm=True)
    assert scene.pass_s(1.4) == []
    assert scene.pass_s(0.3)[0] == 1.5


def test_a_process_that_is_known_to_be_stopped_builds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = _Scene(monkeypatch, is_ready=True)
    assert scene.pass_s(3.0) == []
    scene.is_stopped = True
    assert scene.pass_s(0.2)[0] == LIMITS.heartbeat_s


def test_a_long_recovery_says_who_does_what() -> None:
    beats = {"d0": "9.5 3 meeting -", "d1": "9.4 2 recovering 5 1 0", "d2": "", "d3": "9 2 waiting"}
    members = [Member(name, Mock(spec=DeviceProcess), beat=beat) for name, beat in beats.items()]
    assert whom_to_wait_for(members, 3) == (
        "d0: meeting; d1: still recovering under plan 3; d2: starting; d3: waiting"
    )


def test_a_process_with_heartbeats_may_take_as_long_as_it_likes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = _Scene(monkeypatch, is_ready=True, is_warm=True)
    for number in range(100):
        scene.beat = f"{number} 3 7"
        assert scene.pass_s(1.0) == []


@pytest.mark.parametrize(
    ("state", "limit_s"),
    [({}, LIMITS.start_s), ({"is_ready": True}, LIMITS.warm_up_s)],
    ids=["start", "build"],
)
def test_a_process_that_is_not_warm_has_more_time(
    state: dict[str, bool], limit_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = _Scene(monkeypatch, **state)
    assert scene.pass_s(limit_s - 1) == []
    assert scene.pass_s(2)[0] == limit_s


def test_a_standby_that_never_trained_holds_the_others_up_for_seconds_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = _Scene(monkeypatch, is_ready=True)
    scene.member.is_standby = True
    assert scene.pass_s(LIMITS.standby_s - 1) == []
    assert scene.pass_s(2)[0] == LIMITS.standby_s


def test_time_in_which_the_supervisor_was_held_up_counts_for_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = _Scene(monkeypatch, is_ready=True, is_warm=True)
    scene.pass_s(1.0)
    scene.now_s += 60.0
    assert scene.heartbeats.overdue([scene.member]) == []
    assert scene.pass_s(0.2) == []
    assert scene.pass_s(0.5)[0] == 1.5


def test_a_generation_is_stalled_when_nobody_does_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = _Scene(monkeypatch, is_ready=True, is_warm=True)
    for number in range(45):
        scene.beat = f"{number} 3 7"
        scene.pass_s(1.0)
    members = [scene.member]
    assert scene.heartbeats.is_stalled(members, has_steps=True)
    assert not scene.heartbeats.is_stalled(members, has_steps=False), "states may still move"
    scene.beat = "46 3 8"
    scene.pass_s(1.0)
    assert not scene.heartbeats.is_stalled(members, has_steps=True)


def test_a_first_generation_may_read_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = _Scene(monkeypatch, is_ready=True)
    for number in range(round(LIMITS.first_read_s) - 1):
        scene.beat = f"{number} -"
        scene.pass_s(1.0, every_s=0.1)
    assert not scene.heartbeats.is_stalled([scene.member], has_steps=False)
    scene.pass_s(5.0)
    assert scene.heartbeats.is_stalled([scene.member], has_steps=False)


def test_a_stall_is_half_a_minute_or_ten_steps_where_nothing_else_is_said() -> None:
    limits = ElasticSettings()
    assert with_stall_s(limits, 0.1).stall_s == 30
    assert with_stall_s(limits, 4.0).stall_s == 40
    assert with_stall_s(limits.changed(stall_s=6.0), 4.0).stall_s == 6
