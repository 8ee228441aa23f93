"""Metis' search: its formula, its bound, and that what it leaves out was no better."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.metis.groups import Devices
from heterps_agents.systems.metis.layouts import type_orders
from heterps_agents.systems.metis.search import Candidate, Search
from heterps_configs.documents.cluster import Link
from heterps_envs.problem import Problem
from tests.agents.systems.malleus.grouped_problems import grouped_problem
from tests.envs.small_problems import chain_problem
from tests.uneven_problems import MakeProblem


def search_of(problem: Problem, degrees: tuple[int, ...] = (1,)) -> Search:
    """As the system searches, over orders of the classes."""
    types = [[device.name for device in entry.devices] for entry in problem.classes]
    return Search(Devices(problem, degrees), type_orders(types, 0), Budget())


def test_the_cost_is_the_published_formula() -> None:
    problem = chain_problem(
        [1.0, 1.0, 2.0], [2.0, 2.0, 4.0], num_micro_batches=8, counts=(2, 1), speeds=(1.0, 0.5),
        parameters=[100, 100, 300], output_bytes=[10.0, 30.0, 0.0], optimizer_s=[0.1, 0.2, 0.4],
        link=Link(latency_s=0.0, bandwidth_bytes_per_s=100.0),
    )  # fmt: skip
    search = search_of(problem)
    two, one = (search.devices.first_group(names, 2) for names in (("d0-0", "d0-1"), ("d1",)))
    assert two is not None
    assert one is not None
    # Four rounds of two micro-batches: 1 x (3 + 3) s on each of two, 2 x 6 / 2 s on the fast one.
    # The optimizer: 0.3 and 0.2 s; a ring of 2 x 1/2 x 800 bytes; two messages of 30 bytes.
    seconds = search.cost_s([two, one], (2, 3), 4)
    assert seconds == pytest.approx(3 * 6 + (6 + 6) + 0.3 + 800 / 100 + 2 * 30 / 100)


@pytest.mark.parametrize("memory", [0.6, 1.0, 4.0])
def test_no_cuts_of_a_candidate_cost_less_than_its_bound(
    make_problem: MakeProblem, memory: float
) -> None:
    problem = make_problem(memory=memory, counts=(2, 2, 0), global_batch_size=8)
    search = search_of(problem)
    looked_at = 0
    for candidate in search._candidates(0):
        bound_s = search.bounds.cost_s(candidate.groups, candidate.rounds)
        count = len(candidate.groups)
        least_s = min(
            search.cost_s(list(candidate.groups), (*cuts, 10), candidate.rounds)
            for cuts in combinations(range(1, 10), count - 1)
        )
        assert bound_s <= least_s
        looked_at += 1
    assert looked_at > 5


@pytest.mark.parametrize("memory", [1.0, 4.0])
def test_what_is_left_out_is_no_better(make_problem: MakeProblem, memory: float) -> None:
    problem = make_problem(memory=memory, counts=(2, 4, 2))
    best, *_ = search_of(problem).placed(0)
    every = search_of(problem)
    costs = [
        placed.seconds if (placed := every._placed(candidate)) else math.inf
        for candidate in every._candidates(0)
    ]
    assert best.seconds == min(costs)
    assert every.num_balanced > 2 * len(costs) / 3


def test_a_stage_without_memory_is_given_larger_groups_where_they_are_allowed() -> None:
    """All layers on each of four devices need 19,200 bytes for their state, in fours 7,680."""
    problem = grouped_problem(memory_bytes=[9_000])
    names = tuple(problem.device_named)
    for degrees, degree in (((1,), None), ((1, 2), None), ((1, 2, 4), 4)):
        search = search_of(problem, degrees)
        group = search.devices.first_group(names, 8)
        assert group is not None
        placed = search._placed(Candidate(0.0, (group,), 1))
        assert (placed and placed.groups[0].degree) == degree


def test_a_spent_budget_ends_the_search_once_there_is_a_plan(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=1.0, counts=(2, 4, 2))
    types = [[device.name for device in entry.devices] for entry in problem.classes]
    short = Search(Devices(problem, (1,)), type_orders(types, 0), Budget(evaluations=1))
    assert len(short.placed(0)) == 1
    whole = search_of(problem)
    assert len(whole.placed(0)) > 1
    assert short.num_balanced < whole.num_balanced
