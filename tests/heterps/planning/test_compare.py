"""`heterps compare`: every planner, one budget, one table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps.micro_batches.sizes import open_sizes
from heterps.planning.compare import compare
from heterps.planning.comparison_rows import Answers, judge
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named, system_names
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from tests.heterps.small_profiles import PLAIN

Heterps = Callable[..., Any]


@pytest.mark.slow
def test_rows_keep_the_contract_and_nobody_beats_the_proven_optimum(
    heterps: Heterps, blocks: Path
) -> None:
    outcome = heterps(
        "compare",
        blocks,
        "-c",
        "local-emulated",
        "--no-tensorboard",
        "--evaluations",
        500,
        "--json",
        *PLAIN,
    )
    assert outcome.code == 0
    rows = {row["planner"]: row for row in outcome.data["rows"]}
    assert {"exact", "ppo", "even", "random", "annealing", "genetic"} <= set(rows)
    assert not set(rows) & set(system_names())
    assert all(row["own_cost_s"] is None for row in rows.values())
    # These count transitions of proofs, too.
    others = [rows[name] for name in rows if name not in ("exact", "auto", "asymmetric")]
    assert all(row["evaluations"] <= 500 for row in others)
    assert all(row["planning_cpu_s"] > 0 for row in rows.values())
    keys = {
        "planner",
        "throughput_samples_per_s",
        "price_usd_per_million_samples",
        "gap",
        "evaluations",
        "planning_s",
        "planning_cpu_s",
        "feasible",
        "refused",
    }
    assert all(keys <= set(row) for row in rows.values())
    assert rows["exact"]["closed_form_gap"] == pytest.approx(0, abs=1e-9)
    assert all(row["gap"] >= 0 for row in rows.values() if row["feasible"])
    assert rows["even"]["closed_form_gap"] > rows["exact"]["closed_form_gap"]


def test_a_planner_without_a_feasible_plan_is_a_row_and_no_failure(
    heterps: Heterps, blocks: Path
) -> None:
    # The last layer needs 19.2 GB; the even split puts it on the last device, of 16 GB.
    head, found, tail = blocks.read_text().rpartition("num_parameters: 1000")
    assert found
    blocks.write_text(f"{head}num_parameters: 1200000000{tail}")
    rows = heterps(
        "compare",
        blocks,
        "-c",
        "a100-v100",
        "-p",
        "exact",
        "-p",
        "even",
        "--no-tensorboard",
        "--json",
        *PLAIN,
    ).data["rows"]
    by_name = {row["planner"]: row for row in rows}
    assert by_name["exact"]["feasible"] is True
    assert by_name["even"]["feasible"] is False
    assert by_name["even"]["throughput_samples_per_s"] is None
    assert "GiB too many" in by_name["even"]["reason"]


@pytest.mark.slow
def test_tensorboard_gets_scalars_hparams_figure_and_text(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    heterps("compare", blocks, "-c", "local-emulated", "-p", "exact", "--logdir", tmp_path / "tb")
    events = EventAccumulator(str(tmp_path / "tb" / "blocks" / "local-emulated" / "exact"))
    events.Reload()
    tags = events.Tags()
    assert "compare_plan/throughput_samples_per_s" in tags["scalars"]
    assert "compare_plan/timeline" in tags["images"]
    assert any("summary" in name for name in tags["tensors"])
    assert "_hparams_/session_start_info" in events.summary_metadata


@pytest.mark.slow
def test_all_shows_systems_of_papers_and_says_of_the_others_why_not(
    heterps: Heterps, blocks: Path
) -> None:
    # Options are open; that of sizes `place` goes through alike for every planner.
    options = ("compare", blocks, "-c", "local-emulated", "--evaluations", 100, "--micro-batch", 1)
    outcome = heterps(*options, "--planners", "all", "--no-tensorboard")
    assert outcome.code == 0
    assert "sailor itself predicts" in outcome.out
    said = " ".join(outcome.out.split())
    assert "piper cannot place: needs equal devices; the cluster has 1 emulated-4x" in said
    assert "heterps-price cannot place: minimises the price of a sample" in said


@pytest.mark.slow
def test_systems_have_rows_only_where_they_are_asked_for(heterps: Heterps, blocks: Path) -> None:
    """The test of all rows sees that they have none where nobody asks."""
    options = ("compare", blocks, "-c", "local-emulated", "--no-tensorboard", "--json")
    named = heterps(*options, "--planners", "even,sailor,pipeedge", "-p", "pipedream").data["rows"]
    rows = {row["planner"]: row for row in named}
    assert list(rows) == ["even", "sailor", "pipeedge", "pipedream"]
    assert rows["sailor"]["own_cost_of"] == "step"
    assert rows["sailor"]["own_cost_s"] == pytest.approx(rows["sailor"]["step_time_s"], rel=0.2)
    assert rows["pipeedge"]["own_cost_of"] == "micro-batch"
    assert rows["pipedream"]["refused"]
    assert rows["pipedream"]["reason"].startswith("pipedream: needs equal devices")


@pytest.mark.slow
def test_planners_that_train_are_left_out_where_that_takes_long_and_nobody_asks(
    blocks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterps.planning.compare.LONGEST_TRAINING_S", 0.1)
    problem = load_problem(str(blocks), "local-emulated", strategy=Strategy(), micro_batch_size=1)
    comparison = compare(problem, evaluations=50)
    assert comparison.left_out == ("heterps-lstm", "layer-ppo")
    assert not {row.planner for row in comparison.rows} & set(comparison.left_out)
    assert comparison.to_mapping()["left_out"] == ["heterps-lstm", "layer-ppo"]


@pytest.mark.slow
def test_a_small_budget_leaves_nobody_out_and_processor_seconds_bind_all(
    heterps: Heterps, blocks: Path
) -> None:
    data = heterps(
        "compare", blocks, "-c", "local-emulated", "--no-tensorboard",
        "--cpu-seconds", 0.1, "--evaluations", 100_000_000, "--json",
    ).data  # fmt: skip
    rows = {row["planner"]: row for row in data["rows"]}
    assert data["left_out"] == []
    assert {"heterps-lstm", "layer-ppo"} <= set(rows)
    assert 0 < rows["annealing"]["evaluations"] < 100_000_000
    # Besides the search itself, a plan is bound and simulated; a rollout of PPO is not cut short.
    assert all(row["planning_cpu_s"] < 5 for row in rows.values())


def test_a_planner_that_refuses_is_a_row_and_says_why(heterps: Heterps, blocks: Path) -> None:
    outcome = heterps(
        "compare", blocks, "-c", "local-emulated", "-p", "exact", "-p", "even",
        "--no-tensorboard", "--seconds", 1e-6,
    )  # fmt: skip
    assert outcome.code == 0
    assert "refused" in outcome.out
    assert "choose another planner" in outcome.err


def test_a_comparison_without_any_plan_fails_with_the_first_reason(
    heterps: Heterps, blocks: Path
) -> None:
    outcome = heterps(
        "compare", blocks, "-c", "local-emulated", "-p", "exact", "--seconds", 1e-6,
        "--no-tensorboard",
    )  # fmt: skip
    assert outcome.code == 2
    assert "exact: " in outcome.err


@pytest.mark.parametrize("option", ["--cpu-seconds", "--evaluations", "--seconds"])
def test_a_budget_of_nothing_is_refused(heterps: Heterps, blocks: Path, option: str) -> None:
    outcome = heterps("compare", blocks, "-c", "local-emulated", "-p", "even", option, 0)
    assert outcome.code == 2
    assert f"{option[2:].replace('-', '_')} 0: expected" in outcome.err


class _Elsewhere:
    """A planner whose plans are for another cluster."""

    name = "elsewhere"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        job = problem.job
        other = load_problem(
            "perceptron", "eight-types", strategy=Strategy(), micro_batch_size=job.micro_batch_size,
            global_batch_size=job.global_batch_size, dtype=job.dtype,
        )  # fmt: skip
        return planner_named("even").plan(other, budget)


class _Failing:
    """A planner with a defect of its own."""

    name = "failing"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        raise KeyError("k")


def test_planners_that_fail_or_plan_for_another_cluster_are_rows_without_a_plan() -> None:
    problem = load_problem("perceptron", "local-emulated", strategy=Strategy())
    comparison = compare(problem, ["even", _Elsewhere(), _Failing()])
    reasons = {row.planner: row.reason for row in comparison.rows}
    assert "the plan was made for the cluster 'eight-types'" in reasons["elsewhere"]
    assert reasons["failing"] == "failing: KeyError: 'k'"
    assert set(comparison.results) == {"even"}


def test_all_results_of_a_comparison_name_the_same_bound() -> None:
    problem = load_problem("perceptron", "local-emulated", strategy=Strategy())
    comparison = compare(problem, ["even", "exact"])
    bounds = {name: result.bound for name, result in comparison.results.items()}
    assert {bound.step_time_s for bound in bounds.values()} == {comparison.bound_step_time_s}
    assert (bounds["exact"].status, bounds["even"].status) == ("proven", "bounded")
    for row in comparison.rows:
        result = comparison.results[row.planner]
        assert result.plan.bound == result.bound
        assert row.closed_form_gap == pytest.approx(result.bound.gap)
        text = result.summary()
        assert f"closed form {result.estimate.closed_form_step_time_s:.4g} s" in text
        assert f"bound {comparison.bound_step_time_s:.4g} s" in text
        assert f"simulated {result.estimate.step_time_s:.4g} s" in text


@pytest.mark.slow
def test_a_plan_of_a_kind_that_others_may_not_choose_has_no_gap_and_that_is_said(
    heterps: Heterps,
) -> None:
    names = ("-p", "greedy,hap", "--evaluations", 300, "--no-tensorboard")
    plain = heterps("compare", "llama-7b", "-c", "a100-v100-t4", *names, *PLAIN)
    assert plain.code == 0, plain.err
    assert "hap: not like the others" in plain.err
    assert "they may\n" not in plain.err, "no option allows groups of unequal shares"
    data = heterps("compare", "llama-7b", "-c", "a100-v100-t4", *names, *PLAIN, "--json").data
    has_no_gap = {row["planner"]: row["gap"] is None for row in data["rows"]}
    assert has_no_gap == {"greedy": False, "hap": True}


@pytest.mark.slow
def test_all_planners_answer_what_place_is_asked(heterps: Heterps) -> None:
    """Each with its own part of the budget for every size of micro-batches."""
    problem = load_problem("gpt2", "a100-v100")
    comparison = compare(problem, ["even", "greedy", "exact"], evaluations=600)
    assert comparison.problem.strategy == OPEN
    assert comparison.bound_step_time_s is None
    sizes = {name: result.tried_sizes for name, result in comparison.results.items()}
    assert {len(tried) for tried in sizes.values()} == {len(open_sizes(problem))}
    for name in ("even", "greedy", "exact"):
        alone = place(problem, name, budget=Budget(600)).estimate.step_time_s
        assert comparison.results[name].estimate.step_time_s == alone
    said = heterps("compare", "gpt2", "-c", "a100-v100", "-p", "even,greedy", "--no-tensorboard")
    assert re.search(r"gap: simulated step time over .*, which no plan can be below", said.out)


@pytest.mark.slow
def test_what_is_said_to_keep_all_on_one_device_does_so() -> None:
    without, others = set[str](), set[str]()
    for model, cluster in (("gpt2", "a100-v100"), ("bert-large", "h100-pod")):
        problem = load_problem(model, cluster, global_batch_size=32, micro_batch_size=4)
        found = compare(problem, system_names(), evaluations=100)
        without |= {*found.without_options}
        for name in found.without_options:
            plan = found.results[name].plan
            assert not plan.sharded_state, name
            assert all(stage.degree == 1 for stage in plan.stages), name
            assert not any(s.recompute_layers or s.offloaded_layers for s in plan.stages), name
        others |= {name for name, result in found.results.items() if result.plan.sharded_state}
    assert "pipeedge" in without
    assert others, "options are worth something here"
    assert not without & {"cephalo", "autohete", "hap"}


@pytest.mark.slow
def test_with_open_options_the_gap_is_over_the_largest_bound_of_those_that_were_asked_all() -> None:
    comparison = compare(load_problem("gpt2", "a100-v100"), ["greedy", "exact", "pipeedge"])
    bounds = {name: r.executable.step_time_s for name, r in comparison.results.items()}
    least_s = comparison.executable_step_time_s
    assert least_s == max(bounds["greedy"] or 0.0, bounds["exact"] or 0.0)
    for row in comparison.rows:
        assert row.step_time_s is not None
        assert row.gap == row.step_time_s / least_s - 1
        assert row.gap >= -1e-6


@pytest.mark.slow
def test_strategies_are_compared_and_said_of_each_plan(heterps: Heterps, tmp_path: Path) -> None:
    options = ("--tensor-parallel", "2,4", "--recompute", "full", "--micro-batch", "4")
    outcome = heterps(
        "compare", "gpt2", "-c", "h100-pod", "-p", "greedy,uniform-3d,pipeedge", *options,
        "--evaluations", 500, "--logdir", tmp_path / "logs", "--figure", tmp_path / "curves.svg",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "pipeedge: each stage is one device that keeps all" in outcome.err
    assert "warning" not in outcome.err
    ways = outcome.out[outcome.out.index("how stages are carried out") :].splitlines()
    cells = {line.split()[0]: line.split() for line in ways[2:5]}
    assert cells["pipeedge"] == ["pipeedge", "4", "1"]
    for name in ("greedy", "uniform-3d"):
        assert cells[name][1] == "4"
        assert cells[name][2].rstrip(",") in ("2", "4")
        assert "all" in cells[name]
    assert (tmp_path / "curves.svg").stat().st_size > 1000
    events = list((tmp_path / "logs").rglob("events.out.tfevents.*"))
    content = {path.parent.name: path.read_bytes() for path in events}
    assert set(content) == {"greedy", "uniform-3d", "pipeedge", "all-planners"}
    assert b"tensor parallel" in content["greedy"]
    assert b"compare/best_cost_over_cpu_us" in content["greedy"]
    for tag in ("compare/best_over_cpu_seconds", "compare/throughput", "custom_scalars__config__"):
        assert tag.encode() in content["all-planners"]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "micro_batch_size"), [("ctr", None), ("resnet-152", 4)])
def test_proofs_with_options_leave_auto_the_evaluations_of_its_searches(
    model: str, micro_batch_size: int | None
) -> None:
    """They were charged once, so that nothing was left for plans without options."""
    problem = load_problem(model, "a100-v100", micro_batch_size=micro_batch_size)
    rows = compare(problem, ["auto", "exact", "greedy"]).rows
    steps = {row.planner: row.step_time_s for row in rows}
    assert steps["auto"] == min(step_s for step_s in steps.values() if step_s is not None)


def test_the_name_of_a_single_planner_is_no_list_of_letters() -> None:
    problem = load_problem("gpt2", "local-emulated", strategy=Strategy())
    assert [row.planner for row in compare(problem, "even").rows] == ["even"]


def test_a_planner_that_is_named_twice_has_one_row_and_two_of_one_name_are_refused() -> None:
    problem = load_problem("perceptron", "local-emulated", strategy=Strategy())
    found = compare(problem, ["even", "greedy", "even"])
    assert [row.planner for row in found.rows] == ["even", "greedy"]
    with pytest.raises(HeterpsError, match="2 of them are called 'even'"):
        compare(problem, [planner_named("even"), planner_named("even", seed=1)])


def test_a_bound_that_a_plan_is_below_is_nobodys_reference() -> None:
    """A plan may fit by the simulator alone: what is proven of placements is none of it."""
    problem = load_problem("perceptron", "local-emulated", strategy=Strategy())
    exact, even = (place(problem, name) for name in ("exact", "even"))
    assert exact.bound.step_time_s is not None
    shorter = even.estimate.changed(closed_form_step_time_s=0.5 * exact.bound.step_time_s)
    below = replace(even, estimate=shorter, bound=Bound(), executable=Bound())
    judged = judge(problem, Answers(["exact", "even"], (), {"exact": exact, "even": below}))
    assert judged.reference is None
    assert judged.results["exact"].bound == exact.bound
    assert [row.closed_form_gap for row in judged.rows] == [None, None]
