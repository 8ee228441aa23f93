"""Placing graphs with a policy: never worse than earliest finish, whatever the budget."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.graphs.decode import GraphDecoder
from heterps_agents.graphs.network import GraphScorer
from heterps_agents.graphs.planner import place_graph
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.effort import GraphEffort
from heterps_configs.errors import InfeasibleError
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graphs import draw_graph, generate_graphs


def small(seed: int) -> GraphTables:
    return draw_graph(seed, nodes=(6, 20), devices=(2, 4))


@pytest.fixture(scope="module")
def policy() -> GraphPolicy:
    torch.manual_seed(1)
    return GraphScorer(16, 8, 1).exported({})


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    evaluations=st.one_of(st.none(), st.integers(1, 400)),
    samples=st.integers(0, 20),
    polish=st.integers(0, 300),
)
def test_placements_fit_are_what_they_say_and_no_worse_than_earliest_finish(
    policy: GraphPolicy, seed: int, evaluations: int | None, samples: int, polish: int
) -> None:
    tables = small(seed)
    budget = Budget(evaluations)
    found = place_graph(
        tables,
        GraphEffort(samples=samples, polish_evaluations=polish),
        budget=budget,
        seed=seed,
        policy=policy,
    )
    run = simulate_graph(tables, found.devices)
    assert run.fits
    assert run.step_time_s == pytest.approx(found.step_time_s)
    assert found.step_time_s <= found.earliest_s
    assert evaluations is None or found.evaluations <= evaluations


def test_equal_seeds_give_equal_placements(policy: GraphPolicy) -> None:
    tables = small(3)
    effort = GraphEffort(samples=8, polish_evaluations=500)
    one, other = (place_graph(tables, effort, seed=4, policy=policy) for _ in range(2))
    np.testing.assert_array_equal(one.devices, other.devices)
    assert one.evaluations == other.evaluations


def test_more_samples_are_never_worse_than_fewer(policy: GraphPolicy) -> None:
    tables = small(5)
    times = [
        place_graph(
            tables, GraphEffort(samples=count, polish_evaluations=0), seed=1, policy=policy
        ).step_time_s
        for count in (0, 16, 48)
    ]
    assert times == sorted(times, reverse=True)


def test_a_limit_in_seconds_ends_a_search_without_other_limits(policy: GraphPolicy) -> None:
    tables = small(6)
    budget = Budget(cpu_seconds=0.05)
    found = place_graph(
        tables, GraphEffort(samples=16, polish_evaluations=None), budget=budget, policy=policy
    )
    assert found.step_time_s <= found.earliest_s


def test_a_graph_that_no_memory_holds_is_refused(policy: GraphPolicy) -> None:
    tables = small(7)
    full = replace(
        tables, memory_bytes=tables.device_memory_bytes.min() * np.ones(tables.num_nodes)
    )
    with pytest.raises(InfeasibleError, match="of memory"):
        place_graph(full, policy=policy)


# Of tiny graphs that fill their devices; moves of one node at a time miss the best placement.
FULL = (166, 260, 330, 341, 412, 489, 511, 843, 862, 883)


@pytest.mark.parametrize("seed", FULL)
def test_of_a_tiny_graph_no_placement_is_shorter(policy: GraphPolicy, seed: int) -> None:
    tables = draw_graph(seed, nodes=(2, 5), devices=(2, 4))
    room = tables.memory_bytes.sum() / tables.device_memory_bytes.sum()
    room *= np.random.default_rng(seed).uniform(1.0, 1.6)
    tables = replace(tables, device_memory_bytes=room * tables.device_memory_bytes)
    found = place_graph(tables, "fast", policy=policy)
    for devices in product(range(tables.num_devices), repeat=tables.num_nodes):
        run = simulate_graph(tables, np.array(devices, np.int16))
        assert not run.fits or run.step_time_s >= found.step_time_s * (1 - 1e-9)


def test_nodes_that_fit_only_tightly_packed_have_a_placement(policy: GraphPolicy) -> None:
    tables = draw_graph(0, nodes=(4, 4), devices=(3, 3))
    full = replace(
        tables,
        memory_bytes=np.array([229.0, 98.0, 61.0, 83.0]),
        device_memory_bytes=np.array([146.0, 100.0, 281.0]),
    )
    assert place_graph(full, policy=policy).devices.tolist() == [2, 1, 0, 0]


def test_nodes_that_cannot_be_packed_are_refused_in_words_about_memory(
    policy: GraphPolicy,
) -> None:
    tables = draw_graph(0, nodes=(3, 3), devices=(2, 2))
    full = replace(tables, memory_bytes=np.full(3, 5.0), device_memory_bytes=np.full(2, 9.0))
    with pytest.raises(InfeasibleError, match="memory of the devices"):
        place_graph(full, policy=policy)


@pytest.mark.parametrize("evaluations", [1, 40])
def test_all_placements_are_looked_at_only_where_a_budget_allows_that(
    policy: GraphPolicy, evaluations: int
) -> None:
    tables = draw_graph(0, nodes=(6, 6), devices=(2, 2))
    assert place_graph(tables, budget=Budget(evaluations), policy=policy).evaluations <= evaluations


def test_the_shipped_policy_is_better_than_earliest_finish_on_unseen_graphs() -> None:
    policy = GraphPolicy.load("graph-generalist")
    pool = GraphPool.from_tables(generate_graphs(16, seed=99))
    shares = [
        GraphDecoder(policy, pool, problem).samples(16, np.random.default_rng(0)).step_time_s.min()
        / pool.reference_s[problem]
        for problem in range(16)
    ]
    assert np.mean(shares) < 0.95
    assert policy.num_parameters < 60_000
