"""Injections: the cases that are drawn, and the processes of a run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.online.recovery.injection_cases import (
    DEVICES,
    GROUP_PLANS,
    KINDS,
    PLANS,
    WITHOUT_GROUPS,
    draw,
    draw_group,
    plan_named,
    problem,
)
from benchmarks.online.recovery.injection_run import processes_in
from benchmarks.online.recovery.injection_verdict import listeners_while, open_sockets
from benchmarks.online.recovery.spot import _summary
from benchmarks.shared.sockets import listeners_of
from heterps_envs.closed_form.placement import check_plan


def test_every_kind_is_drawn_and_leaves_devices_to_go_on_with() -> None:
    cases = [draw(seed) for seed in range(4 * len(KINDS))]
    assert {case.kind for case in cases} == set(KINDS)
    assert cases == [draw(case.seed) for case in cases]
    for case in cases:
        victims = {action.device for action in case.actions if action.act in ("kill", "stop")}
        assert len(victims) <= 2
        assert victims <= set(DEVICES)


@pytest.mark.parametrize("name", [*PLANS, *GROUP_PLANS, *WITHOUT_GROUPS.values()])
def test_plans_of_the_injections_fit_their_problem(name: str) -> None:
    of = problem(is_of_blocks=name not in PLANS)
    check_plan(of, plan_named(name, of))


def test_a_group_loses_a_rank_when_the_plan_beside_it_loses_a_device() -> None:
    for number in range(0, 12, 2):
        first, second = draw_group(number), draw_group(number + 1)
        assert first.plan in GROUP_PLANS
        assert second.plan == WITHOUT_GROUPS[first.plan]
        assert first.actions == second.actions


def test_processes_are_found_by_the_folder_that_they_work_in(tmp_path: Path) -> None:
    assert processes_in(tmp_path) == []
    here = Path.cwd()
    assert os.getpid() in [pid for pid, _ in processes_in(here)]


LISTENS = """
import socket, sys, time
inner, outer = socket.create_server(("127.0.0.1", 0)), socket.create_server(("0.0.0.0", 0))
print(outer.getsockname()[1], flush=True)
time.sleep(60)
"""


def test_a_socket_of_a_run_that_other_hosts_reach_is_seen(tmp_path: Path) -> None:
    with listeners_while(tmp_path) as seen:
        run = subprocess.Popen(
            [sys.executable, "-c", LISTENS], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert run.stdout is not None
        port = int(run.stdout.readline())
        for _ in range(100):
            if len(seen) == 2:
                break
            time.sleep(0.05)
        run.kill()
        run.communicate()
    assert open_sockets(seen) == [f"0.0.0.0:{port} beyond the loopback"]


def test_a_socket_that_outlives_its_run_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as left:
        port = left.getsockname()[1]
        seen = {each for each in listeners_of([os.getpid()]) if each.port == port}
        assert open_sockets(seen) == [f"127.0.0.1:{port} left open"]
    assert open_sockets(seen) == []


def test_the_summary_of_spot_traces_compares_ours_with_the_others() -> None:
    row = {"ceiling share": 0.9}
    rates = [[2.0, 3.0, 4.0], [4.0, 4.0, 4.0]]
    found = [[{**row, "samples_per_s": rate} for rate in rows] for rows in rates]
    summary = _summary(found)
    assert summary["ours over restart, least"] == 1.0
    assert summary["ours over restart, most"] == 2.0
    assert summary["ours over templates, most"] == pytest.approx(4 / 3)
