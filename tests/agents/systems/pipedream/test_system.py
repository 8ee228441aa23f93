"""PipeDream on our problems: its replicas on named devices, machine by machine."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.pipedream.system import PipeDream
from heterps_configs.errors import HeterpsError
from tests.agents.systems.equal_devices import equal_problem
from tests.uneven_problems import MakeProblem


def test_the_slowest_stage_is_as_slow_as_it_says(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(0, 4, 0), memory=8.0)
    plan, own_cost = PipeDream().answer(problem, Budget())
    spans = [(stage.first_layer, stage.last_layer) for stage in plan.stages]
    bandwidth = problem.link("middle-0", "middle-1").bandwidth_bytes_per_s
    slowest_s = 0.0
    for first, last in set(spans):
        part, replicas = slice(first, last + 1), spans.count((first, last))
        alone_s = problem.tables.compute_s[part, 0].sum()
        num_bytes = problem.tables.gradient_bytes[part].sum()
        sync_s = 4 * (replicas - 1) * num_bytes / (bandwidth * replicas)
        slowest_s = max(slowest_s, float(alone_s + sync_s) / replicas)
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(slowest_s)


def test_micro_batches_take_machines_in_turns_and_then_their_devices() -> None:
    """Three layers cannot be cut evenly for four devices, so all of them run all layers."""
    problem = equal_problem(num_nodes=2, devices_of_a_node=2, num_layers=3, num_parameters=10)
    plan = PipeDream().plan(problem, Budget())
    devices = [plan.route(micro_batch)[0].devices[0] for micro_batch in range(5)]
    assert devices == ["card0-0", "card1-0", "card0-1", "card1-1", "card0-0"]


def test_nodes_of_unlike_size_are_refused() -> None:
    problem = equal_problem(num_nodes=2, devices_of_a_node=2, more_on_the_last=1)
    with pytest.raises(
        HeterpsError, match=r"^pipedream: needs nodes of equally many devices; they have \[2, 3\]"
    ):
        PipeDream().plan(problem, Budget())


def test_one_device_is_one_stage() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=1)
    assert len(PipeDream().plan(problem, Budget()).stages) == 1
