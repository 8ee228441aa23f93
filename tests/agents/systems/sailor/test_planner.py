"""Plans for Sailor's cost: brute force, bounds, limits, names of devices, published references."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.sailor.cost import cost_of, memory_problems
from heterps_agents.systems.sailor.planner import SailorLimits, plan_for
from heterps_agents.systems.sailor.twins import find_twins
from heterps_configs.errors import InfeasibleError, UnknownNameError
from heterps_configs.importers import sailor
from heterps_configs.importers.sailor import SailorLinks
from tests.agents.small_sailor import all_plans, random_problem, renamed_twin


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([{"fast": 2, "slow": 2}, {"fast": 1, "slow": 3}, {"fast": 4, "slow": 0}]),
    st.integers(1, 12),
)
def test_no_plan_of_the_same_kind_is_faster(
    seed: int, num_layers: int, num_gpus: Mapping[str, int], global_batch_size: int
) -> None:
    model, cluster, links = random_problem(seed, num_layers)
    costs = [
        cost_of(model, links, plan).iteration_s
        for plan in all_plans(num_layers, num_gpus, global_batch_size)
        if not memory_problems(model, cluster, plan)
    ]
    if not costs:
        with pytest.raises(InfeasibleError, match="passes the memory check"):
            plan_for(model, cluster, links, num_gpus, global_batch_size)
        return
    answer = plan_for(model, cluster, links, num_gpus, global_batch_size)
    assert answer.cost.iteration_s == pytest.approx(min(costs), rel=2e-6)
    assert answer.lower_bound <= min(costs)
    assert answer.lower_bound == pytest.approx(min(costs), rel=2e-6)
    assert answer.cost == cost_of(model, links, answer.plan)
    assert not memory_problems(model, cluster, answer.plan)


def test_limits_on_sizes_degrees_and_replicas_are_kept() -> None:
    model, cluster, links = random_problem(5, 4)
    answer = plan_for(
        model,
        cluster,
        links,
        {"fast": 4, "slow": 4},
        8,
        SailorLimits(micro_batch_sizes=(2,), tensor_parallel=(1,), max_replicas=1),
    )
    assert answer.plan.micro_batch_size == 2
    assert {stage.groups[0].tensor_parallel for stage in answer.plan.stages} == {1}
    assert {len(stage.groups) for stage in answer.plan.stages} == {1}


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 4))
def test_renaming_identical_gpus_changes_nothing(seed: int, num_layers: int) -> None:
    model, cluster, links = random_problem(seed, num_layers)
    renamed = renamed_twin(model, cluster, links, "fast", "twin")
    try:
        expected = plan_for(model, cluster, links, {"fast": 6, "slow": 2}, 8)
    except InfeasibleError:
        with pytest.raises(InfeasibleError):
            plan_for(*renamed, {"twin": 2, "slow": 2, "fast": 4}, 8)
        return
    answer = plan_for(*renamed, {"twin": 2, "slow": 2, "fast": 4}, 8)
    assert answer.cost.iteration_s == pytest.approx(expected.cost.iteration_s, rel=2e-6)
    used = Counter(
        group.gpu
        for stage in answer.plan.stages
        for group in stage.groups
        for _ in range(group.tensor_parallel)
    )
    assert all(used[gpu] <= count for gpu, count in {"twin": 2, "slow": 2, "fast": 4}.items())


def test_gpus_that_differ_in_one_link_keep_their_names() -> None:
    model, cluster, links = random_problem(2, 3)
    model, cluster, links = renamed_twin(model, cluster, links, "fast", "twin")
    counts = {"fast": 2, "twin": 2, "slow": 2}
    merged = {"fast": {"fast": 2, "twin": 2}, "slow": {"slow": 2}}
    apart = {"fast": {"fast": 2}, "twin": {"twin": 2}, "slow": {"slow": 2}}
    assert find_twins(model, cluster, links, counts) == merged
    pair = next(pair for pair in links.links if pair[0].gpu == "twin" and pair[1].gpu == "slow")
    other = {**links.links, pair: links.links[pair]._replace(max_bytes_per_s=1.0)}
    assert find_twins(model, cluster, SailorLinks("changed", other), counts) == apart
    # A group of two cannot be made of three and one.
    uneven = {"fast": 3, "twin": 1, "slow": 2}
    assert len(find_twins(model, cluster, links, uneven)) == 3


def test_more_gpus_never_cost_time() -> None:
    model, cluster, links = random_problem(7, 4)
    seconds = [
        plan_for(model, cluster, links, {"fast": count, "slow": 2}, 16).cost.iteration_s
        for count in (0, 1, 2, 4)
    ]
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in itertools.pairwise(seconds))


def test_a_gpu_type_that_the_cluster_does_not_have_is_an_error() -> None:
    model, cluster, links = random_problem(7, 2)
    with pytest.raises(UnknownNameError, match="unknown GPU type 'fats'; did you mean fast"):
        plan_for(model, cluster, links, {"fats": 1}, 16)


@pytest.mark.parametrize(
    ("num_gpus", "expected"),
    [
        ({"A100-40": 1, "V100-16": 2}, 9.195560),
        ({"RTX-3090": 1, "Titan-RTX": 1, "RTX-2080": 1}, 21.069344),
    ],
)
def test_published_profiles_are_at_the_exact_references(
    num_gpus: Mapping[str, int], expected: float
) -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "sailor"
    if not folder.is_dir():
        return
    simulations = folder / "Planner" / "simulations"
    answer = plan_for(
        sailor.load_model(
            simulations / "profiles_tmp.json", folder / "Planner" / "llm_info.json", "OPT-350"
        ),
        sailor.load_cluster(simulations / "configs" / "basic_cluster_config.json"),
        sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json"),
        num_gpus,
        64,
        SailorLimits(micro_batch_sizes=(1,), tensor_parallel=(1,), max_replicas=1),
    )
    assert answer.cost.iteration_s == pytest.approx(expected, abs=1e-6)
