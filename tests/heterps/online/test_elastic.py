"""The controller of elastic runs: what it goes on with, what it says, and what it prepares."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from heterps.online.elastic import ElasticController
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import ElasticSettings
from heterps_configs.errors import NotEnoughDevicesError
from heterps_configs.library import load_cluster
from heterps_envs.closed_form.placement import PlacedStage, check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.elastic.records import MembershipChange
from heterps_runtime.run.hooks import PlanUpdate
from tests.heterps.small_profiles import blocks_profile

FULL_S = 120.0


@pytest.fixture
def problem() -> Problem:
    """On devices of speeds 4, 2, 1 and 1."""
    return Problem(blocks_profile(), load_cluster("local-emulated"), Job(dtype="float32"))


@pytest.fixture
def smaller() -> Problem:
    """Without one of the slow devices: a book of it has few pages."""
    cluster = load_cluster("local-emulated")
    (node,) = cluster.nodes
    devices = tuple(entry.changed(count=1) for entry in node.devices)
    fewer = cluster.changed(nodes=(node.changed(devices=devices),))
    return Problem(blocks_profile(), fewer, Job(dtype="float32"))


def chain(problem: Problem) -> Plan:
    """The fast device, then the medium one; the slow ones do nothing."""
    kinds = {entry.devices[0].name: index for index, entry in enumerate(problem.classes)}
    placement = [PlacedStage(0, 5, kinds["fast"]), PlacedStage(6, 7, kinds["medium"])]
    return bind(problem, placement, planner="by hand", seed=0)


def change(
    problem: Problem,
    plan: Plan,
    *,
    lost: tuple[str, ...] = (),
    joined: tuple[str, ...] = (),
    absent: tuple[str, ...] = (),
    step: int = 10,
) -> MembershipChange:
    alive = tuple(n for n in problem.device_named if n not in lost and n not in absent)
    return MembershipChange(step, 100, lost, joined, alive, plan)


def decided(controller: ElasticController, found: MembershipChange) -> PlanUpdate:
    """The answer to a change, with which the run goes on."""
    update = controller.replan(found)
    controller.goes_on(update, found.alive)
    return update


def test_a_lost_device_gives_a_plan_that_finishes_first_and_one_line_that_says_why(
    problem: Problem,
) -> None:
    plan, lines = chain(problem), list[str]()
    controller = ElasticController(problem, plan, on_message=lines.append)
    update = decided(controller, change(problem, plan, lost=("medium",)))
    check_plan(update.problem, update.plan)
    assert "medium" not in update.problem.device_named
    assert update.from_step == 10
    (decision,) = controller.decisions
    assert update.reason == decision.text == lines[0]
    assert decision.text.startswith(f"step 11: lost medium: {decision.chosen} after ")
    assert all(
        f"{each.rule} {each.finish_s:.3g} s" in decision.text for each in decision.predictions
    )
    best = decision.predictions[0]
    assert best.finish_s == min(each.finish_s for each in decision.predictions)
    assert {"borrow", "merge", "templates"} <= {each.rule for each in decision.predictions}
    assert best.step_s == pytest.approx(estimate(update.problem, update.plan).step_time_s)


def test_an_answer_that_is_thrown_away_is_no_decision(problem: Problem) -> None:
    plan, lines = chain(problem), list[str]()
    controller = ElasticController(problem, plan, on_message=lines.append)
    controller.replan(change(problem, plan, lost=("medium",)))
    assert (lines, controller.decisions) == ([], [])
    assert controller.plan == plan
    both = ("medium", "slow-0")
    update = decided(controller, change(problem, plan, lost=both))
    assert [entry.lost for entry in controller.decisions] == [both]
    assert lines == [update.reason]
    # Somebody else's plan is taken note of in silence.
    controller.goes_on(PlanUpdate(plan, problem), tuple(problem.device_named))
    assert controller.plan == plan
    assert len(lines) == 1


def test_the_decision_is_plain_data_for_json(problem: Problem) -> None:
    plan = chain(problem)
    controller = ElasticController(problem, plan, checkpoint_step=lambda: 8)
    decided(controller, change(problem, plan, lost=("medium",)))
    content = json.loads(json.dumps(controller.decisions[0].to_mapping()))
    assert content["lost"] == ["medium"]
    first = content["predictions"][0]
    # The two layers of the lost device are only in the checkpoint after step 8.
    assert first["repeated_s"] == pytest.approx(2 * first["step_s"])
    parts = ("replanning_s", "state_s", "repeated_s", "remaining_s")
    assert first["finish_s"] == pytest.approx(sum(first[part] for part in parts))


def test_a_lost_idle_device_changes_nothing() -> None:
    """A model of one layer and one sample is fastest on the fast device alone."""
    job = Job(dtype="float32", global_batch_size=1)
    problem = Problem(blocks_profile(1), load_cluster("local-emulated"), job)
    plan = place(problem).plan
    assert plan.devices == ("fast",)
    update = decided(ElasticController(problem, plan), change(problem, plan, lost=("medium",)))
    assert (update.plan.stages, update.plan.pipelines) == (plan.stages, plan.pipelines)


def test_a_device_that_comes_back_is_used_where_many_steps_remain(problem: Problem) -> None:
    plan = chain(problem)
    controller = ElasticController(problem, plan)
    without = decided(controller, change(problem, plan, lost=("fast",)))
    back = decided(controller, change(problem, without.plan, joined=("fast",), step=20))
    assert "fast" in back.plan.devices
    assert "gained fast" in back.reason
    late = decided(controller, change(problem, without.plan, joined=("fast",), step=100))
    assert late.plan.stages == without.plan.stages


def test_the_plan_of_before_is_a_choice_where_its_devices_are_there_again() -> None:
    problem = load_problem(
        "llama-tiny", "local-emulated", strategy=Strategy(), global_batch_size=4, micro_batch_size=1
    )
    asked = replace(problem, strategy=Strategy(tensor_parallel=(1, 2)))
    plan = place(asked).plan
    assert max(stage.degree for stage in plan.stages) == 2
    # No time for planning anew, which would find it again.
    controller = ElasticController(problem, plan, ElasticSettings(planning_s=1e-3))
    without = decided(controller, change(problem, plan, lost=("fast",)))
    back = decided(controller, change(problem, without.plan, joined=("fast",), step=20))
    assert back.plan.runs_like(plan)
    assert controller.decisions[-1].chosen == "as before"
    gone = decided(controller, change(problem, back.plan, lost=("fast",), step=40))
    assert gone.plan.runs_like(without.plan)


def test_too_few_devices_are_refused_with_what_is_missing(problem: Problem) -> None:
    plan = chain(problem)
    small = tuple(
        entry.changed(memory_bytes=50_000)
        for entry in (problem.cluster.device_type(f"emulated-{n}x") for n in (1, 2))
    )
    cluster = Cluster.model_validate({**problem.cluster.model_dump(), "device_types": small})
    tight = Problem(problem.profile, cluster, problem.job)
    controller = ElasticController(tight, plan)
    with pytest.raises(NotEnoughDevicesError, match=r"without fast: .*needs at least .*iB"):
        decided(controller, change(tight, plan, lost=("fast",)))


@pytest.mark.slow
def test_a_prepared_loss_costs_no_planning_and_the_next_ones_are_prepared_then(
    smaller: Problem,
) -> None:
    plan = chain(smaller)
    with ElasticController(smaller, plan, ElasticSettings(tolerated_losses=2)) as controller:
        assert controller.book.wait(FULL_S)
        update = decided(controller, change(smaller, plan, lost=("medium",)))
        (decision,) = controller.decisions
        assert decision.was_prepared
        assert "prepared before" in decision.text
        assert decision.predictions[0].replanning_s == 0
        assert controller.book.wait(FULL_S)
        second = change(smaller, update.plan, lost=("fast",), absent=("medium",), step=30)
        check_plan(smaller, decided(controller, second).plan)
        assert controller.decisions[1].was_prepared
        assert controller.decisions[1].lost == ("fast",)


@pytest.mark.slow
def test_a_plan_that_drift_brought_is_what_the_book_prepares_for(smaller: Problem) -> None:
    plan = chain(smaller)
    kinds = {entry.devices[0].name: index for index, entry in enumerate(smaller.classes)}
    other = bind(smaller, [PlacedStage(0, 7, kinds["fast"])], planner="by hand", seed=0)
    with ElasticController(smaller, plan) as controller:
        controller.plan_changed(other, smaller)
        assert controller.book.wait(FULL_S)
        decided(controller, change(smaller, other, lost=("fast",)))
        assert controller.decisions[0].was_prepared
