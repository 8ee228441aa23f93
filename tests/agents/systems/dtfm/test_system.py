"""DT-FM on our problems: equal groups, partners by the links, a number of stages that fits."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.dtfm.system import DtFm
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.problem import Problem
from tests.agents.systems.equal_devices import equal_problem
from tests.uneven_problems import MakeProblem


def two_sites(problem: Problem, **link: float) -> Problem:
    """The same with nodes in turns at two sites, which such a link joins."""
    document = problem.cluster.to_mapping()
    for index, node in enumerate(document["nodes"]):
        node["region"] = f"site{index % 2}"
    document["inter_region_link"] = link
    return Problem(problem.profile, Cluster.from_mapping(document), problem.job)


def columns(plan: Plan) -> dict[int, list[str]]:
    """Devices by the first layer of their stage."""
    found: dict[int, list[str]] = {}
    for stage in plan.stages:
        found.setdefault(stage.first_layer, []).append(stage.devices[0])
    return found


def sites_of(problem: Problem, names: list[str]) -> set[str]:
    return {problem.device_named[name].region for name in names}


@pytest.mark.slow
def test_a_slow_link_lies_between_two_stages_and_never_inside_one() -> None:
    problem = two_sites(
        equal_problem(num_nodes=4, devices_of_a_node=2, num_parameters=50_000_000),
        latency_s=0.02,
        bandwidth_bytes_per_s=1e8,
    )
    plan, own_cost = DtFm().answer(problem, Budget())
    found = columns(plan)
    assert len(found) > 1
    assert len({len(names) for names in found.values()}) == 1
    assert all(len(sites_of(problem, names)) == 1 for names in found.values())
    sites = [*map(tuple, (sites_of(problem, found[first]) for first in sorted(found)))]
    assert sites == sorted(sites) or sites == sorted(sites, reverse=True)
    assert own_cost is not None


def test_where_links_cost_nothing_every_device_has_the_whole_model() -> None:
    """Gradients of no bytes: what is left is the bubble, and only pipelines have one."""
    plan = DtFm().plan(equal_problem(num_nodes=2, devices_of_a_node=2, num_parameters=1), Budget())
    assert all(stage.layers == range(8) for stage in plan.stages)
    assert len(plan.stages) == 4


def test_stages_that_do_not_fit_are_cut_into_more() -> None:
    """Of 320 MB of state each layer, and 100 MB of activations for each micro-batch in flight."""
    few, many = (
        equal_problem(
            num_nodes=2, devices_of_a_node=4, num_parameters=20_000_000, memory_bytes=memory
        )
        for memory in (4_000_000_000, 1_300_000_000)
    )
    assert len(columns(DtFm().plan(few, Budget()))) == 4
    assert len(columns(DtFm().plan(many, Budget()))) == 8


def in_chain(count: int, **job: Any) -> Problem:
    return equal_problem(num_nodes=1, devices_of_a_node=count, **job)


def test_counts_that_do_not_divide_are_refused() -> None:
    message = r"^dt-fm: needs equal counts of devices in all stages; 11 devices do not"
    with pytest.raises(HeterpsError, match=message):
        DtFm().plan(in_chain(11, global_batch_size=8), Budget())


def test_what_fits_in_no_way_is_refused() -> None:
    with pytest.raises(InfeasibleError, match=r"^dt-fm: 4 devices have no room"):
        DtFm().plan(in_chain(4, memory_bytes=10_000_000), Budget())


def test_without_a_link_between_sites_nothing_is_answered() -> None:
    problem = equal_problem(num_nodes=2, devices_of_a_node=2)
    document = problem.cluster.to_mapping()
    document["inter_node_link"] = "none"
    apart = Problem(problem.profile, Cluster.from_mapping(document), problem.job)
    with pytest.raises(InfeasibleError, match=r"^dt-fm: some of its messages have no link"):
        DtFm().plan(apart, Budget())


def test_its_own_cost_is_the_messages_and_equal_passes_of_equal_parts() -> None:
    """Two stages of one device: 16 micro-batches and one more pass, and messages there and back."""
    problem = in_chain(2, num_parameters=60_000_000, memory_bytes=5_000_000_000)
    plan, own_cost = DtFm().answer(problem, Budget())
    assert len(columns(plan)) == 2
    tables, link = problem.tables, problem.link(*problem.device_named)
    sent = 16 * float(tables.output_bytes[3])
    passes_s = 17 * float(tables.compute_s[:, 0].sum()) / 2
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(
        passes_s + 2 * (link.latency_s + sent / link.bandwidth_bytes_per_s)
    )


def test_unlike_devices_get_equal_layers_all_the_same(make_problem: MakeProblem) -> None:
    plan = DtFm().plan(make_problem(counts=(2, 2, 0), memory=3.0), Budget())
    sizes = [len(stage.layers) for stage in plan.stages]
    assert max(sizes) - min(sizes) <= 1
