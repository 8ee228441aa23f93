"""Tangram's partial plans: which there are, how their stages are cut, what they take."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.tangram.kernels import END, FILL, SHARE, STEADY
from heterps_agents.systems.tangram.partial_plans import (
    Islands,
    even_shapes,
    islands_of,
    partial_plans,
    stages_of,
    undominated,
)
from heterps_configs.documents.job import Strategy
from heterps_envs.options import options_of
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem, uneven_problem


def islands(problem: Problem, **strategy: object) -> Islands:
    return islands_of(problem, options_of(problem, Strategy.from_mapping(strategy)))


def test_even_plans_are_powers_of_two_what_divides_and_all_that_there_are() -> None:
    found = islands(uneven_problem(counts=(6, 1, 1), memory=10))
    shapes = {tuple(row[1:]) for row in even_shapes(found, 0).tolist()}
    assert shapes == {
        *((1, replicas) for replicas in (1, 2, 3, 4, 6)),
        *((2, replicas) for replicas in (1, 2, 3)),
        *((3, replicas) for replicas in (1, 2)),
        *((stages, 1) for stages in (4, 6)),
    }


def test_a_strategy_adds_degrees_recomputation_and_shards(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(4, 1, 1))
    few = even_shapes(islands(problem), 0)
    more = even_shapes(islands(problem, recompute="auto", shard_state="auto"), 0)
    single = few[few[:, 2] == 1]
    # Shared state needs replicas.
    assert len(more) == 2 * len(few) + 2 * (len(few) - len(single))


def test_stages_of_a_slice_have_equally_many_blocks_the_last_ones_one_more() -> None:
    problem = uneven_problem(counts=(4, 1, 1), memory=10)
    layers = list(problem.profile.layers)
    ends = {0: "embedding", 9: "head"}
    layers = [layer.changed(kind=ends.get(i, "block")) for i, layer in enumerate(layers)]
    profile = problem.profile.changed(layers=layers)
    found = islands(Problem(profile, problem.cluster, problem.job))
    plans = partial_plans(found, only_undominated=False)

    def cut(first: int, end: int, stages: int) -> list[range]:
        is_it = (plans.first_cut == first) & (plans.end_cut == end) & (plans.shape[:, 1] == stages)
        index = int(np.flatnonzero(is_it & (plans.island == 0) & (plans.shape[:, 2] == 1))[0])
        placed = stages_of(found, plans, index)
        return [range(stage.first_layer, stage.last_layer + 1) for stage in placed]

    assert cut(0, 10, 4) == [range(3), range(3, 5), range(5, 7), range(7, 10)]
    # Seven blocks in two stages, with the embedding in front of them.
    assert cut(0, 8, 2) == [range(4), range(4, 8)]
    assert cut(2, 5, 2) == [range(2, 3), range(3, 5)]


def test_the_seconds_of_a_plan_by_hand(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=10.0, global_batch_size=7)
    found, tables = islands(problem), problem.tables
    plans = partial_plans(found, only_undominated=False)
    wanted = (plans.island == 1) & (plans.first_cut == 2) & (plans.end_cut == 8)
    index = int(np.flatnonzero(wanted & (plans.shape[:, 1] == 1) & (plans.shape[:, 2] == 3))[0])
    passes = tables.compute_s[2:8, 1].sum()
    costs = plans.costs[index]
    # Seven micro-batches on three replicas: three on the busiest.
    assert costs[SHARE] == 3
    assert costs[FILL] == pytest.approx(passes)
    assert costs[STEADY] == pytest.approx(2 * passes)
    ring = tables.gradient_bytes[2:8].sum() * tables.inverse_bandwidth_s_per_byte[1, 1] / 3
    sums = 4 * (ring + tables.latency_s[1, 1])
    assert costs[END] == pytest.approx(sums + tables.optimizer_s[2:8, 1].sum())


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=30))
def test_what_is_dropped_is_dominated_by_what_is_kept(rows: list[list[int]]) -> None:
    costs, group = np.array(rows, float)[:, :3], np.array(rows)[:, 3]
    keeps = undominated(costs, group)
    kept = np.flatnonzero(keeps)
    for index in range(len(rows)):
        better = [
            other
            for other in kept
            if other != index
            and group[other] == group[index]
            and (costs[other] <= costs[index]).all()
        ]
        assert bool(better) != bool(keeps[index])
