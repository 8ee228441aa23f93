"""More micro-batches in flight than 1F1B's rule, where a slow link makes that faster."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.library import load_profile
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.plan_bound import least_step_time_s
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import estimate


def _problem(
    latency_s: float, schedule: str = "1f1b", memory_bytes: int = 40_000_000_000
) -> Problem:
    cluster = Cluster.from_mapping(
        {
            "name": "two-places",
            "nodes": [
                {"name": name, "devices": [{"name": name, "type": kind} | room]}
                for name, kind, room in (
                    ("here", "A100-40G", {"memory_bytes": memory_bytes}),
                    ("there", "V100-16G", {}),
                )
            ],
            "inter_node_link": {"bandwidth_bytes_per_s": 1e9, "latency_s": latency_s},
        }
    )
    job = Job.from_mapping({"global_batch_size": 16, "micro_batch_size": 1, "schedule": schedule})
    return Problem(load_profile("gpt2"), cluster, job)


def _plan(problem: Problem) -> Plan:
    layers = problem.profile.num_layers
    kinds = [problem.class_of[name] for name in ("here", "there")]
    placement = [
        PlacedStage(0, layers - 4, kinds[0], 1),
        PlacedStage(layers - 3, layers - 1, kinds[1], 1),
    ]
    return bound_plan(problem, placement, planner="test", seed=0)


def test_a_slow_link_gets_more_in_flight_and_the_step_is_shorter() -> None:
    problem = _problem(latency_s=0.02)
    plan = _plan(problem)
    chosen = choose_in_flight(problem, plan, Budget())
    before, after = estimate(problem, plan), estimate(problem, chosen)
    assert after.step_time_s < 0.98 * before.step_time_s
    assert after.feasible
    assert after.step_time_s >= least_step_time_s(PreparedPlan(problem, chosen))
    assert chosen.predicted_step_time_s == after.step_time_s
    front, back = chosen.stages
    assert front.in_flight is not None
    held = in_flight_micro_batches(chosen)
    assert held[front.name] == front.in_flight > in_flight_micro_batches(plan)[front.name]
    assert held[back.name] == in_flight_micro_batches(plan)[back.name]


def test_what_more_in_flight_holds_is_counted_as_memory() -> None:
    problem = _problem(latency_s=0.02)
    plan = _plan(problem)
    chosen = choose_in_flight(problem, plan, Budget())
    before, after = estimate(problem, plan).memory_bytes, estimate(problem, chosen).memory_bytes
    assert after["here"] > before["here"]


def test_where_memory_has_no_room_the_rule_stays() -> None:
    problem = _problem(latency_s=0.02)
    plan = _plan(problem)
    needed = estimate(problem, plan).memory_bytes["here"]
    share = problem.usable_bytes("here") / problem.device_named["here"].memory_bytes
    full = _problem(latency_s=0.02, memory_bytes=int((needed + 1e6) / share))
    assert estimate(full, plan).feasible
    assert choose_in_flight(full, plan, Budget()).stages[0].in_flight is None


def test_a_stage_without_room_does_not_keep_the_others_from_holding_more() -> None:
    """Five places far apart: none alone makes the step shorter, and the third is nearly full."""
    bytes_of = (6_000_000_000, 3_600_000_000, 800_000_000, 6_000_000_000, 6_000_000_000)
    nodes = [
        {"name": f"n{index}", "devices": [{"name": f"d{index}", "type": "A100-40G"} | room]}
        for index, room in enumerate({"memory_bytes": each} for each in bytes_of)
    ]
    link = {"bandwidth_bytes_per_s": 1e9, "latency_s": 0.05}
    cluster = Cluster.from_mapping({"name": "far", "nodes": nodes, "inter_node_link": link})
    job = Job.from_mapping({"global_batch_size": 16, "micro_batch_size": 1})
    problem = Problem(load_profile("gpt2"), cluster, job)
    edges = (0, 2, 6, 7, 12, 14)
    placement = [
        PlacedStage(first, stop - 1, problem.class_of[f"d{index}"], 1)
        for index, (first, stop) in enumerate(pairwise(edges))
    ]
    plan = bound_plan(problem, placement, planner="test", seed=0)
    chosen = choose_in_flight(problem, plan, Budget())
    by_rule, held = in_flight_micro_batches(plan), in_flight_micro_batches(chosen)
    assert estimate(problem, chosen).feasible
    assert estimate(problem, chosen).step_time_s < 0.55 * estimate(problem, plan).step_time_s
    assert sum(held[stage.name] > by_rule[stage.name] for stage in plan.stages) >= 3


def test_quick_links_leave_the_plan_as_it_is() -> None:
    problem = _problem(latency_s=0.0)
    plan = _plan(problem)
    assert choose_in_flight(problem, plan, Budget()) is plan


def test_simulations_do_not_use_up_evaluations() -> None:
    problem, budget = _problem(latency_s=0.02), Budget(evaluations=1)
    budget.spend()
    assert choose_in_flight(problem, _plan(problem), budget).stages[0].in_flight
    assert budget.evaluations_left == 0


@pytest.mark.parametrize("schedule", ["gpipe", "zero-bubble"])
def test_other_schedules_have_rules_of_their_own(schedule: str) -> None:
    problem = _problem(latency_s=0.02, schedule=schedule)
    plan = _plan(problem)
    assert choose_in_flight(problem, plan, Budget()) is plan
