"""The planner of lanes: as good as the best of all pipelines, and never above the best chain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.planners.asymmetric import all_plans, best_chain, best_of_all_s, small_problem
from heterps.planning.place import place
from heterps_agents.asymmetric.candidates import THOROUGH, candidates
from heterps_agents.asymmetric.planner import AsymmetricPlanner
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import estimate, feasible_step_time_s
from tests.envs.small_problems import chain_problem
from tests.uneven_problems import uneven_problem

ROUNDING = 1 + 1e-9
# Layers, devices of each class, and what else is unlike the default.
SMALL = (
    (3, (1, 1, 1), {"schedule": "1f1b", "memory": 3.0}),
    (5, (2, 1), {"schedule": "gpipe", "memory": 0.8, "global_batch_size": 6}),
    (4, (2, 2), {"schedule": "gpipe", "memory": 0.8, "global_batch_size": 4, "seed": 27}),
    (3, (1, 2), {"bandwidth_bytes_per_s": 1e11, "global_batch_size": 7}),
    (4, (3,), {"schedule": "1f1b", "micro_batch_size": 3, "global_batch_size": 10}),
)


def step_s(plan: Plan) -> float:
    assert plan.predicted_step_time_s is not None
    return plan.predicted_step_time_s


@pytest.mark.slow
@pytest.mark.parametrize(("num_layers", "counts", "job"), SMALL)
def test_no_plan_of_pipelines_side_by_side_is_simulated_in_less(
    num_layers: int, counts: tuple[int, ...], job: dict[str, object]
) -> None:
    problem = small_problem(num_layers, counts, **job)  # type: ignore[arg-type]
    plan = AsymmetricPlanner().plan(problem, Budget())
    assert step_s(plan) <= best_of_all_s(problem) * ROUNDING
    assert step_s(plan) <= step_s(best_chain(problem)) * ROUNDING
    assert feasible_step_time_s(problem, plan) == step_s(plan)


def test_all_plans_are_there_once() -> None:
    """Two unlike devices, two layers, three micro-batches: 2 alone, 2 orders in a row, 2 shares."""
    problem = small_problem(2, (1, 1), global_batch_size=3)
    plans = list(all_plans(problem))
    assert len(plans) == 2 + 2 + 2
    assert len({(plan.stages, plan.pipelines) for plan in plans}) == len(plans)


@pytest.mark.slow
def test_the_search_alone_finds_four_unlike_pipelines() -> None:
    """The best chain takes a third longer than the model on each device, with 4, 2, 1, 1 of 8."""
    problem = small_problem(
        5, (1, 1, 2), seed=4, bandwidth_bytes_per_s=1e11, memory=3.0, schedule="gpipe"
    )
    chain = best_chain(problem)
    best = candidates(problem, Budget(), chain, trial=THOROUGH)[0]
    assert step_s(best) < 0.8 * step_s(chain)
    assert sorted(len(pipeline.micro_batches) for pipeline in best.pipelines) == [1, 1, 2, 4]
    assert all(len(stage.layers) == 5 for stage in best.stages)


@pytest.mark.slow
def test_auto_finds_lanes_in_a_home_box_and_the_planner_is_not_above_it() -> None:
    """Devices that are idle in the best chain take a few micro-batches beside the others."""
    problem = field_problem(FieldCase("home-boxes", 0), SEEDS["development"])
    chain_s = place(problem, chain_planner()).estimate.step_time_s
    found, thorough = place(problem, "auto"), place(problem, "asymmetric")
    assert found.estimate.step_time_s < 0.97 * chain_s
    assert thorough.estimate.step_time_s <= found.estimate.step_time_s * ROUNDING
    assert found.estimate.feasible
    assert thorough.estimate.feasible
    assert thorough.plan.planner == "asymmetric"


def chain_planner() -> AutoPlanner:
    planner = AutoPlanner()
    planner.chains_only = True
    return planner


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "schedule"),
    [
        ((2, 3, 2), "1f1b"),
        ((1, 1, 1), "gpipe"),
        ((1, 1, 1), "zero-bubble"),
        ((2, 0, 0), "interleaved"),
    ],
)
def test_it_is_never_above_the_best_chain_and_the_same_twice(
    counts: tuple[int, int, int], schedule: str
) -> None:
    problem = uneven_problem(counts=counts, schedule=schedule)
    plan = AsymmetricPlanner(seed=3).plan(problem, Budget())
    assert plan.predicted_step_time_s == estimate(problem, plan).step_time_s
    assert step_s(plan) <= step_s(best_chain(problem, seed=3)) * ROUNDING
    assert (plan.planner, plan.seed) == ("asymmetric", 3)
    if (counts, schedule) in (((1, 1, 1), "gpipe"), ((2, 0, 0), "interleaved")):
        assert plan == AsymmetricPlanner(seed=3).plan(problem, Budget())
    # Checked as any document is.
    assert Plan.from_mapping(plan.to_mapping()) == plan


@pytest.mark.slow
def test_the_cheapest_chain_stays_where_the_price_counts() -> None:
    problem = uneven_problem(objective="price", min_throughput_samples_per_s=1.0)
    plan, chain = AsymmetricPlanner().plan(problem, Budget()), best_chain(problem)
    assert plan.devices == chain.devices
    assert [stage.layers for stage in plan.stages] == [stage.layers for stage in chain.stages]


@pytest.mark.slow
def test_a_throughput_floor_that_only_lanes_keep_is_kept() -> None:
    problem = small_problem(
        5, (1, 1, 2), seed=4, bandwidth_bytes_per_s=1e11, memory=3.0, schedule="gpipe"
    )
    plan = AsymmetricPlanner().plan(problem, Budget())
    floor = problem.job.global_batch_size / step_s(plan) * 0.99
    asked = small_problem(
        5, (1, 1, 2), seed=4, bandwidth_bytes_per_s=1e11, memory=3.0, schedule="gpipe",
        min_throughput_samples_per_s=floor / 2,
    )  # fmt: skip
    kept = AsymmetricPlanner().plan(asked, Budget())
    assert estimate(asked, kept).feasible


@pytest.mark.slow
def test_a_model_that_fits_nowhere_is_refused_in_one_line() -> None:
    problem = Problem(load_profile("llama-70b"), load_cluster("a100-v100"), uneven_problem().job)
    with pytest.raises(InfeasibleError) as error:
        planner_named("asymmetric").plan(problem, Budget())
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_small_budget_ends_it_with_a_plan() -> None:
    problem, free = uneven_problem(), Budget()
    AsymmetricPlanner().plan(problem, free)
    for budget in (Budget(cpu_seconds=0.2), Budget(evaluations=200)):
        assert estimate(problem, AsymmetricPlanner().plan(problem, budget)).feasible
        assert budget.evaluations_used < free.evaluations_used


def test_where_layers_have_room_only_as_replicas_divide_their_state_there_are_no_lanes() -> None:
    problem = chain_problem(
        [1.0] * 2,
        [2.0] * 2,
        speeds=(1.0, 2.0),
        counts=(4, 4),
        memory_bytes=(15_000, 15_000),
        parameters=[1000] * 2,
    )
    job = problem.job.changed(optimizer="adamw")
    problem = replace(problem, job=job, strategy=Strategy(shard_state="auto"))
    plan = AsymmetricPlanner().plan(problem, Budget(300))
    assert plan.sharded_state
    assert estimate(problem, plan).feasible
