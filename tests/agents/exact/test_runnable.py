"""The exact solver where its optimum cannot be run as simulated: the next best, without a proof."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.exact import runnable
from heterps_agents.exact.planner import ExactPlanner
from heterps_agents.exact.runnable import Limits, best_runnable
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import decode
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.agents.replicas_without_room import (
    ENOUGH_BYTES,
    LEAST_BYTES,
    replicas_without_room,
)
from tests.envs.small_problems import chain_problem


def in_a_row() -> Problem:
    """GPT-2 on three devices, of which the first and the last have no link to each other.

    Its first and its last layer share parameters, whose gradients are summed.
    """
    nodes = [{"name": f"n{i}", "devices": [{"name": f"d{i}", "type": "T4"}]} for i in range(3)]
    links = [{"between": [f"n{i}", f"n{i + 1}"], "link": "infiniband-hdr"} for i in range(2)]
    cluster = {"name": "row", "nodes": nodes, "inter_node_link": "none", "link_overrides": links}
    return load_problem(
        "gpt2", Cluster.from_mapping(cluster), strategy=Strategy(), micro_batch_size=1
    )


def test_sums_that_need_a_missing_link_lead_to_the_next_best_plan_without_a_proof() -> None:
    result = place(in_a_row(), "exact")
    assert result.estimate.feasible
    assert len(result.plan.devices) == 2
    assert "d1" in result.plan.devices
    assert result.bound.status == "bounded"
    assert result.bound.gap is not None
    assert result.bound.gap > 0.1


def test_where_nothing_that_it_looks_at_can_be_run_it_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runnable, "MOST_SOLVES", 0)
    with pytest.raises(InfeasibleError, match=r"cannot be run \(link: there is none from d0 to d2"):
        place(in_a_row(), "exact")


def test_a_floor_that_the_cheapest_plan_misses_as_simulated_is_kept_by_the_next() -> None:
    options: dict[str, Any] = {"strategy": Strategy(), "micro_batch_size": 4}
    floor = 0.97 * estimate_of_quickest("resnet-50", options).throughput_samples_per_s
    problem = load_problem(
        "resnet-50", "a100-v100-t4", objective="price", min_throughput_samples_per_s=floor,
        **options,
    )  # fmt: skip
    plan = ExactPlanner().plan(problem, Budget())
    assert estimate(problem, plan).feasible
    assert plan.bound.status == "bounded"


def estimate_of_quickest(model: str, options: dict[str, Any]) -> Estimate:
    problem = load_problem(model, "a100-v100-t4", **options)
    return estimate(problem, ExactPlanner().plan(problem, Budget()))


def test_memory_that_the_optimum_lacks_as_simulated_is_left_free() -> None:
    problem = chain_problem(
        [1.0] * 4, [2.0] * 4, num_micro_batches=4, speeds=(1.0, 2.0), counts=(2, 2),
        parameters=[10] * 4, memory_bytes=(240, 240),
    )  # fmt: skip
    question = Question.of(problem, Budget())
    # As if planners did not count some of what a stage holds.
    kernel = question.kernel._replace(memory_bytes=question.kernel.memory_bytes * 1.4)
    code = solve(kernel).code
    assert code is not None

    def plan_of(code: Code) -> Plan:
        return bind(problem, decode(code), planner="test", seed=0)

    assert not estimate(problem, plan_of(code)).feasible
    plan = best_runnable(problem, Limits(kernel, question.goal), code, plan_of, Budget())
    assert estimate(problem, plan).feasible


def test_where_nothing_has_room_for_all_that_is_missed_less_is_left_free() -> None:
    # Two stages have room, and none has so much beside its own as the two replicas lack.
    problem = replicas_without_room(25_000)
    plan = ExactPlanner().plan(problem, Budget())
    assert estimate(problem, plan).feasible
    assert len({stage.first_layer for stage in plan.stages}) == 2


@pytest.mark.parametrize("planner", ["exact", "auto"])
def test_more_memory_makes_no_plan_slower_and_ends_none(planner: str) -> None:
    steps_s = []
    for memory_bytes in (LEAST_BYTES, 24_500, 27_000, 30_000, 35_500, ENOUGH_BYTES):
        result = place(replicas_without_room(memory_bytes), planner, budget=Budget(50))
        steps_s.append(result.estimate.step_time_s)
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[0] > steps_s[-1]
