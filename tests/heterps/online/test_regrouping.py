"""A run in tensor-parallel groups, one of whose devices becomes slower, is regrouped live."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.online import regrouping_cases
from benchmarks.online.regrouping_cases import (
    DEVICES,
    SLOW,
    problem,
    regrouped_run,
    two_groups,
)
from heterps.online.controller import IN_GROUPS, OnlineController
from heterps.online.search import REGROUPED, SearchTask
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_envs.online.correction import StageMeasurement
from heterps_envs.problem import PLAIN, Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.workload import stage_cost
from heterps_envs.simulator.simulate import estimate, simulate
from heterps_runtime.run.verify import max_difference, reference_losses
from heterps_runtime.specification.build import build_specification
from tests.heterps.online.test_controller import InlineSearch, LateSearch


def measured(of: Problem, plan: Plan, factor: float) -> list[StageMeasurement]:
    """What a run would measure with the device slower: its group is, and the others wait for it."""
    found = []
    for stage in plan.stages:
        cost = stage_cost(of, stage)
        slower = factor if SLOW in stage.devices else 1.0
        found += [
            StageMeasurement(
                name,
                stage.first_layer,
                stage.last_layer,
                slower * cost.forward_s,
                slower * cost.backward_s,
                stage if stage.degree > 1 else None,
                1.0 if name == SLOW else 1 / slower,
            )
            for name in stage.devices
        ]
    return found


def controller(of: Problem, plan: Plan) -> OnlineController:
    return OnlineController(
        of, plan, Policy.load("generalist"), OnlineSettings(fine_tune_s=0),
        start_search=InlineSearch,
    )  # fmt: skip


@pytest.mark.slow
def test_the_other_device_of_the_stragglers_group_works_on_alone() -> None:
    of = problem()
    plan = two_groups(of)
    watcher = controller(of, plan)
    adapted = watcher.observe(5, 100, measured(of, plan, 5.0))
    assert adapted is not None
    assert sorted(stage.degree for stage in adapted.stages) == [1, 2]
    assert SLOW not in adapted.devices
    (decision,) = watcher.decisions
    assert decision.chosen == REGROUPED
    assert decision.drift == pytest.approx({"d0": 1, "d1": 1, "d2": 1, SLOW: 5}, rel=0.01)
    stale_s, adapted_s = (
        simulate(of, each, slowdown={SLOW: 5.0}).step_time_s for each in (plan, adapted)
    )
    assert decision.candidates["stale"] == pytest.approx(stale_s, rel=0.02)
    assert estimate(watcher.problem, adapted).step_time_s == pytest.approx(adapted_s, rel=0.02)
    assert adapted_s < stale_s / 3


def test_a_run_that_has_had_groups_may_have_groups_again() -> None:
    of = problem()
    groups = two_groups(of)
    alone = groups.changed(
        stages=tuple(stage.changed(devices=stage.devices[:1]) for stage in groups.stages)
    )
    for first, strategy in ((groups, IN_GROUPS), (alone, PLAIN)):
        tasks: list[SearchTask] = []

        def start(task: SearchTask, tasks: list[SearchTask] = tasks) -> LateSearch:
            tasks.append(task)
            return LateSearch(task)

        with OnlineController(of, first, Policy.load("generalist"), start_search=start) as watcher:
            watcher.plan_changed(alone, of, of.device_named)
            slow = [replace(each, forward_s=3 * each.forward_s) for each in measured(of, alone, 1)]
            watcher.observe(5, 100, slow)
        assert [task.strategy for task in tasks] == [strategy]


@pytest.mark.slow
def test_losses_of_a_run_that_is_regrouped_are_those_of_one_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is measured of a run that goes on is the benchmark's.
    monkeypatch.setattr(regrouping_cases, "SLOW_STEP", 6)
    monkeypatch.setattr(regrouping_cases, "SETTLED_STEPS", 5)
    of = problem(pass_s=0.2, num_micro_batches=4)
    plan = two_groups(of)
    found = regrouped_run(of, plan, 5.0, InlineSearch)
    degrees = [sorted(stage.degree for stage in each.stages) for each in found.plans]
    assert degrees[0] == [2, 2]
    assert [1, 2] in degrees[1:]
    assert SLOW not in found.plans[-1].devices
    first_s, last_s = (
        simulate(of, each, slowdown={SLOW: 5.0}).step_time_s for each in (plan, found.plans[-1])
    )
    assert last_s < first_s / 1.5, "what a step really takes: benchmarks/online/regrouping.py"
    specification = build_specification(
        of, plan, build_schedule(of, plan), RunSettings(steps=len(found.losses)), devices=DEVICES
    )
    assert max_difference(found.losses, reference_losses(specification)) < 1e-5
