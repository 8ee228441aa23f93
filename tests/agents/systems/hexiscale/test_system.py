"""HexiScale on our problems: unlike pipelines, groups, idle devices, what it predicts."""

from __future__ import annotations

import itertools
import math

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.hexiscale.cost import GradientSums, shared
from heterps_agents.systems.hexiscale.graph import DeviceGraph
from heterps_agents.systems.hexiscale.pipeline import PipelineMaker
from heterps_agents.systems.hexiscale.system import HexiScale, pipes_of
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from tests.agents.systems.equal_devices import equal_problem
from tests.agents.systems.hexiscale.small_graphs import SmallGraph, all_partitions
from tests.uneven_problems import MakeProblem


def on_eight_types(strategy: Strategy) -> Problem:
    job = Job(global_batch_size=128, dtype="bfloat16")
    return Problem(load_profile("llama-7b"), load_cluster("eight-types"), job, strategy=strategy)


def shapes(plan: Plan) -> list[tuple[tuple[int, int, int], ...]]:
    """First layer, last layer and degree of the stages of each pipeline."""
    return [
        tuple((s.first_layer, s.last_layer, s.degree) for s in map(plan.stage, pipeline.stages))
        for pipeline in plan.pipelines
    ]


def test_pipelines_have_their_own_depth_cuts_and_share() -> None:
    problem = on_eight_types(Strategy())
    plan = HexiScale().plan(problem, Budget())
    depths = [len(shape) for shape in shapes(plan)]
    assert len(set(depths)) > 1
    assert len({len(pipeline.micro_batches) for pipeline in plan.pipelines}) > 1
    assert can_run(problem, plan)
    used = [name for stage in plan.stages for name in stage.devices]
    assert len(set(used)) == len(used)


def test_groups_are_as_wide_as_a_strategy_allows_and_pipelines_differ_in_them() -> None:
    strategy = Strategy(tensor_parallel=(1, 2, 4))
    problem = on_eight_types(strategy)
    plan = HexiScale().plan(problem, Budget())
    assert keeps_to(plan, strategy)
    assert can_run(problem, plan)
    widths = {tuple(degree for _, _, degree in shape) for shape in shapes(plan)}
    assert len(widths) > 1
    assert max(itertools.chain(*widths)) > 1
    for stage in plan.stages:
        assert len({problem.device_named[name].node for name in stage.devices}) == 1


@pytest.mark.slow
def test_equal_devices_with_free_links_take_what_the_formula_says() -> None:
    """Four devices, no gradients to sum: four pipelines of one, four micro-batches each."""
    problem = equal_problem(num_nodes=1, devices_of_a_node=4, num_parameters=1)
    plan, own = HexiScale().answer(problem, Budget())
    assert own is not None
    assert own.seconds == pytest.approx(4 * float(problem.tables.compute_s[:, 0].sum()), rel=0.01)
    assert plan.predicted_step_time_s == pytest.approx(own.seconds, rel=0.05)
    assert [len(pipeline.micro_batches) for pipeline in plan.pipelines] == [4] * 4


def test_large_gradients_make_fewer_and_deeper_pipelines() -> None:
    light, heavy = (
        HexiScale().plan(
            equal_problem(
                num_nodes=4, devices_of_a_node=1, num_parameters=count, memory_bytes=10**11
            ),
            Budget(),
        )
        for count in (1, 400_000_000)
    )
    assert len(light.pipelines) == 4
    assert len(heavy.pipelines) < 4


def test_little_memory_makes_deeper_pipelines() -> None:
    """The model's state is 0.5 GB; 1F1B keeps 0.8 GB of activations at the front of any depth."""
    depths = []
    for memory_bytes in (2_000_000_000, 1_200_000_000, 1_000_000_000):
        problem = equal_problem(
            num_nodes=1,
            devices_of_a_node=4,
            num_parameters=4_000_000,
            memory_bytes=memory_bytes,
        )
        depths.append(max(map(len, shapes(HexiScale().plan(problem, Budget())))))
    assert depths == [1, 2, 4]


def test_a_device_that_would_only_be_in_the_way_is_idle(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 1, 0), memory=8.0)
    slow = next(d for d in problem.cluster.devices if d.type.name == "middle")
    cluster = problem.cluster.to_mapping()
    (kind,) = (entry for entry in cluster["device_types"] if entry["name"] == "middle")
    kind["peak_flops_per_s"], kind["memory_bandwidth_bytes_per_s"] = {"float32": 1e11}, 1e9
    slower = Problem(problem.profile, type(problem.cluster).from_mapping(cluster), problem.job)
    assert slow.name in HexiScale().plan(problem, Budget()).devices
    assert slow.name not in HexiScale().plan(slower, Budget()).devices


def test_a_model_without_room_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^hexiscale: 10 layers have no room in the pipe"):
        HexiScale().plan(make_problem(memory=0.2), Budget())


def test_pipelines_without_a_link_between_them_cannot_sum_gradients() -> None:
    cluster = load_cluster("a100-v100").to_mapping()
    cluster["inter_node_link"] = "none"
    problem = Problem(
        load_profile("vit-large"), Cluster.from_mapping(cluster), Job(global_batch_size=16)
    )
    with pytest.raises(InfeasibleError, match=r"^hexiscale: .* need a link that is not there"):
        HexiScale().plan(problem, Budget())


def test_groups_need_equal_devices_on_a_node() -> None:
    problem = Problem(
        load_profile("vit-large"),
        load_cluster("gpu-cpu"),
        Job(global_batch_size=16),
        strategy=Strategy(tensor_parallel=(2,)),
    )
    with pytest.raises(HeterpsError, match=r"^hexiscale: no node has equal devices for a group"):
        HexiScale().plan(problem, Budget())


@pytest.mark.parametrize(
    ("counts", "memory", "bandwidth_bytes_per_s"),
    [((2, 2, 0), 8.0, 1e10), ((1, 2, 1), 8.0, 1e10), ((2, 2, 0), 20.0, 1e9)],
)
def test_no_partition_is_much_quicker_than_the_balanced_ones(
    make_problem: MakeProblem,
    counts: tuple[int, int, int],
    memory: float,
    bandwidth_bytes_per_s: float,
) -> None:
    """By its own cost, which does not choose partitions, of all that a few devices have."""
    problem = make_problem(
        counts=counts, memory=memory, bandwidth_bytes_per_s=bandwidth_bytes_per_s
    ).by_node
    graph, total = DeviceGraph(problem), problem.job.num_micro_batches
    maker, sums = PipelineMaker(problem, graph, (1,)), GradientSums(problem, graph, (1,))
    small = SmallGraph(graph.counts, graph.weights, graph.bandwidth)
    best_s = math.inf
    for number in range(1, sum(counts) + 1):
        for parts in all_partitions(small, number):
            found = shared(pipes_of(graph, maker, parts, total), total)
            if found is not None:
                best_s = min(best_s, found.seconds + sums.seconds(found.pipes))
    own = HexiScale().answer(problem, Budget()).own_cost
    assert own is not None
    assert best_s * (1 - 1e-9) <= own.seconds <= best_s * 1.15
