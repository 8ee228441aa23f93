"""AMP on our problems: its plan, its ranking, and what it does not see."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.amp.system import Amp, as_plan, ranked
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.agents.systems.equal_devices import equal_problem
from tests.agents.systems.malleus.grouped_problems import grouped_problem
from tests.uneven_problems import MakeProblem


def test_every_stage_has_as_many_replicas_and_all_devices_work() -> None:
    problem = equal_problem(num_nodes=2, devices_of_a_node=4, memory_bytes=40_000_000_000)
    plan, own_cost = Amp().answer(problem, Budget())
    assert len(plan.devices) == 8
    sizes = set(Counter(stage.first_layer for stage in plan.stages).values())
    assert len(sizes) == 1
    assert {len(p.micro_batches) for p in plan.pipelines} == {16 // sizes.pop()}
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(estimate(problem, plan).step_time_s, rel=0.3)


def test_answers_are_ranked_and_the_first_that_fits_is_the_plan(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=1.0, counts=(2, 4, 2)).by_node
    answers = ranked(problem, 0, Budget())
    assert [each.seconds for each in answers] == sorted(each.seconds for each in answers)
    plan, own_cost = Amp().answer(problem, Budget())
    fits = [estimate(problem, as_plan(problem, each, 0)).feasible for each in answers]
    assert not fits[0], "the best by AMP's cost needs more memory than there is"
    first = fits.index(True)
    assert own_cost is not None
    assert own_cost.seconds == answers[first].seconds
    assert plan.runs_like(as_plan(problem, answers[first], 0))


def test_devices_of_unlike_speed_have_the_same_layers_in_its_eyes(
    make_problem: MakeProblem,
) -> None:
    """As published: only links differ, a layer takes the mean wherever it stands."""
    problem = make_problem(memory=40.0, counts=(2, 4, 2), bandwidth_bytes_per_s=1e13)
    plan, _ = Amp().answer(problem, Budget())
    by_kind = {problem.class_of[stage.devices[0]] for stage in plan.stages}
    assert len(by_kind) == 3
    assert {len(p.micro_batches) for p in plan.pipelines} == {16 // len(plan.pipelines)}


def test_groups_are_made_where_a_strategy_allows_them() -> None:
    problem = grouped_problem(strategy=Strategy(tensor_parallel=(4,)))
    plan, _ = Amp().answer(problem, Budget())
    assert {stage.degree for stage in plan.stages} == {4}
    plain, _ = Amp().answer(replace(problem, strategy=Strategy()), Budget())
    assert {stage.degree for stage in plain.stages} == {1}


def test_devices_that_no_degrees_use_are_a_reason_to_refuse() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=7, num_layers=5)
    with pytest.raises(HeterpsError, match=r"^amp: needs stages times replicas to be 7 devices"):
        Amp().plan(problem, Budget())


def test_a_model_that_none_of_its_plans_has_room_for_is_refused() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=4, memory_bytes=400_000_000)
    with pytest.raises(InfeasibleError, match=r"^amp: "):
        Amp().plan(problem, Budget())


def test_equal_seeds_give_equal_plans() -> None:
    job = Job.from_mapping({"global_batch_size": 64, "micro_batch_size": 1, "dtype": "bfloat16"})
    problem = Problem(load_profile("vit-large"), load_cluster("spot-two-regions"), job)
    plans = [Amp(seed=5).plan(problem, Budget()) for _ in range(2)]
    assert plans[0] == plans[1]
