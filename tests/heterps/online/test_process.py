"""The search in a process of its own: it answers, is ended, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from heterps.online.process import BackgroundSearch, BackgroundSearches
from heterps.online.search import SearchTask, answers
from heterps.planning.place import place
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Job
from heterps_configs.documents.run_settings import OnlineSettings
from heterps_configs.library import load_cluster
from heterps_envs.online.correction import ProblemBelief
from heterps_envs.problem import Problem
from tests.heterps.small_profiles import blocks_profile

LIMIT_S = 120.0


def a_task(fine_tune_s: float = 0.0) -> SearchTask:
    problem = Problem(blocks_profile(), load_cluster("local-emulated"), Job(dtype="float32"))
    plan = place(problem, "even").plan
    policy = Policy.load("generalist")
    return SearchTask(
        ProblemBelief(problem),
        problem,
        plan,
        policy,
        OnlineSettings(fine_tune_s=fine_tune_s),
        seed=0,
    )


def begun(task: SearchTask) -> BackgroundSearch:
    search = BackgroundSearch()
    search.begin(task)
    return search


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def test_the_best_candidate_is_no_slower_than_the_running_plan() -> None:
    (found,) = answers(a_task())
    times = {name: candidate.step_time_s for name, candidate in found.candidates.items()}
    assert set(times) == {"stale", "exact", PolicyPlanner.name}
    assert min(times.values()) < times["stale"]
    exact, stale = found.candidates["exact"], found.candidates["stale"]
    assert exact.gain_spread_s(stale) > 0 == stale.gain_spread_s(stale)


@pytest.mark.slow
def test_the_process_answers_as_this_one_would() -> None:
    task = a_task()
    search = begun(task)
    assert search.worker.wait(LIMIT_S)
    (found,) = search.poll()
    assert not search.close()
    (expected,) = answers(task)
    assert not isinstance(found, str)
    assert found.candidates.keys() == expected.candidates.keys()
    for name, candidate in found.candidates.items():
        assert candidate.plan == expected.candidates[name].plan
        assert candidate.drawn_s == pytest.approx(expected.candidates[name].drawn_s)


def test_a_search_that_is_closed_leaves_no_process() -> None:
    search = begun(a_task(fine_tune_s=100.0))
    pid = search.worker.pid
    assert is_alive(pid)
    assert search.close()
    assert not is_alive(pid)


@pytest.mark.slow
def test_a_waiting_process_takes_the_next_search_and_ends_with_the_others() -> None:
    searches = BackgroundSearches()
    first = searches._spare
    search = searches(a_task())
    second = searches._spare
    assert search is first
    assert search.worker.wait(LIMIT_S)
    assert len(search.poll()) == 1
    search.close()
    searches.close()
    assert not is_alive(first.worker.pid)
    assert not is_alive(second.worker.pid)


@pytest.mark.slow
def test_a_search_ends_with_whoever_started_it(tmp_path: Path) -> None:
    program = (
        "from tests.heterps.online.test_process import a_task, begun\n"
        "search = begun(a_task(fine_tune_s=100.0))\n"
        "print(search.worker.pid, flush=True)\n"
        "import os, time\n"
        "time.sleep(0.3)\n"
        "os._exit(9)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", *sys.path])},
    )
    assert ended.returncode == 9, ended.stderr
    pid, until_s = int(ended.stdout), time.monotonic() + LIMIT_S
    while is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not is_alive(pid)


@pytest.mark.slow
@pytest.mark.alone
def test_the_fine_tuned_policy_comes_in_a_second_answer() -> None:
    search = begun(a_task(fine_tune_s=3.0))
    assert search.worker.wait(LIMIT_S)
    first, second = search.poll()
    search.close()
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert first.policy is None
    assert second.policy is not None
    assert second.policy.meta["fine_tuned_steps"] > 0
    assert "tuned-ppo" in second.candidates
