"""Who may take part in an elastic run, and what each side hears of the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.fleet.agent import LostHostError, serve_host
from heterps_runtime.fleet.messages import Joining, Told, Welcome
from heterps_runtime.fleet.others import SERVICE, OtherHosts
from heterps_runtime.fleet.processes import LOST_HOST, Line, Processes
from heterps_runtime.fleet.remote import RemotePlace
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.network.dial import dial
from heterps_runtime.network.gate import Gate
from heterps_runtime.network.lines import Lines
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.hosts import Hosts, machine_identity
from tests.runtime.elastic.small_runs import chain, elastic_problem, wait_until
from tests.runtime.networks import SECRET, free_port

FACTS = {"plan": "a", "--steps": "10"}
DEVICES = (("d0",), ("d1", "d2"))


class Site:
    """Host 0, which waits for host 1 in a thread.

    Attributes:
        remarks: What it says.
        places: What it got.
    """

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.port, self.remarks, self.folder = free_port(), list[str](), folder
        self.others = stack.enter_context(OtherHosts(self.hosts(0), FACTS, self.remarks.append))
        problem, devices = elastic_problem(), ("d0", "d1", "d2")
        plan = chain(problem, devices)
        schedule, settings = build_schedule(problem, plan), RunSettings(steps=3)
        self.specification = build_specification(problem, plan, schedule, settings, devices=devices)
        self.places: list[RemotePlace] = []
        waiting = threading.Thread(target=self._wait, daemon=True)
        waiting.start()
        stack.callback(waiting.join, 20)

    def hosts(self, rank: int) -> Hosts:
        """As one of two hosts sees them."""
        return Hosts(2, rank, "127.0.0.1", self.port, SECRET.encode(), timeout_s=20)

    def come(self, rank: int = 1, **changed: Any) -> tuple[Lines, Iterator[dict[str, Any]], str]:
        """A host comes: what it says and hears, and why it was refused."""
        lines = Lines(dial(self.hosts(1).host_0, {"service": SERVICE, "host": rank}))
        joining = Joining(facts=FACTS, machine=machine_identity()).changed(**changed)
        lines.send(joining.model_dump())
        words = iter(lines)
        return lines, words, Welcome.from_mapping(next(words)).refusal

    def let_go(self) -> None:
        """Nobody waits any more: a host stays until that is seen."""
        staying = self.come()
        assert wait_until(lambda: bool(self.places), 10)
        staying[0].connection.close()

    def _wait(self) -> None:
        self.places = self.others.places(self.specification, DEVICES, self.folder, 1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        made = Site(stack, tmp_path)
        yield made
        made.let_go()


def _settings(device: str) -> WorkerSettings:
    values = {name: 1.0 for name in WorkerSettings.model_fields if name.endswith("_s")}
    return WorkerSettings.model_validate({"device": device, "number": 1, "port": 1, **values})


def test_who_waits_says_for_whom_and_who_does_not_belong_is_refused(site: Site) -> None:
    assert wait_until(lambda: bool(site.remarks), 5)
    assert site.remarks[0] == f"waiting for host 1 of 2 at 127.0.0.1:{site.port} (0 s)"
    expected: dict[str, dict[str, Any]] = {
        "--steps: 11 there, 10 on host 0": {"facts": {**FACTS, "--steps": "11"}},
        "emulated devices need one machine": {"machine": "another"},
        "--node-rank 2: this run has 2 hosts": {"rank": 2},
    }
    for text, changed in expected.items():
        assert text in site.come(**changed)[2]
    assert not site.places
    kept = site.come()
    assert kept[2] == ""
    assert wait_until(lambda: bool(site.places), 5)
    assert "there is a host with --node-rank 1 already" in site.come()[2]


def test_processes_of_another_host_are_as_those_of_this_one(site: Site) -> None:
    lines, words, _ = site.come()
    assert wait_until(lambda: bool(site.places), 5)
    with Processes(site.places) as processes:
        for device in ("d1", "d2"):
            processes.start(_settings(device))
        tickets = [next(words)["order"]["ticket"] for _ in range(2)]
        lines.send(Told(ticket=tickets[0], pid=4711).model_dump())
        lines.send(Told(ticket=tickets[0], line={"ready": 4711}).model_dump())
        lines.send(Told(ticket=tickets[0], file="error-1.json", text="{}").model_dump())
        lines.send(Told(ticket=tickets[0], code=1).model_dump())
        assert list(processes.lines(5)) == [Line("d1", {"ready": 4711})]
        assert wait_until(lambda: bool(processes.ended()), 5)
        assert [(m.device, m.process.pid, code) for m, code in processes.ended()] == [
            ("d1", 4711, 1)
        ]
        assert (site.folder / "error-1.json").read_text() == "{}"
        processes.signal("d2", SIGKILL)
        assert next(words)["order"] == {"kind": "signal", "ticket": tickets[1], "number": 9}
        lines.connection.cut()
        assert wait_until(lambda: len(processes.ended()) == 2, 2)
        assert dict((m.device, code) for m, code in processes.ended())["d2"] == LOST_HOST
        for device in ("d1", "d2"):
            processes.remove(device)
        assert processes.come_back() == []
        staying = site.come()
        assert wait_until(lambda: site.places[0].is_there, 5)
        assert processes.come_back() == ["d1", "d2"]
        assert processes.come_back() == []
        staying[0].connection.close()


@pytest.mark.parametrize(
    "content",
    [
        {"ticket": 0, "file": "../escaped.json", "text": "x"},
        {"ticket": 0, "file": "/elsewhere/error-1.json", "text": "x"},
        {"ticket": -1, "code": 0},
        {"ticket": "d1", "unknown": 1},
        {},
    ],
)
def test_what_does_not_validate_ends_the_conversation(site: Site, content: dict[str, Any]) -> None:
    lines, words, _ = site.come()
    assert wait_until(lambda: bool(site.places), 5)
    process = site.places[0].start(_settings("d1"), lambda line: None)
    next(words)
    lines.send(content)
    assert wait_until(lambda: process.code() == LOST_HOST, 5)
    assert sorted(path.name for path in site.folder.iterdir()) == []


def test_another_machines_clock_is_read_as_ours(tmp_path: Path) -> None:
    place = RemotePlace(("d1",), tmp_path)
    place._has_same_clock = False
    found = place._on_this_clock({"sent_s": 5e6, "at_s": 5e6 - 2, "step": 3})
    assert found["sent_s"] == pytest.approx(time.monotonic(), abs=1)
    assert found["sent_s"] - found["at_s"] == pytest.approx(2)
    assert found["step"] == 3


def test_the_agent_of_a_run_that_fails_or_vanishes_says_so(tmp_path: Path) -> None:
    said: list[str] = []
    with ExitStack() as stack:
        site = Site(stack, tmp_path)
        with pytest.raises(HeterpsError, match="host 0: it was started for another run"):
            serve_host(site.hosts(1), {}, tmp_path / "host-1", said.append)
        site.let_go()
    host_0 = site.hosts(1).host_0
    with Gate(host_0, said.append) as gate:
        gate.serve(SERVICE, lambda connection, hello: connection.cut())
        with pytest.raises(LostHostError, match="has gone"):
            serve_host(site.hosts(1), {}, tmp_path / "host-1", said.append)
    assert not (tmp_path / "host-1").exists()
