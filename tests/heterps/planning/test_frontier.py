"""`heterps place --frontier`: its table, JSON and figure, and one clear line for bad input."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heterps.planning import frontier as module
from heterps.planning.frontier import frontier
from heterps.planning.problems import load_problem
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.simulator.simulate import estimate
from tests.heterps.small_profiles import PLAIN

Heterps = Callable[..., Any]


def test_each_next_plan_is_slower_and_cheaper(heterps: Heterps, blocks: Path) -> None:
    data = heterps("place", blocks, "-c", "a100-v100", "--frontier", "--json").data
    points = data["frontier"]
    assert data["status"] == "proven"
    assert len(points) > 1
    for before, after in pairwise(points):
        assert after["throughput_samples_per_s"] < before["throughput_samples_per_s"]
        assert after["price_usd_per_million_samples"] < before["price_usd_per_million_samples"]
    for point in points:
        plan = Plan.from_mapping(point["plan"])
        assert sum(point["devices"].values()) == len(plan.devices)


def test_its_ends_are_what_place_answers_for_either_objective(
    heterps: Heterps, blocks: Path
) -> None:
    options = ("place", blocks, "-c", "a100-v100", "--json", *PLAIN)
    points = heterps(*options, "--frontier").data["frontier"]
    plain = (*options, "--planner", "exact")
    fastest = heterps(*plain).data["estimate"]
    cheapest = heterps(*plain, "--objective", "price").data["estimate"]
    assert points[0]["step_time_s"] == pytest.approx(fastest["closed_form_step_time_s"])
    assert points[-1]["step_time_s"] == pytest.approx(cheapest["closed_form_step_time_s"])


def test_a_seed_is_told_to_be_ignored_and_any_limit_is_one(heterps: Heterps, blocks: Path) -> None:
    options = ("place", blocks, "-c", "a100-v100", "--frontier", "--json", *PLAIN)
    with pytest.warns(UserWarning, match="ignored: --seed$"):
        seeded = heterps(*options, "--seed", 5).data["frontier"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert heterps(*options, "--seconds", 1e308).data["frontier"] == seeded


def test_what_place_leaves_open_it_leaves_open_too(heterps: Heterps) -> None:
    options = ("place", "gpt2", "-c", "a100-v100", "--frontier")
    points = heterps(*options, "--json").data["frontier"]
    plain = heterps(*options, "--json", *PLAIN).data["frontier"]
    assert points[0]["step_time_s"] < plain[0]["step_time_s"]
    assert points[-1]["price_usd_per_million_samples"] < plain[-1]["price_usd_per_million_samples"]
    assert {point["plan"]["job"]["micro_batch_size"] for point in plain} == {1}
    assert {point["plan"]["job"]["micro_batch_size"] for point in points} != {1}
    for point in points:
        assert sum(point["devices"].values()) == len(Plan.from_mapping(point["plan"]).devices)
    table = heterps(*options).out
    assert "micro-batch" in table
    assert "sharded" in table


def test_what_is_too_large_for_it_says_what_to_leave_out(heterps: Heterps) -> None:
    outcome = heterps("place", "resnet-152", "-c", "eight-types", "--frontier")
    assert outcome.code == 2
    assert "--tensor-parallel 1" in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_throughput_floor_cuts_it_off(heterps: Heterps, blocks: Path) -> None:
    options = ("place", blocks, "-c", "a100-v100", "--frontier", "--json")
    points = heterps(*options).data["frontier"]
    floor = points[1]["throughput_samples_per_s"] * 0.999
    cut = heterps(*options, "--min-throughput", floor).data["frontier"]
    assert [p["step_time_s"] for p in cut] == pytest.approx([p["step_time_s"] for p in points[:2]])


def test_limits_that_it_does_not_take_are_named(heterps: Heterps, blocks: Path) -> None:
    options = ("place", blocks, "-c", "a100-v100", "--frontier")
    with pytest.warns(UserWarning, match="ignored: --effort, --evaluations$"):
        assert heterps(*options, "--evaluations", 5, "--effort", "fast").code == 0


def test_the_table_names_devices_and_the_figure_is_drawn(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    figure = tmp_path / "frontier.svg"
    outcome = heterps("place", blocks, "-c", "a100-v100", "--frontier", "--figure", figure)
    assert outcome.code == 0
    assert "a100" in outcome.out
    assert "proven for the closed form" in outcome.out
    assert "<svg" in figure.read_text()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--frontier", "--planner", "greedy"), "--planner greedy"),
        (("--frontier", "-o", "plan.yaml"), "--output takes one plan"),
        (("--figure", "frontier.png"), "add --frontier"),
        (("--frontier", "--min-throughput", "1e12"), "samples/s"),
        (("--frontier", "--seconds", "1e-9"), "too long"),
    ],
)
def test_bad_input_gets_one_clear_line(
    heterps: Heterps, blocks: Path, arguments: tuple[str, ...], expected: str
) -> None:
    outcome = heterps("place", blocks, "-c", "a100-v100", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


def test_plans_that_lack_a_link_are_left_out_with_a_word() -> None:
    nodes = [{"name": f"n{i}", "devices": [{"name": f"d{i}", "type": "T4"}]} for i in range(3)]
    between = [["n0", "n1"], ["n1", "n2"]]
    links = [{"between": pair, "link": "infiniband-hdr"} for pair in between]
    chain = {"name": "c", "nodes": nodes, "inter_node_link": "none", "link_overrides": links}
    # Its first and its last layer share parameters, whose gradients are summed.
    problem = load_problem(
        "gpt2", Cluster.from_mapping(chain), strategy=Strategy(), micro_batch_size=1
    )
    with pytest.warns(UserWarning, match="1 plans are left out: sums of parameters that their"):
        found = frontier(problem)
    assert {len(entry.plan.devices) for entry in found.plans} == {1, 2}
    assert all(estimate(problem, entry.plan).feasible for entry in found.plans)


@pytest.mark.slow
def test_plans_hold_as_many_micro_batches_as_those_of_place() -> None:
    """Behind slow links the rule of 1F1B alone takes a sixth longer than the closed form says."""
    for entry in frontier(load_problem("llama-7b", "a100-v100-t4")).plans:
        assert entry.plan.predicted_step_time_s == pytest.approx(entry.step_time_s, rel=0.02)


def test_what_is_said_of_each_plan_of_a_frontier_holds() -> None:
    problem = load_problem("ctr", "a100-v100-t4", strategy=Strategy(), global_batch_size=64)
    plans = frontier(problem).plans
    assert len(plans) > 1
    for entry in plans:
        report = check_certificate(problem, entry.plan)
        assert not report.problems


def test_plans_that_do_not_fit_as_simulated_are_left_out_of_a_frontier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = load_problem("ctr", "a100-v100-t4", strategy=Strategy(), global_batch_size=64)
    all_plans = frontier(problem).plans
    monkeypatch.setattr(
        module, "is_feasible", lambda problem, plan: plan.stages != all_plans[0].plan.stages
    )
    with pytest.warns(UserWarning, match="1 plans are left out: as simulated they take more"):
        assert frontier(problem).plans == all_plans[1:]
