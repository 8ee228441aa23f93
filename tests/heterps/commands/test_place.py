"""`heterps place`: its JSON contract, its plan file, and one clear line for bad input."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps.commands.place import MANY_DEVICES, MANY_DEVICES_S, own_limit_s
from heterps.planning.problems import load_problem
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan

Heterps = Callable[..., Any]


def test_json_answer_keeps_the_contract(heterps: Heterps, blocks: Path) -> None:
    # A chain: pipelines of unlike cuts side by side have no closed form.
    outcome = heterps(
        "place", blocks, "--cluster", "local-emulated", "--planner", "exact", "--json"
    )
    assert outcome.code == 0
    answer = outcome.data
    assert {"planner", "plan", "estimate", "bound", "planning_s"} <= set(answer)
    estimate = answer["estimate"]
    assert estimate["feasible"] is True
    assert estimate["throughput_samples_per_s"] == pytest.approx(32 / estimate["step_time_s"])
    assert set(estimate["memory_bytes"]) == set(Plan.from_mapping(answer["plan"]).devices)
    assert answer["bound"]["status"] in ("proven", "bounded")
    bound = answer["bound"]
    step_s, closed_s = estimate["step_time_s"], estimate["closed_form_step_time_s"]
    assert bound["step_time_s"] * (1 + bound["gap"]) == pytest.approx(step_s)
    least_s, gap = bound["closed_form_step_time_s"], bound["closed_form_gap"]
    assert least_s * (1 + gap) == pytest.approx(closed_s)
    assert answer["plan"]["executable_bound"]["gap"] == bound["gap"]


def test_a_system_of_a_paper_places_and_says_what_it_predicts_itself(
    heterps: Heterps, blocks: Path
) -> None:
    options = ("place", blocks, "--cluster", "local-emulated", "--planner", "sailor")
    data = heterps(*options, "--json").data
    assert data["planner"] == "sailor"
    assert data["own_cost"]["of"] == "step"
    assert "a step, predicted by sailor" in heterps(*options).out
    outcome = heterps(*options[:-1], "piper")
    assert outcome.code == 2
    assert "piper: needs equal devices" in outcome.err


def test_a_plan_that_is_not_proven_says_how_far_it_can_be_from_the_bound(
    heterps: Heterps, blocks: Path
) -> None:
    bound = heterps(
        "place", blocks, "--cluster", "local-emulated", "--planner", "even", "--json"
    ).data["bound"]
    assert bound["status"] == bound["closed_form_status"] == "bounded"
    assert bound["gap"] > 0
    assert bound["closed_form_gap"] > 0


@pytest.mark.slow
def test_the_plan_file_can_be_simulated_to_the_same_step_time(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    placed = heterps("place", blocks, "-c", "local-emulated", "-o", plan, "--json").data
    simulated = heterps("simulate", plan, "--json").data
    assert simulated["step_time_s"] == pytest.approx(placed["estimate"]["step_time_s"])


def test_the_table_names_devices_and_where_layer_times_come_from(
    heterps: Heterps, blocks: Path
) -> None:
    out = heterps("place", blocks, "--cluster", "local-emulated", "-p", "exact").out
    assert "fast" in out
    assert re.search(r"proven optimal as simulated|of a bound of all plans: simulated .* s, b", out)
    assert "layer times   measured" in out


@pytest.mark.slow
def test_a_cheaper_plan_keeps_the_throughput_floor(heterps: Heterps, blocks: Path) -> None:
    options = ("place", blocks, "--cluster", "a100-v100", "--json")
    fastest = heterps(*options).data["estimate"]
    floor = fastest["throughput_samples_per_s"] / 4
    cheap = heterps(*options, "--objective", "price", "--min-throughput", floor).data["estimate"]
    assert cheap["throughput_samples_per_s"] >= floor
    assert cheap["price_usd_per_million_samples"] < fastest["price_usd_per_million_samples"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nosuchmodel", "-c", "a100-v100"), "nosuchmodel"),
        (("BLOCKS", "-c", "a100-v10"), "did you mean a100-v100"),
        (("BLOCKS", "-c", "a100-v100", "--planner", "exakt"), "did you mean exact"),
        (
            ("BLOCKS", "-c", "a100-v100", "--micro-batch", "64"),
            "64 is larger than global_batch_size 32",
        ),
        (("BLOCKS", "-c", "a100-v100", "--global-batch", "-3"), "--global-batch: must be"),
        (
            ("BLOCKS", "-c", "a100-v100", "--dtype", "float8"),
            "'float32', 'tf32', 'float16', 'bfloat16' or 'mixed-bfloat16'",
        ),
        (("BLOCKS", "-c", "a100-v100", "--min-throughput", "1e12"), "samples"),
        (("BLOCKS", "-c", "a100-v100", "--evaluations", "0"), "evaluation"),
        (
            ("nosuchpackage.models:build", "-c", "a100-v100", "--input", "x=4:float32"),
            "nosuchpackage",
        ),
        (("BLOCKS", "-c", "a100-v100", "--job", "nosuchjob.yaml"), "nosuchjob.yaml"),
    ],
)
def test_bad_input_gets_one_clear_line_and_exit_code_2(
    heterps: Heterps, blocks: Path, arguments: tuple[str, ...], expected: str
) -> None:
    given = [str(blocks) if text == "BLOCKS" else text for text in arguments]
    outcome = heterps("place", *given)
    assert outcome.code == 2
    # What no command has needed before is compiled, and said to be.
    lines = [line for line in outcome.err.splitlines() if not line.startswith("compiling kernels")]
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert expected in lines[0]


def test_a_model_too_large_says_what_does_not_fit_and_by_how_much(
    heterps: Heterps, blocks: Path
) -> None:
    text = blocks.read_text().replace("num_parameters: 1000", "num_parameters: 40000000000")
    blocks.write_text(text)
    outcome = heterps("place", blocks, "--cluster", "a100-v100")
    assert outcome.code == 2
    assert "block" in outcome.err
    assert "GiB more than" in outcome.err
    assert " bytes" not in outcome.err


@pytest.mark.slow
def test_planning_imports_neither_torch_nor_stable_baselines(blocks: Path) -> None:
    code = (
        "import sys\n"
        "from heterps.cli.app import main\n"
        "try:\n"
        f"    main(['place', {str(blocks)!r}, '-c', 'local-emulated', '--json'])\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'stable_baselines3', 'sb3_contrib', 'gymnasium', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_place_simulate_and_compare_say_what_was_placed(heterps: Heterps, tmp_path: Path) -> None:
    plan, options = tmp_path / "plan.yaml", ("perceptron", "-c", "local-emulated")
    job = ("--global-batch", 10, "--micro-batch", 4, "--dtype", "float16", "--schedule", "gpipe")
    expected = (
        r"batch 10 in 3 micro-batches of up to 4, samples of \w+ \d+, float16, adamw, gpipe; "
        r"\d+ layers, [\d,]+ parameters\n"
    )
    placed = heterps("place", *options, *job, "-p", "even", "-o", plan)
    others = (
        heterps("simulate", plan),
        heterps("compare", *options, *job, "-p", "even", "--no-tensorboard"),
    )
    for outcome in (placed, *others):
        assert re.search(expected, outcome.out)
    open_size = heterps("compare", *options, "-p", "even", "--no-tensorboard")
    assert re.search(r"batch \d+ in micro-batches of each planner's choice, ", open_size.out)


def test_devices_without_bfloat16_come_with_a_hint(heterps: Heterps) -> None:
    options = ("place", "gpt2", "-c", "a100-v100", "-p", "even", "--dtype")
    hint = "V100-16G: without bfloat16 in hardware, at the rate of float32; --dtype float16 may"
    assert hint in heterps(*options, "bfloat16").out
    assert "hint" not in heterps(*options, "float16").out


def test_a_search_for_many_devices_ends_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    few = load_problem("gpt2", "h100-pod", global_batch_size=64)
    nodes = tuple(
        node.changed(devices=tuple(group.changed(count=64) for group in node.devices))
        for node in few.cluster.nodes
    )
    many = replace(few, cluster=few.cluster.changed(nodes=nodes))
    assert len(many.cluster.devices) >= MANY_DEVICES
    assert own_limit_s(many, planner_named("auto")) == MANY_DEVICES_S
    assert "--seconds N lets it go on" in capsys.readouterr().err
    assert own_limit_s(few, planner_named("auto")) is None
    assert own_limit_s(many, planner_named("greedy")) is None
    assert capsys.readouterr().err == ""


def test_what_no_budget_buys_is_said_of_the_budget(heterps: Heterps) -> None:
    outcome = heterps(
        "place", "llama-70b", "-c", "a100-v100", "-p", "greedy", "--budget-usd-per-hour", 5
    )
    assert outcome.code == 2
    assert "--budget-usd-per-hour 5: no plan on anything that it buys; of the" in outcome.err


def test_groups_that_are_made_although_they_are_forbidden_are_told(heterps: Heterps) -> None:
    forbidden = ("--tensor-parallel", 1, "--recompute", "never", "--shard-state", "never")
    asked = ("place", "gpt2", "-c", "a100-v100", "--micro-batch", 8, *forbidden)
    with pytest.warns(UserWarning, match="the planner hap makes groups by its own cost"):
        assert heterps(*asked, "-p", "hap").code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert heterps(*asked, "-p", "whale").code == 0


def test_devices_above_a_budget_say_that_they_lost_for_their_price(heterps: Heterps) -> None:
    outcome = heterps(
        "place", "bert-large", "-c", "eight-types", "-p", "greedy", "--micro-batch", 8,
        "--tensor-parallel", 1, "--recompute", "never", "--shard-state", "never",
        "--budget-usd-per-hour", 3,
    )  # fmt: skip
    prices = re.findall(r"s, ([\d.]+) USD an hour(, above the budget)?$", outcome.err, re.M)
    assert {bool(above) for _, above in prices} == {True, False}
    assert all((float(price) > 3) == bool(above) for price, above in prices)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--global-batch", 0), "error: --global-batch: must be greater than 0, got 0"),
        (
            ("--global-batch", 4, "--micro-batch", 8),
            "error: --micro-batch: 8 is larger than --global-batch 4",
        ),
        (("--min-throughput", -1), "error: --min-throughput: must be greater than 0"),
        (("--dtype", "float31"), "error: --dtype: must be 'float32'"),
        (("--tensor-parallel", "0"), "error: --tensor-parallel: must be greater than 0, got 0"),
        (
            ("--offload", "auto", "--recompute", "full"),
            "error: --offload: auto, but recompute is full: then no stage keeps what it could "
            "offload",
        ),
    ],
)
def test_what_is_wrong_with_an_option_is_told_by_its_name(
    heterps: Heterps, blocks: Path, options: tuple[object, ...], expected: str
) -> None:
    outcome = heterps("place", blocks, "-c", "a100-v100", *options)
    assert outcome.code == 2
    assert outcome.err.startswith(expected)


def test_what_a_job_file_and_an_option_contradict_each_other_in_has_the_name_of_each(
    heterps: Heterps, blocks: Path, tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("global_batch_size: 4")
    options = ("place", blocks, "-c", "a100-v100", "--job", job)
    both = heterps(*options, "--micro-batch", 8)
    assert both.err.startswith("error: --micro-batch: 8 is larger than global_batch_size 4")
    job.write_text("global_batch_size: 0")
    alone = heterps(*options, "--micro-batch", 8)
    assert alone.err.startswith(f"error: {job}: global_batch_size: must be greater than 0")


def test_evaluations_are_told_to_end_no_proof(heterps: Heterps, blocks: Path) -> None:
    options = ("place", blocks, "-c", "a100-v100", "-p", "exact", "--micro-batch", 1)
    with pytest.warns(UserWarning, match="--evaluations ends no proof of the planner exact"):
        assert heterps(*options, "--evaluations", 1).code == 0
