"""What would help is computed: the simulator and short searches, on the changed cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.html_report.changes import changes
from heterps.html_report.improvements import improvements
from heterps.html_report.reasons import reasons
from heterps.planning.place import place
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import simulated_step_time_s


@pytest.fixture(scope="module")
def problem() -> Problem:
    profile = load_profile("gpt2")
    job = Job(dtype=profile.dtype, global_batch_size=16, micro_batch_size=2)
    return Problem(profile, load_cluster("a100-v100"), job)


@pytest.fixture(scope="module")
def plan(problem: Problem) -> Plan:
    return place(problem, "even").plan


def test_no_change_makes_a_plan_slower_and_all_are_looked_at(problem: Problem, plan: Plan) -> None:
    found = improvements(problem, plan)
    assert found.num_left == 0
    assert len(found.improvements) == len(list(changes(problem.cluster)))
    assert found.base_step_time_s <= simulated_step_time_s(problem, plan)
    savings = [entry.saves for entry in found.improvements]
    assert savings == sorted(savings, reverse=True)
    assert min(savings) >= 0


def test_a_faster_link_saves_at_least_what_the_plan_itself_gains_by_it(
    problem: Problem, plan: Plan
) -> None:
    words = "links between nodes twice as fast"
    changed = replace(problem, cluster=dict(changes(problem.cluster))[words])
    entry = next(e for e in improvements(problem, plan).improvements if e.change == words)
    assert entry.step_time_s <= simulated_step_time_s(changed, plan)


def test_moves_of_cuts_are_simulated(problem: Problem, plan: Plan) -> None:
    found = reasons(problem, plan)
    assert [reason.group.last_layer for reason in found] == sorted(
        {stage.last_layer for stage in plan.stages}
    )
    assert max(reason.pace for reason in found) == 1
    assert found[-1].moves is None
    ends = [stage.last_layer for stage in plan.stages]
    for reason in found[:-1]:
        assert reason.moves
        for move in reason.moves:
            by = -1 if move.is_forward else 1
            cut = reason.group.last_layer
            stages = tuple(
                stage.changed(
                    first_layer=stage.first_layer + by * (stage.first_layer == cut + 1),
                    last_layer=stage.last_layer + by * (stage.last_layer == cut),
                )
                for stage in plan.stages
            )
            moved = plan.changed(stages=stages)
            assert [stage.last_layer for stage in moved.stages] != ends
            assert move.step_time_s == pytest.approx(simulated_step_time_s(problem, moved))


def test_a_cut_beside_a_single_layer_whose_state_is_divided_is_moved_both_ways(
    problem: Problem,
) -> None:
    def divided(last_layer: int, *layers: int) -> Plan:
        stages = (PlacedStage(0, last_layer, 0, 2), PlacedStage(last_layer + 1, 13, 1, 2))
        plan = bound_plan(problem, stages, planner="hand", seed=0)
        return plan.changed(sharded_state=LayerRange.all_of(set(layers)))

    moves = reasons(problem, divided(6, 2, 7))[0].moves
    assert moves is not None
    assert {move.layer: move.step_time_s for move in moves} == {
        6: pytest.approx(simulated_step_time_s(problem, divided(5, 2, 6, 7))),
        7: pytest.approx(simulated_step_time_s(problem, divided(7, 2))),
    }
