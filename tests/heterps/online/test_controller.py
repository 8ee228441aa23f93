"""The controller of online runs: when it searches, what it adopts, and what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterps.online.controller import OnlineController
from heterps.online.process import Search
from heterps.online.search import Answer, Candidate, SearchTask, answers
from heterps.planning.place import place
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings
from heterps_configs.library import load_cluster
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.online.correction import StageMeasurement
from heterps_envs.online.drift_monitor import DriftEvent, Subject
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulate
from tests.heterps.small_profiles import blocks_profile


@pytest.fixture
def problem() -> Problem:
    return Problem(blocks_profile(), load_cluster("local-emulated"), Job(dtype="float32"))


def measured(problem: Problem, plan: Plan, slower: dict[str, float]) -> list[StageMeasurement]:
    """What a run of the plan would measure with some devices slower."""
    found = []
    for stage in plan.stages:
        device = stage.devices[0]
        column = problem.class_of[device]
        layers = slice(stage.first_layer, stage.last_layer + 1)
        factor = slower.get(device, 1.0)
        forward = float(problem.tables.forward_s[layers, column].sum()) * factor
        backward = float(problem.tables.backward_s[layers, column].sum()) * factor
        found.append(
            StageMeasurement(device, stage.first_layer, stage.last_layer, forward, backward)
        )
    return found


class InlineSearch:
    """Does all the work at once, in this process."""

    def __init__(self, task: SearchTask) -> None:
        self._answers: list[Answer | str] = list(answers(task))

    def poll(self) -> list[Answer | str]:
        found, self._answers = self._answers, []
        return found

    def is_working(self) -> bool:
        return bool(self._answers)

    def close(self) -> bool:
        return False


class LateSearch:
    """Answers when it is told to."""

    def __init__(self, task: SearchTask) -> None:
        self.task, self.is_closed = task, False
        self.waiting: list[Answer | str] = []

    def poll(self) -> list[Answer | str]:
        found, self.waiting = self.waiting, []
        return found

    def is_working(self) -> bool:
        return not self.is_closed

    def close(self) -> bool:
        self.is_closed = True
        return True


def controller(
    problem: Problem, plan: Plan, start_search: Callable[[SearchTask], Search] = InlineSearch
) -> OnlineController:
    return OnlineController(
        problem,
        plan,
        Policy.load("generalist"),
        OnlineSettings(fine_tune_s=0),
        start_search=start_search,
    )


def late(problem: Problem, plan: Plan) -> tuple[OnlineController, list[LateSearch], list[str]]:
    """A controller, its searches, and what it says."""
    searches: list[LateSearch] = []
    messages: list[str] = []

    def start(task: SearchTask) -> LateSearch:
        searches.append(LateSearch(task))
        return searches[-1]

    watcher = OnlineController(
        problem, plan, Policy.load("generalist"), start_search=start, on_message=messages.append
    )
    return watcher, searches, messages


def answer(
    plan: Plan, other: Plan, stale_s: float, other_s: float, draws: tuple[float, ...] = ()
) -> Answer:
    """Two candidates; `draws` are the other's steps where the stale plan's take `stale_s`."""
    return Answer(
        {
            "stale": Candidate(plan, stale_s, (stale_s,) * len(draws)),
            "ppo": Candidate(other, other_s, draws),
        }
    )


def test_nothing_happens_while_the_run_is_as_predicted(problem: Problem) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    assert watcher.observe(5, 100, measured(problem, plan, {"fast": 1.05})) is None
    assert watcher.decisions == []


@pytest.mark.slow
def test_a_slow_device_gets_fewer_layers_and_the_prediction_is_what_the_slow_device_gives(
    problem: Problem,
) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    adapted = watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    assert adapted is not None
    decision = watcher.decisions[0]
    assert decision.adopted
    assert decision.drift["fast"] == pytest.approx(3.0)
    stale_s = simulate(problem, plan, slowdown={"fast": 3.0}).step_time_s
    assert decision.candidates["stale"] == pytest.approx(stale_s, rel=0.02)
    adapted_s = estimate(watcher.problem, adapted).step_time_s
    assert adapted_s == pytest.approx(stale_s - decision.gain_s, rel=0.02)
    assert adapted_s < stale_s / 1.3


def test_a_new_plan_is_not_adopted_when_too_few_steps_remain_to_pay_for_the_move(
    problem: Problem,
) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    assert watcher.observe(99, 0, measured(problem, plan, {"fast": 3.0})) is None
    assert watcher.decisions[0].adopted is False


def test_the_second_look_at_the_same_drift_changes_nothing(problem: Problem) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    adapted = watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    assert adapted is not None
    again = measured(watcher.problem, adapted, {})
    assert watcher.observe(10, 95, again) is None
    assert len(watcher.decisions) == 1


def test_a_step_never_waits_for_a_search(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, _ = late(problem, plan)
    other = place(problem, "even").plan
    assert watcher.observe(5, 1000, measured(problem, plan, {"fast": 3.0})) is None
    assert len(searches) == 1
    assert watcher.observe(10, 1000, measured(problem, plan, {"fast": 3.0})) is None
    assert len(searches) == 1
    searches[0].waiting.append(answer(plan, other, 2.0, 1.0))
    assert watcher.observe(15, 1000, measured(problem, plan, {"fast": 3.0})) is not None


def test_times_that_wander_let_a_search_come_to_its_answer(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, _ = late(problem, plan)
    for index in range(20):
        factor = 1.3 if index % 2 else 1.0
        watcher.observe(5 * index, 1000, measured(problem, plan, {"fast": 3.0 * factor}))
    assert 2 <= len(searches) <= 4
    # What is far from all that still counts, and after an answer all does.
    watcher.observe(100, 1000, measured(problem, plan, {"fast": 30.0}))
    num_searches = len(searches)
    assert searches[-2].is_closed
    searches[-1].waiting.append(answer(plan, place(problem, "even").plan, 1.0, 2.0))
    assert watcher.observe(105, 1000, measured(problem, plan, {"fast": 30.0})) is None
    watcher.observe(110, 1000, measured(problem, plan, {"fast": 36.0}))
    assert len(searches) == num_searches + 1


def test_a_further_drift_supersedes_the_search(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, messages = late(problem, plan)
    watcher.observe(5, 1000, measured(problem, plan, {"fast": 3.0}))
    watcher.observe(10, 1000, measured(problem, plan, {"fast": 1.5}))
    assert searches[0].is_closed
    assert watcher.is_searching
    assert "the search begins anew" in messages[-1]
    watcher.close()
    assert searches[1].is_closed
    assert not watcher.is_searching
    assert messages[-1] == "the search for plans was ended with the run"


def test_drift_is_told_once_and_by_what_the_run_began_with(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, _, messages = late(problem, plan)
    assert watcher.told.is_news("fast", 3.0)
    watcher.observe(5, 1000, measured(problem, plan, {"fast": 3.0}))
    assert messages == ["step 6: looking for a better plan"]
    # It is half of what is believed by now.
    watcher.observe(10, 1000, measured(problem, plan, {"fast": 1.5}))
    assert messages[-1] == "step 11: fast takes 1.50 x its predicted time; the search begins anew"


def test_a_gain_smaller_than_its_own_spread_is_not_adopted(problem: Problem) -> None:
    plan, other = place(problem).plan, place(problem, "even").plan
    for draws, is_adopted in (((1.9, 1.9, 1.9), True), ((1.2, 2.6, 1.9), False)):
        watcher, searches, messages = late(problem, plan)
        watcher.observe(5, 10_000, measured(problem, plan, {"fast": 3.0}))
        searches[0].waiting.append(answer(plan, other, 2.0, 1.9, draws))
        found = watcher.observe(10, 10_000, measured(problem, plan, {"fast": 3.0}))
        assert (found is not None) is is_adopted
        assert watcher.decisions[0].adopted is is_adopted
        assert messages[-1].endswith(": adopted") is is_adopted


def test_the_second_answer_is_compared_with_the_plan_that_runs_then(problem: Problem) -> None:
    plan, other = place(problem).plan, place(problem, "even").plan
    watcher, searches, messages = late(problem, plan)
    watcher.observe(5, 1000, measured(problem, plan, {"fast": 3.0}))
    first = answer(plan, other, 2.0, 1.0)
    searches[0].waiting.append(first)
    assert watcher.observe(10, 1000, measured(problem, plan, {"fast": 3.0})) is not None
    tuned = {**first.candidates, "tuned-ppo": Candidate(plan, 1.0, ())}
    searches[0].waiting.append(Answer(tuned, policy=watcher.policy, fine_tune_s=15.0))
    again = measured(problem, other, {"fast": 3.0})
    assert watcher.observe(15, 1000, again) is None
    assert "none is faster than the running plan (ppo)" in messages[-1]
    assert "after 15 s of fine-tuning" in messages[-1]


def test_what_the_monitor_is_sure_of_needs_less_drift(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, _ = late(problem, plan)
    event = DriftEvent(Subject("device", "fast"), "drifted", 1.07, 3, 5, 8.0)
    watcher.on_drift([event])
    watcher.observe(5, 100, measured(problem, plan, {"fast": 1.07}))
    assert len(searches) == 1


def test_what_is_measured_after_a_search_began_does_not_reach_it(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, _ = late(problem, plan)
    watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    asked, before = searches[0].task.belief, watcher.belief.spread("fast")
    assert asked.spread("fast") == before
    watcher.observe(10, 100, measured(problem, plan, {"fast": 3.0}))
    assert asked.spread("fast") == before > watcher.belief.spread("fast")


def test_a_search_that_fails_is_told_and_the_run_goes_on(problem: Problem) -> None:
    plan = place(problem).plan
    watcher, searches, messages = late(problem, plan)
    watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    searches[0].waiting.append("ValueError: broken")
    assert watcher.observe(10, 100, measured(problem, plan, {"fast": 3.0})) is None
    assert messages[-1] == "step 11: the search for plans failed: ValueError: broken"


@pytest.mark.slow
def test_plans_are_only_for_devices_that_are_alive(problem: Problem) -> None:
    left = without_devices(problem, ["slow-1"])
    plan, shrunk = place(problem).plan, place(left).plan
    alive = [device.name for device in left.cluster.devices]
    watcher = controller(problem, plan)
    watcher.plan_changed(shrunk, left, alive)
    adapted = watcher.observe(5, 1000, measured(left, shrunk, {"fast": 3.0}))
    assert adapted is not None
    assert "slow-1" not in adapted.devices
    assert "slow-1" not in watcher.problem.device_named


def test_a_search_ends_with_the_plan_that_it_was_for_but_not_with_its_own(problem: Problem) -> None:
    plan, other = place(problem).plan, place(problem, "even").plan
    watcher, searches, messages = late(problem, plan)
    everyone = list(problem.device_named)
    watcher.observe(5, 1000, measured(problem, plan, {"fast": 3.0}))
    watcher.plan_changed(plan, problem, everyone)
    assert not searches[0].is_closed
    watcher.plan_changed(other, problem, everyone)
    assert searches[0].is_closed
    assert "the plan have changed" in messages[-1]
    searches[0].waiting.append(answer(plan, other, 2.0, 1.0))
    assert watcher.observe(10, 1000, measured(problem, other, {"fast": 3.0})) is None
