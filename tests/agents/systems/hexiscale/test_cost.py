"""HexiScale's own cost: micro-batches over unlike pipelines, sums of gradients over unlike cuts."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.hexiscale.cost import GradientSums, shared
from heterps_agents.systems.hexiscale.graph import DeviceGraph
from heterps_agents.systems.hexiscale.pipeline import Pipe
from heterps_agents.systems.hexiscale.stages import Group
from tests.agents.systems.equal_devices import equal_problem


def pipe(fill_s: float, period_s: float, most: int = 100) -> Pipe:
    return Pipe((Group(("card", ), 0),), (8,), fill_s, period_s, most)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.floats(0.1, 5), st.floats(0, 1), st.integers(0, 6)), min_size=1, max_size=3
    ),
    st.integers(1, 8),
)
def test_no_other_shares_end_earlier(rows: list[tuple[float, float, int]], total: int) -> None:
    pipes = [pipe(fill, share * fill, most) for fill, share, most in rows]
    ways = [
        max(own.seconds(count) for own, count in zip(pipes, counts, strict=True) if count)
        for counts in itertools.product(*(range(own.most + 1) for own in pipes))
        if sum(counts) == total
    ]
    found = shared(pipes, total)
    if not ways:
        assert found is None
        return
    assert found is not None
    assert sum(found.micro_batches) == total
    assert all(found.micro_batches)
    assert found.seconds == pytest.approx(min(ways))


def test_a_pipeline_that_would_be_late_with_one_is_idle() -> None:
    found = shared([pipe(1.0, 0.1), pipe(5.0, 0.1)], 10)
    assert found is not None
    assert found.micro_batches == (10,)


def test_gradients_are_summed_over_all_stages_that_hold_a_layer() -> None:
    """Two pipelines on three nodes: eight layers on one device, and five and three on two."""
    problem = equal_problem(num_nodes=3, devices_of_a_node=1, num_parameters=25_000_000)
    graph = DeviceGraph(problem)
    whole = Pipe((Group(("card0",), 0),), (8,), 1.0, 1.0, 16)
    parts = Pipe((Group(("card1",), 1), Group(("card2",), 2)), (5, 8), 1.0, 1.0, 16)
    sums = GradientSums(problem, graph, [1])
    step_s = float(problem.tables.optimizer_s[:, 0].sum())
    # A layer's gradients are 100 MB: half of it to the other and back over 10 GB/s, from layers 0-4
    # and 5-7 in a sum each, two messages of 10 us.
    sums_s = 8 * 2 * 50e6 / 1e10 + 2 * 2 * 1e-5
    assert sums.seconds([whole, parts]) == pytest.approx(step_s + sums_s)
    assert sums.seconds([whole]) == pytest.approx(step_s)
    assert sums.seconds([parts]) == pytest.approx(step_s * 5 / 8)
