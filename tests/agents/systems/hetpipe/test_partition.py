"""The partition is the best of all cuts and orders of the devices that have room."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import combinations, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.hetpipe.orders import by_swaps
from heterps_agents.systems.hetpipe.partition import (
    PlacedLayers,
    fits,
    has_all_orders,
    partition,
    stage_seconds,
)
from heterps_agents.systems.hetpipe.tables import WorkerTables


def all_partitions(tables: WorkerTables) -> Iterator[tuple[PlacedLayers, ...]]:
    """Every order of the devices with every cut; each has layers."""
    kinds = [kind for kind, count in enumerate(tables.counts) for _ in range(count)]
    num_layers = tables.compute_s.shape[1]
    for order in set(permutations(kinds)):
        for cuts in combinations(range(1, num_layers), len(order) - 1):
            ranges = pairwise((0, *cuts, num_layers))
            yield tuple(
                PlacedLayers(kind, first, end)
                for kind, (first, end) in zip(order, ranges, strict=True)
            )


def plain_cost(tables: WorkerTables, stages: tuple[PlacedLayers, ...], in_flight: int) -> float:
    """Seconds of the slowest stage with what it receives; inf where one has no room."""
    slowest = 0.0
    for index, (kind, first, end) in enumerate(stages):
        seconds = sum(tables.compute_s[kind, layer] for layer in range(first, end))
        for other, border in ((index - 1, first), (index + 1, end)):
            if 0 <= other < len(stages):
                sender = stages[other].kind
                seconds += tables.links[0, sender, kind]
                seconds += tables.cut_bytes[border] * tables.links[1, sender, kind]
        slowest = max(slowest, seconds)
        holds = in_flight if tables.all_at_once else min(in_flight, len(stages) - index)
        held = sum(
            tables.state_bytes[layer] + holds * tables.kept_bytes[layer]
            for layer in range(first, end)
        )
        if held > tables.memory_bytes[kind]:
            return math.inf
    return slowest


def drawn(counts: list[int], num_layers: int, seed: int, room: float) -> WorkerTables:
    rng, kinds = np.random.default_rng(seed), len(counts)
    state, kept = rng.integers(1, 9, (2, num_layers)).astype(float)
    cut_bytes = rng.integers(0, 9, num_layers + 1).astype(float)
    cut_bytes[[0, -1]] = 0.0
    share = (state + kept).sum() / sum(counts)
    return WorkerTables(
        compute_s=rng.integers(1, 20, (kinds, num_layers)).astype(float),
        state_bytes=state,
        kept_bytes=kept,
        cut_bytes=cut_bytes,
        counts=np.array(counts),
        memory_bytes=room * share * rng.uniform(0.7, 2, kinds),
        # Not the same there and back.
        links=rng.uniform(0, 2, (2, kinds, kinds)),
        all_at_once=bool(rng.integers(0, 2)),
    )


COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda each: sum(each) <= 4)


@settings(max_examples=60, deadline=None)
@given(COUNTS, st.integers(4, 8), st.integers(0, 10**6), st.integers(1, 4), st.floats(0.8, 4))
def test_no_order_and_no_cut_is_better(
    counts: list[int], num_layers: int, seed: int, in_flight: int, room: float
) -> None:
    tables = drawn(counts, num_layers, seed, room)
    least = min(plain_cost(tables, stages, in_flight) for stages in all_partitions(tables))
    found = partition(tables, in_flight)
    if found is None:
        assert least == math.inf
        return
    assert found.stages in set(all_partitions(tables))
    assert found.slowest_s == pytest.approx(least)
    assert plain_cost(tables, found.stages, in_flight) == pytest.approx(least)
    assert found.alone_s == pytest.approx(sum(stage_seconds(tables, found.stages)))
    for stages in all_partitions(tables):
        assert fits(tables, stages, in_flight) == (plain_cost(tables, stages, in_flight) < math.inf)


def test_fewer_layers_than_devices_have_no_partition() -> None:
    assert partition(drawn([3], 2, 0, 9.0), 1) is None


def test_with_few_in_flight_the_filling_of_the_pipeline_sets_the_pace() -> None:
    tables = drawn([1, 1, 1], 6, 1, 99.0)
    found = partition(tables, 3)
    assert found is not None
    assert found.period_s(1) == found.alone_s
    assert found.period_s(2) == max(found.slowest_s, found.alone_s / 2)
    assert found.period_s(3) == found.slowest_s


@settings(max_examples=30, deadline=None)
@given(COUNTS, st.integers(4, 8), st.integers(0, 10**6), st.integers(1, 4), st.floats(0.8, 4))
def test_swaps_end_where_none_is_better_and_cuts_are_the_best_of_their_order(
    counts: list[int], num_layers: int, seed: int, in_flight: int, room: float
) -> None:
    tables = drawn(counts, num_layers, seed, room)
    found = by_swaps(tables, in_flight)
    if not len(found):
        return
    order = [int(kind) for kind in found[:, 0]]
    cost: dict[tuple[int, ...], float] = {}
    for stages in all_partitions(tables):
        kinds = tuple(stage.kind for stage in stages)
        own = plain_cost(tables, stages, in_flight)
        cost[kinds] = min(cost.get(kinds, math.inf), own)
    ends = [*found[1:, 1].tolist(), num_layers]
    placed = tuple(
        PlacedLayers(kind, int(first), end)
        for (kind, first), end in zip(found.tolist(), ends, strict=True)
    )
    assert plain_cost(tables, placed, in_flight) == pytest.approx(cost[tuple(order)])
    for a, b in combinations(range(len(order)), 2):
        swapped = list(order)
        swapped[a], swapped[b] = order[b], order[a]
        assert cost[tuple(order)] <= cost[tuple(swapped)] * (1 + 1e-6)


def test_swaps_serve_where_there_are_too_many_orders() -> None:
    tables = drawn([1] * 14, 40, 3, 40.0)
    assert not has_all_orders(tables)
    found = partition(tables, 14)
    assert found is not None
    assert fits(tables, found.stages, 14)
    assert sorted(stage.kind for stage in found.stages) == list(range(14))
