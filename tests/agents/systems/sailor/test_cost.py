"""Sailor's cost: by hand, its memory check, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heterps_agents.systems.sailor.cost import (
    all_reduce_s,
    cost_of,
    group_memory_bytes,
    memory_problems,
    num_micro_batches,
)
from heterps_configs.errors import HeterpsError
from heterps_configs.importers import sailor
from heterps_configs.importers.sailor import SailorEnd, SailorLink, SailorLinks
from heterps_configs.importers.sailor_runs import SailorGroup, SailorPlan, SailorStage, load_run
from tests.agents.small_sailor import ZONE, random_problem

FAST, SLOW = SailorGroup("fast", 1, ZONE), SailorGroup("slow", 1, ZONE)


def pipeline(*groups: SailorGroup, replicas: int = 1, batch: int = 8) -> SailorPlan:
    """One layer on each group."""
    stages = tuple(
        SailorStage(index, index + 1, (group,) * replicas) for index, group in enumerate(groups)
    )
    return SailorPlan(stages, 2, batch)


@pytest.mark.parametrize("num_stages", [3, 4])
def test_the_formula_by_hand(num_stages: int) -> None:
    model, _, links = random_problem(3, num_stages)
    plan = pipeline(*(FAST, SLOW, FAST, SLOW)[:num_stages])
    busy = []
    for index, stage in enumerate(plan.stages):
        (group,) = stage.groups
        times = model.layer_times(sailor.SailorShape(group.gpu, 2, 1))[index]
        here = SailorEnd(group.gpu, 1, ZONE)
        behind = SailorEnd("slow" if group is FAST else "fast", 1, ZONE)
        link = links.between(here, behind)
        forward, backward = (
            link.send_s(model.sizes[1][cut].output * 2 * 4) if 0 <= cut < num_stages - 1 else 0.0
            for cut in (index, index - 1)
        )
        if index == 0 and num_stages > 3:
            forward *= 2
        if index == num_stages - 1:
            backward *= 2
        busy.append(times.forward_s + times.backward_s + forward + backward)
    update = max(
        model.layer_times(sailor.SailorShape(stage.groups[0].gpu, 2, 1))[index].update_s
        for index, stage in enumerate(plan.stages)
    )
    expected = 3 * max(busy) + sum(busy) + update
    cost = cost_of(model, links, plan)
    assert num_micro_batches(plan) == 4
    assert cost.iteration_s == pytest.approx(expected, rel=1e-12)
    assert cost.bottleneck_s == pytest.approx(max(busy))
    assert cost.all_reduce_s == 0


def test_gradients_are_reduced_in_buckets_over_the_slowest_link_of_the_ring() -> None:
    ends = [SailorEnd(gpu, 1, ZONE) for gpu in ("fast", "slow")]
    links = SailorLinks(
        "made up",
        {
            (a, b): SailorLink((0.0, 0.0, 1.0 if "slow" in (a.gpu, b.gpu) else 2.0), 1e9)
            for a in ends
            for b in ends
        },
    )
    # 1.2e9 bytes over three replicas: 2 (3 - 1) steps of a third of the bytes at 1 GB/s.
    assert all_reduce_s(links, (FAST, SLOW, FAST), 1.2e9) == pytest.approx(4 * 1.2 / 3)
    assert all_reduce_s(links, (FAST, FAST), 1.2e9) == pytest.approx(2 * 1.2 / 2 / 2)
    assert all_reduce_s(links, (FAST,), 1.2e9) == 0


def test_the_memory_check_counts_the_stages_from_this_one_to_the_last() -> None:
    model, cluster, _ = random_problem(1, 3)
    plan = pipeline(FAST, SLOW, FAST)
    for index, group in enumerate((FAST, SLOW, FAST)):
        size = model.sizes[1][index]
        needed = 24 * size.parameters + 4 * 2 * size.activation_memory * (3 - index) + 2e9
        assert group_memory_bytes(model, plan, index, group) == needed
    small = sailor.SailorCluster(
        ZONE, {gpu: entry._replace(memory_bytes=1) for gpu, entry in cluster.node_types.items()}
    )
    problems = memory_problems(model, small, plan)
    assert len(problems) == 3
    assert problems[1].startswith("stage 1 on slow: needs ")


def test_plans_that_do_not_cover_the_layers_are_refused() -> None:
    model, _, links = random_problem(0, 3)
    with pytest.raises(HeterpsError, match="the stages must cover the 3 layers of random"):
        cost_of(model, links, pipeline(FAST, SLOW))
    uneven = SailorPlan((SailorStage(0, 1, (FAST,)), SailorStage(1, 3, (FAST, FAST))), 1, 8)
    with pytest.raises(HeterpsError, match="the same number of replicas"):
        cost_of(model, links, uneven)


def test_published_runs_cost_what_the_published_simulator_says() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "sailor"
    if not folder.is_dir():
        return
    simulations = folder / "Planner" / "simulations"
    model = sailor.load_model(
        simulations / "profiles_tmp.json", folder / "Planner" / "llm_info.json", "OPT-350"
    )
    links = sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json")
    # Seconds that Sailor's simulator predicts for its measured runs.
    for name, expected in {
        "clariden/OPT-350/N1/plan_config_N1_D1_M4_G32": 2.641,
        "clariden/OPT-350/N16/plan_config_N16_D16": 1.884,
        "clariden/OPT-350/N16/plan_config_N16_D4": 2.303,
        "clariden/OPT-350/N4/plan_config_N4_D2": 1.523,
        "mit/N2/plan_config_N2_D1": 120.952,
        "mit/N3/plan_config_N3_D1": 52.108,
    }.items():
        run = load_run(simulations / "validation" / f"{name}.json")
        assert cost_of(model, links, run.plan).iteration_s == pytest.approx(expected, abs=6e-4)
