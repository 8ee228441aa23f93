"""Virtual workers: shares of micro-batches, mini-batches in flight, sums over those alike."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.hetpipe.allocation import Allocation
from heterps_agents.systems.hetpipe.sums import sums_seconds
from heterps_agents.systems.hetpipe.workers import Partitions, dealt
from tests.uneven_problems import MakeProblem


@given(st.integers(0, 9), st.lists(st.floats(0.1, 9), min_size=1, max_size=3))
def test_no_other_shares_have_a_shorter_longest_one(total: int, periods: list[float]) -> None:
    def longest(shares: tuple[int, ...]) -> float:
        return max(share * own for share, own in zip(shares, periods, strict=True))

    found = dealt(total, periods)
    assert sum(found) == total
    others = product(range(total + 1), repeat=len(periods))
    assert longest(tuple(found)) == pytest.approx(
        min(longest(each) for each in others if sum(each) == total)
    )


def test_more_are_in_flight_as_long_as_that_is_faster_and_has_room(
    make_problem: MakeProblem,
) -> None:
    names = ("fast-0", "fast-1", "middle-0", "middle-1")
    allocation = Allocation("NP", (names,))
    roomy, tight = (
        Partitions(make_problem(memory=memory, global_batch_size=64)).best(allocation)
        for memory in (10.0, 0.42)
    )
    assert roomy is not None
    assert tight is not None
    assert 1 < roomy.in_flight <= 4
    assert tight.in_flight < roomy.in_flight
    assert tight.seconds > roomy.seconds


def test_a_worker_without_room_spoils_its_allocation(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=1.0)
    workers = (("fast-0", "fast-1"), ("small-0",))
    assert Partitions(problem).best(Allocation("NP", workers[:1])) is not None
    assert Partitions(problem).best(Allocation("NP", workers)) is None


def test_workers_that_are_cut_alike_sum_over_the_links_between_the_like(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    gradients = problem.tables.gradient_bytes
    own = sums_seconds(
        problem, [(("fast-0", "middle-0"), (0, 2)), (("fast-1", "middle-1"), (0, 2))]
    )
    # Two devices of a node: 2 (n - 1) messages of a half, at 1e10 bytes/s.
    expected = [
        2 * (1e-5 + num_bytes / 2 / 1e10)
        for num_bytes in (gradients[:2].sum(), gradients[2:].sum())
    ]
    assert own == pytest.approx(max(expected))
    crossed = sums_seconds(
        problem, [(("fast-0", "middle-0"), (0, 2)), (("middle-1", "fast-1"), (0, 2))]
    )
    assert crossed == pytest.approx(
        max(2 * (1e-5 + e / 2 / 2.5e9) for e in (gradients[:2].sum(), gradients[2:].sum()))
    )


def test_a_device_sums_its_layers_over_each_ring_one_after_the_other(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    gradients = problem.tables.gradient_bytes
    unlike = [(("fast-0", "fast-1"), (0, 5)), (("middle-0",), (0,))]
    rings = [2 * (1e-5 + part.sum() / 2 / 2.5e9) for part in (gradients[:5], gradients[5:])]
    assert sums_seconds(problem, unlike) == pytest.approx(sum(rings))
    assert sums_seconds(problem, unlike[:1]) == 0


def test_where_cuts_differ_a_device_sums_with_whoever_holds_the_layers(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    gradients = problem.tables.gradient_bytes
    workers = [(("fast-0", "middle-0"), (0, 2)), (("fast-1", "small-0"), (0, 5))]
    parts = [gradients[:2].sum(), gradients[2:5].sum(), gradients[5:].sum()]
    # Both fast, one of each node, both of the other node.
    rates = [1e10, 2.5e9, 1e10]
    first, crossed, last = (2 * (1e-5 + p / 2 / r) for p, r in zip(parts, rates, strict=True))
    assert sums_seconds(problem, workers) == pytest.approx(crossed + max(first, last))
