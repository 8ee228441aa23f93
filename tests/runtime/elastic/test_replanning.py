"""When a run asks for a plan: once for what happens at one time, and for a host that comes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest

from heterps_configs.errors import NotEnoughDevicesError
from heterps_runtime.elastic.injection import Injection
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.replanning import GATHER_S, Replanning
from heterps_runtime.fleet.processes import DeviceProcess, Member, Place, Processes
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from tests.runtime.elastic.small_runs import Chains, chain, elastic_problem, wait_until
from tests.runtime.small_runs import DEVICES

LIMIT_S = 10.0


class _Scene:
    """Two hosts with two devices each, and a clock that stands still."""

    def __init__(self, *present: str) -> None:
        problem = elastic_problem()
        self.now_s, self.plans, self.gathered = 100.0, Chains(problem), set[str]()
        places = [Mock(spec=Place, devices=names) for names in (DEVICES[:2], DEVICES[2:])]
        self.processes = Processes(places)
        for name in present:
            self.start(name, is_ready=True)
        newest = SimpleNamespace(num_steps=10, plan=chain(problem, DEVICES))
        run = SimpleNamespace(problem=problem, newest=newest, next_step=3, hooks=RunHooks())
        self.replanning = Replanning(
            cast(ElasticState, run),
            self.processes,
            self.plans,
            Injection(self.processes, [], self.start),
            absent=[name for name in DEVICES if name not in present],
            clock=lambda: self.now_s,
        )

    def start(self, device: str, *, is_ready: bool = False) -> None:
        self.processes.members[device] = Member(device, Mock(spec=DeviceProcess), is_ready)

    def arrive(self, device: str) -> None:
        self.processes.members[device].is_ready = True
        assert self.replanning.is_new(device)
        self.replanning.come(device)

    def lose(self, device: str) -> None:
        del self.processes.members[device]
        self.replanning.lose(device, "ended")
        self.replanning.ask()

    def answer(self) -> PlanUpdate:
        """What is found for all that was asked."""
        found: list[PlanUpdate] = []

        def is_there() -> bool:
            self.gathered |= self.replanning.gathered()
            found.extend(filter(None, [self.replanning.take()]))
            return bool(found)

        assert wait_until(is_there, LIMIT_S)
        assert self.replanning.take() is None
        assert not self.replanning.is_busy
        return found[0]


def test_devices_that_are_lost_at_one_time_are_one_change() -> None:
    scene = _Scene(*DEVICES)
    scene.lose("d2")
    scene.lose("d3")
    assert scene.replanning.is_busy
    assert scene.answer().plan.devices == ("d0", "d1")
    assert [change.lost for change in scene.plans.changes] == [("d2", "d3")]


def test_the_devices_of_a_host_that_comes_back_are_one_change() -> None:
    scene = _Scene("d0", "d1")
    scene.start("d2")
    scene.start("d3")
    scene.arrive("d2")
    assert not scene.replanning.gathered()
    assert not scene.replanning.is_busy
    scene.arrive("d3")
    assert scene.answer().plan.devices == DEVICES
    assert [change.joined for change in scene.plans.changes] == [("d2", "d3")]
    assert scene.gathered == {"d2", "d3"}


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_device_waits_neither_for_a_lost_one_nor_for_long(is_lost: bool) -> None:
    scene = _Scene("d0", "d1")
    scene.start("d2")
    scene.start("d3")
    scene.arrive("d2")
    assert not scene.replanning.gathered()
    if is_lost:
        del scene.processes.members["d3"]
    else:
        scene.now_s += GATHER_S
    assert scene.answer().plan.devices == ("d0", "d1", "d2")


def test_a_loss_is_answered_at_once_with_those_that_wait() -> None:
    scene = _Scene("d0", "d1")
    scene.start("d2")
    scene.start("d3")
    scene.arrive("d2")
    scene.lose("d1")
    assert scene.answer().plan.devices == ("d0", "d2")
    assert scene.gathered == {"d2"}
    scene.arrive("d3")
    assert scene.answer().plan.devices == ("d0", "d2", "d3")


def test_where_no_device_is_left_and_none_comes_the_run_ends() -> None:
    scene = _Scene("d0")
    scene.lose("d0")
    with pytest.raises(NotEnoughDevicesError, match="all devices are lost, the last one is d0"):
        scene.replanning.take()
