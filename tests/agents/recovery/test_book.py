"""The book of recovery plans: likely losses, and plans for them made in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from heterps_agents.recovery.book import RecoveryBook
from heterps_agents.recovery.losses import likely_losses, loss_rate
from heterps_agents.recovery.model import Situation
from heterps_agents.recovery.pages import Request
from heterps_agents.recovery.plans import FULL
from heterps_agents.recovery.worker import better, page, pages
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem
from tests.agents.recovery.test_rules import check, plan_of
from tests.uneven_problems import MakeProblem

# A process has to start and to import the planners.
FULL_S = 120.0


def test_single_devices_come_first_then_nodes_then_pairs(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 1, 2))
    losses = [loss.devices for loss in likely_losses(problem, tolerated=2)]
    assert set(losses[:4]) == {
        frozenset({name}) for name in ("fast", "middle", "small-0", "small-1")
    }
    # The node of the fast device alone is that device.
    assert losses[4] == {"middle", "small-0", "small-1"}
    assert len(losses[5:]) == 6
    assert all(len(devices) == 2 for devices in losses[5:])


def test_losses_with_known_rates_come_in_their_order(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(1, 1, 2))
    rates = {"small": 0.5, "fast": 0.2, "small-1": 0.1, "middle": 0.3}
    losses = [loss for loss in likely_losses(problem, 2, rates) if len(loss.devices) == 1]
    assert [set(loss.devices) for loss in losses] == [
        {"small-0"},
        {"middle"},
        {"fast"},
        {"small-1"},
    ]
    pairs = [loss.per_hour for loss in likely_losses(problem, 2, rates)[5:]]
    assert all(a >= b for a, b in pairwise(pairs))


def test_a_device_below_its_list_price_is_likelier_to_be_lost(make_problem: MakeProblem) -> None:
    problem = make_problem()
    device = problem.cluster.devices[0]
    group = problem.cluster.nodes[0].devices[0].changed(price_usd_per_hour=1.0)
    node = problem.cluster.nodes[0].changed(devices=(group,))
    spot = problem.cluster.changed(nodes=(node, *problem.cluster.nodes[1:]))
    cheap = type(spot).model_validate(spot.model_dump()).devices[0]
    assert cheap.name == device.name
    assert loss_rate(cheap, {}) > 10 * loss_rate(device, {})


class Opened(NamedTuple):
    """One book for all tests, because its process takes a while to start."""

    book: RecoveryBook
    messages: list[str]

    def fill(self, problem: Problem, plan: Plan, alive: frozenset[str] | None = None) -> None:
        self.messages.clear()
        self.book.begin(problem, plan, alive)
        assert self.book.wait(FULL_S)


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    messages: list[str] = []
    with RecoveryBook(tolerated=2, on_message=messages.append) as book:
        yield Opened(book, messages)


@pytest.mark.slow
def test_every_loss_has_valid_plans_that_cost_no_planning_and_nothing_else_has(
    opened: Opened, make_problem: MakeProblem
) -> None:
    problem = make_problem(counts=(1, 2, 0), memory=4.0)
    plan = plan_of(problem, [(0, "fast"), (5, "middle-0|middle-1")])
    opened.fill(problem, plan)
    names = frozenset(problem.device_named)
    # Three devices and three pairs, of which one is a node.
    assert opened.messages == ["recovery plans are ready for 6 of 6 losses"]
    for lost in ({"fast"}, {"middle-1"}, {"fast", "middle-0"}):
        left = without_devices(problem, lost)
        now = Situation(problem, left, plan, tuple(lost), step=5, num_steps=9, checkpoint_step=3)
        found = opened.book.find(now, names - lost)
        assert found
        for each in found:
            check(left, plan, each.plan)
            assert each.replanning_s == 0
            assert each.remaining_s == pytest.approx(4 * each.step_s)
            assert each.repeated_s == pytest.approx((2 if "fast" in lost else 0) * each.step_s)
    # Other devices, and another plan.
    left = without_devices(problem, {"fast"})
    now = Situation(problem, left, plan, ("fast",), step=5, num_steps=9)
    assert opened.book.find(now, names - {"fast"}) is not None
    assert opened.book.find(now, names - {"fast"} | {"another"}) is None
    other = plan_of(problem, [(0, "fast"), (3, "middle-0|middle-1")])
    assert opened.book.find(now._replace(plan=other), names - {"fast"}) is None


@pytest.mark.slow
def test_a_new_plan_begins_the_book_anew_and_prepares_for_what_may_come_back(
    opened: Opened, make_problem: MakeProblem
) -> None:
    problem = make_problem(counts=(1, 2, 0), memory=4.0)
    plan = plan_of(problem, [(0, "fast"), (5, "middle-0")])
    opened.book.begin(problem, plan)
    opened.fill(problem, plan, frozenset({"fast", "middle-0"}))
    back = Situation(problem, problem, plan, (), step=0, num_steps=9)
    assert opened.book.find(back, frozenset(problem.device_named))
    # One of the two is lost, or the third comes back.
    for alive in (frozenset({"fast"}), frozenset({"middle-0"})):
        assert opened.book.find(back, alive) is not None


@pytest.mark.slow
def test_what_cannot_be_tolerated_is_said_with_its_reason(
    opened: Opened, make_problem: MakeProblem
) -> None:
    problem = make_problem(counts=(1, 1, 0), memory=0.6)
    opened.fill(problem, plan_of(problem, [(0, "middle"), (1, "fast")]))
    (text,) = opened.messages
    assert "0 of 2 losses; these cannot be tolerated: " in text
    assert "without fast: " in text
    assert "needs at least" in text


@pytest.mark.slow
def test_more_effort_replaces_a_plan_that_was_made_anew_only_by_a_faster_one(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(1, 2, 0), memory=2.0)
    plan = plan_of(problem, [(0, "fast"), (5, "middle-0|middle-1")])
    request = Request(0, problem, plan, [frozenset(problem.device_named) - {"fast"}])
    first = page(request, request.changes[0])
    (known,) = (each for each in first.predictions if each.rule == FULL)
    others = tuple(each for each in first.predictions if each.rule != FULL)
    slower = first._replace(predictions=(*others, replace(known, step_s=2 * known.step_s)))
    improved = better(request, slower)
    assert improved is not None
    assert improved.predictions[:-1] == others
    assert improved.predictions[-1].step_s <= known.step_s * (1 + 1e-6)
    faster = first._replace(predictions=(*others, replace(known, step_s=known.step_s / 2)))
    assert better(request, faster) is None
    assert [each.alive for each in pages(request)][:1] == list(request.changes)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs the signals of POSIX")
def test_the_process_ends_with_the_one_that_started_it() -> None:
    """However that ends: here it is killed."""
    script = (
        "import sys, time\n"
        "from heterps_agents.interface.background import BackgroundWorker\n"
        "worker = BackgroundWorker('heterps_agents.recovery.worker', print)\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    limit = time.monotonic() + 30
    while _is_running(worker) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not _is_running(worker)


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
