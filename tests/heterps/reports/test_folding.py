"""Equal devices are one row, in tables, in lists of names and in figures."""

from __future__ import annotations

import pytest
from rich.console import Console

from heterps.commands.simulate import memory_table
from heterps.micro_batches.place_result import PlaceResult
from heterps.reports.console import percent_text
from heterps.reports.figures import timeline_figure
from heterps.reports.folding import (
    MOST_ROWS,
    folded_estimate,
    folded_names,
    folded_title,
    stage_groups,
)
from heterps.reports.memory_figure import memory_figure
from heterps.reports.tables import result_lines, stages_table
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Bound, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import estimate


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ((f"h100-b-{i}" for i in reversed(range(8))), "h100-b-0..7"),
        ((f"n{n}-{i}" for n in range(9, 12) for i in range(8)), "n9..11-0..7"),
        (("gpu", "a100-0", "a100-2"), "a100-0, a100-2, gpu"),
        (("d08", "d09", "d10"), "d08..10"),
        ((f"d{i}" for i in range(0, 12, 2)), "d0, d2 and 4 more"),
        ((), ""),
    ],
)
def test_names_that_count_on_are_one_range(names: tuple[str, ...], shown: str) -> None:
    assert folded_names(names) == shown


def large(num_nodes: int) -> Problem:
    """Llama 7B on nodes of 8 H100, with as many of 8 A10G beside them."""
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e11}
    types = ("H100-80G", "A10G")
    nodes = [
        {
            "name": f"{kind}-{i}",
            "devices": [{"name": f"{kind}-{i}", "type": kind, "count": 8}],
            "link": link,
        }
        for kind in types
        for i in range(num_nodes)
    ]
    mapping = {"name": "large", "nodes": nodes, "inter_node_link": link}
    return small(Cluster.from_mapping(mapping, source="test"), 16)


def small(cluster: Cluster, batch: int) -> Problem:
    job = Job(global_batch_size=batch, micro_batch_size=1, dtype="bfloat16")
    return Problem(profile=load_profile("llama-7b"), cluster=cluster, job=job)


def plan_with(problem: Problem, *ranges: tuple[int, int, int]) -> Plan:
    """Stages on the first devices: first layer, last layer, replicas."""
    devices = iter(problem.cluster.devices)
    groups = [
        [
            Stage(
                name=f"s{i}r{j}" if count > 1 else f"s{i}",
                first_layer=first,
                last_layer=last,
                devices=(next(devices).name,),
            )
            for j in range(count)
        ]
        for i, (first, last, count) in enumerate(ranges)
    ]
    routes: dict[tuple[str, ...], list[int]] = {}
    for m in range(problem.job.num_micro_batches):
        route = tuple(group[m % len(group)].name for group in groups)
        routes.setdefault(route, []).append(m)
    pipelines = tuple(Pipeline(stages=r, micro_batches=tuple(m)) for r, m in routes.items())
    stages = tuple(stage for group in groups for stage in group)
    return plan_of(problem, stages, pipelines, planner="test", seed=0)


def printed(problem: Problem, plan: Plan, width: int = 80) -> str:
    shown = estimate(problem, plan, with_memory=True)
    result = PlaceResult(problem, "test", plan, shown, Bound(), 0, 0.0)
    console = Console(width=width)
    with console.capture() as captured:
        console.print(stages_table(result, width))
        console.print("\n".join(result_lines(result)), soft_wrap=True, highlight=False)
        folded = folded_estimate(problem, plan, shown, with_types=False)
        console.print(memory_table(folded))
    return captured.get()


def test_replicas_are_one_row_and_small_plans_keep_a_name_for_each_stage() -> None:
    problem = small(load_cluster("h100-pod"), 16)
    plan = plan_with(problem, (0, 20, 8), (21, 33, 1))
    rows = [group._asdict() for group in stage_groups(problem, plan)]
    assert [(row["label"], len(row["devices"])) for row in rows] == [("s0 x 8", 8), ("s1", 1)]
    text = printed(problem, plan)
    assert " s0 x 8  h100-a-0..7" in text
    assert " s1      h100-b-0" in text


def test_memory_is_beside_what_plans_may_use_in_both_tables() -> None:
    """80 GB are 74.5 GiB, of which fragments take 2 %."""
    problem = small(load_cluster("h100-pod"), 16)
    stages, memory = printed(problem, plan_with(problem, (0, 33, 1))).split("memory at its peak")
    assert "GiB of 73 GiB" in stages
    assert memory.splitlines()[-1].split()[-1] == "73"


def test_hundreds_of_devices_fit_a_screen_and_a_page() -> None:
    problem = large(32)
    assert len(problem.cluster.devices) == 512
    stages = [(i, i, 8) for i in range(30)]
    plan = plan_with(problem, *stages, (30, 33, 16))
    text = printed(problem, plan)
    assert "s0..29 x 8" in text
    assert "0-29, 1 each" in text
    assert "s30 x 16" in text
    assert "A10G-0..31-0..7" in text
    assert "256 A10G" in text
    assert len(text.splitlines()) < 30
    assert max(map(len, text.split("job  ")[0].splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in text

    shown = estimate(problem, plan, with_timeline=True, with_memory=True)
    folded = folded_estimate(problem, plan, shown)
    rows = [f"{name}, H100-80G" for name in ("s0..29 x 8", "s30 x 16")]
    labels = [t.get_text() for t in timeline_figure(folded, "x").axes[0].get_yticklabels()]
    assert labels == rows
    titles = [axes.get_title(loc="left") for axes in memory_figure(folded, "x").axes]
    assert titles[:2] == rows
    assert max(shown.memory_bytes.values()) == max(folded.memory_bytes.values())
    assert folded_title("x", plan) == "x; a row is the fullest device of its group"
    assert {event.device for event in folded.timeline} == set(rows)


def test_few_devices_stay_apart_in_figures() -> None:
    problem = small(load_cluster("h100-pod"), 16)
    plan = plan_with(problem, (0, 20, 8), (21, 33, 8))
    assert len(plan.devices) <= MOST_ROWS
    shown = estimate(problem, plan)
    assert folded_estimate(problem, plan, shown) is shown
    assert folded_title("x", plan) == "x"


def test_no_share_is_minus_nothing() -> None:
    assert percent_text(-1e-9) == "0 %"
    assert percent_text(-0.0) == "0 %"
    assert percent_text(-0.0001, 1, is_change=True) == "+0.0 %"
    assert percent_text(-0.123, 1, is_change=True) == "-12.3 %"
