"""Devices that are brought into a run on purpose: none twice, and none that is needed too late."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from heterps_configs.documents.run_events import RunEvent
from heterps_runtime.elastic.injection import Injection
from heterps_runtime.fleet.processes import Processes


class _Fleet:
    def __init__(self, *devices: str) -> None:
        self.members: dict[str, Any] = {name: Mock() for name in devices}

    def start(self, device: str) -> None:
        assert device not in self.members
        self.members[device] = Mock()


def test_a_join_of_a_device_that_is_there_waits_until_it_is_lost() -> None:
    fleet = _Fleet("d0", "d1")
    events = [RunEvent(step=2, join="d1"), RunEvent(step=3, join="d2")]
    injection = Injection(cast(Processes, fleet), events, fleet.start)
    injection.carry_out(2, 0.0)
    assert set(fleet.members) == {"d0", "d1"}
    assert injection.unneeded == ("d1",)
    assert injection.has_joins, "d2 comes"
    injection.carry_out(3, 0.0)
    assert set(fleet.members) == {"d0", "d1", "d2"}
    assert not injection.has_joins, "nobody comes while d1 is there"
    del fleet.members["d1"]
    assert injection.has_joins
    injection.carry_out(4, 0.0)
    assert set(fleet.members) == {"d0", "d1", "d2"}
    assert not injection.unneeded
