"""What supervisor and workers tell one another through the store."""

from __future__ import annotations

import threading

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.store import (
    Notice,
    SupersededError,
    allow_beats,
    beat,
    connect,
    meet,
    newest_number,
    publish,
    read_beats,
    serve,
    wait_for_head,
    wait_for_notice,
)
from heterps_runtime.specification.build import build_specification
from tests.runtime.elastic.small_runs import chain, elastic_problem


def _notice(number: int, *devices: str) -> Notice:
    problem = elastic_problem()
    plan = chain(problem, devices)
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=3), devices=devices
    )
    return Notice(number=number, specification=specification)


def test_a_waiting_worker_gets_the_newest_notice() -> None:
    server = serve()
    worker = connect(server.port)
    assert newest_number(worker) == -1
    found: list[Notice] = []
    waiting = threading.Thread(target=lambda: found.append(wait_for_notice(worker, -1)))
    waiting.start()
    publish(server, Notice(number=0))
    waiting.join(10)
    publish(server, Notice(number=1))
    publish(server, Notice(number=2, broken_below=1))
    assert [notice.number for notice in found] in ([0], [1], [2])
    assert wait_for_notice(worker, 0) == Notice(number=2, broken_below=1)


def test_a_notice_carries_the_whole_generation() -> None:
    server = serve()
    notice = _notice(0, "d0", "d1")
    publish(server, notice)
    assert wait_for_notice(connect(server.port), -1) == notice


def test_ranks_go_on_together_when_the_last_has_come() -> None:
    server = serve()
    notice = _notice(0, "d0", "d1")
    publish(server, notice)
    first, second = connect(server.port), connect(server.port)
    waiting = threading.Thread(target=meet, args=(first, notice, "d0"))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    meet(second, notice, "d1")
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_meeting_that_nobody_else_will_come_to_ends_with_a_newer_notice() -> None:
    server = serve()
    notice = _notice(0, "d0", "d1")
    publish(server, notice)
    publish(server, Notice(number=1))
    with pytest.raises(SupersededError, match="generation 0 has been superseded"):
        meet(connect(server.port), notice, "d0")


def test_heartbeats_tell_time_and_progress() -> None:
    server = serve()
    allow_beats(server, ["d0", "d1"])
    beat(connect(server.port), "d0", "4 17")
    beats = read_beats(server, ["d0", "d1"])
    assert beats["d0"].partition(" ")[2] == "4 17"
    assert beats["d1"] == ""
    assert read_beats(server, []) == {}


@pytest.mark.parametrize(
    "content",
    [
        "\x80\x04cposix\nsystem\n(S'true'\ntR.",
        "{",
        "null",
        '{"number": 7}',
        '{"number": 0, "specification": {"devices": []}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_notice_is_dropped_with_one_remark(content: str) -> None:
    server = serve()
    found: list[Notice] = []
    remarks: list[str] = []
    server.set("notice-0", content)
    worker = connect(server.port)
    waiting = threading.Thread(
        target=lambda: found.append(wait_for_notice(worker, -1, remarks.append))
    )
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    publish(server, Notice(number=0))
    waiting.join(10)
    assert found == [Notice(number=0)]
    (remark,) = remarks
    assert remark.startswith("notice 0 of the run's store is dropped (")


@pytest.mark.parametrize("strange", ["", "one", "9" * 5000, "1e3", "7", "\x80\x04."])
def test_numbers_that_are_none_end_nothing(strange: str) -> None:
    server = serve()
    publish(server, _notice(0, "d0"))
    server.set("newest", strange)
    assert newest_number(server) == -1
    assert wait_for_notice(server, -1).number == 0
    meet(server, _notice(0, "d0"), "d0")
    server.set("beat-d0", "\x80\x04" + strange)
    assert read_beats(server, ["d0"]) == {"d0": ""}


def test_a_head_that_is_none_is_waited_for() -> None:
    server, remarks = serve(), list[str]()
    server.set("head-0", "\x80")
    later = threading.Timer(0.2, publish, (server, Notice(number=0, broken_below=-1)))
    later.start()
    assert wait_for_head(connect(server.port), 0, remarks.append) == -1
    assert remarks == ["the head of notice 0 is no number; dropped"]
    later.join()
