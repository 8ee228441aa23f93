"""The exact solver on equal nodes: two classes, a bound for every choice of devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.planner import ExactPlanner
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.plan import Plan
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import closed_form_of_plan_s, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from tests.envs.small_problems import chain_problem, device_type, placements

ROUNDING = 1e-9


def on_equal_nodes(
    output_bytes: float,
    parameters: int,
    counts: tuple[int, int] = (2, 2),
    objective: str = "throughput",
) -> Problem:
    """So many nodes of two devices, of two types; links between them take a tenth of the speed."""
    layers = 4
    base = chain_problem(
        [1.0] * layers,
        [2.0] * layers,
        num_micro_batches=4,
        counts=(2, 2),
        speeds=(1.0, 2.0),
        prices=(3.0, 1.0),
        parameters=[parameters] * layers,
        output_bytes=[output_bytes] * (layers - 1) + [0.0],
        objective=objective,
    )
    nodes = tuple(
        Node(
            name=f"n{kind}-{index}",
            link=Link(latency_s=0.01, bandwidth_bytes_per_s=10.0),
            devices=(DeviceGroup(name=f"d{kind}-{index}", type=f"class{kind}", count=2),),
        )
        for kind, count in enumerate(counts)
        for index in range(count)
    )
    types = tuple(device_type(f"class{kind}", price=price) for kind, price in enumerate((3.0, 1.0)))
    between = Link(latency_s=0.1, bandwidth_bytes_per_s=1.0)
    cluster = Cluster(name="equal", device_types=types, nodes=nodes, inter_node_link=between)
    return Problem(base.profile, cluster, base.job)


def closed_form_s(problem: Problem, plan: Plan) -> float:
    placement = placement_of(problem, plan)
    assert placement is not None
    return closed_form_of_plan_s(problem, plan, placement)


@settings(max_examples=25)
@given(st.data(), st.sampled_from([0.0, 1.0, 20.0]), st.sampled_from([0, 3, 30]))
def test_no_choice_of_devices_is_faster_than_the_bound(
    data: st.DataObject, output_bytes: float, parameters: int
) -> None:
    problem = on_equal_nodes(output_bytes, parameters)
    tables = problem.bounding_tables
    least_s = solve(kernel_tables(tables), Goal()).step_time_s
    assert lower_bound(tables) <= least_s * (1 + ROUNDING)
    plan = bind(problem, data.draw(placements(4, (4, 4))), planner="test", seed=0)
    assert closed_form_s(problem, plan) >= least_s * (1 - ROUNDING)


@pytest.mark.parametrize("objective", ["throughput", "price"])
@pytest.mark.parametrize(("output_bytes", "parameters"), [(0.0, 0), (5.0, 3), (20.0, 30)])
def test_a_plan_is_proven_only_where_its_own_links_reach_the_bound(
    output_bytes: float, parameters: int, objective: str
) -> None:
    problem = on_equal_nodes(output_bytes, parameters, (3, 3), objective)
    assert len(problem.classes) == 2
    plan = ExactPlanner().plan(problem, Budget())
    own_s, bound = closed_form_s(problem, plan), plan.bound
    assert bound.step_time_s is not None
    assert bound.step_time_s <= own_s * (1 + ROUNDING)
    assert bound.gap is not None
    assert (bound.status == "proven") == (bound.gap <= ROUNDING)
    if objective == "throughput":
        assert bound.gap == pytest.approx(own_s / bound.step_time_s - 1, abs=ROUNDING)
    assert check_certificate(problem, plan).problems == ()


def test_what_fits_on_one_node_is_proven_with_fast_links() -> None:
    """One micro-batch: a pipeline inside a node, or one device; no link between nodes is used."""
    problem = on_equal_nodes(0.0, 0)
    problem = Problem(problem.profile, problem.cluster, problem.job.changed(global_batch_size=1))
    plan = ExactPlanner().plan(problem, Budget())
    assert plan.bound.status == "proven"
    assert np.isclose(closed_form_s(problem, plan), 12.0)
