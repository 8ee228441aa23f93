"""`heterps run` and `heterps demo`: real processes, small sizes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps.commands.train import load_config
from heterps.reports.run_tensorboard import NAMES as BOARD_RUNS
from heterps.run_commands import demo
from heterps_configs.errors import HeterpsError
from heterps_configs.interrupts import Terminated
from heterps_runtime.huggingface.source import huggingface_source
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.rank_errors import RankError
from heterps_runtime.tracing.trace import trace_source

Heterps = Callable[..., Any]
# Of the demo: fewer layers than the shipped model has, and problems for the policy in a second.
SMALL_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "vocab_size": 256,
}
SMALL_TRAINING = {
    "imitation_passes": 1,
    "imitation_problems": 16,
    "imitation_refreshed": 4,
    "pool_size": 16,
    "evaluation_problems": 4,
}


@pytest.fixture
def plan(perceptron_plan: Path) -> Path:
    """What `place` makes for the shipped perceptron."""
    return perceptron_plan


@pytest.mark.slow
def test_a_placed_model_trains_as_in_one_process(heterps: Heterps, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    heterps("place", "perceptron", "-c", "local-emulated", "--global-batch", 8, "-o", plan)
    trace = tmp_path / "trace.json"
    outcome = heterps(
        "run", plan, "--steps", 4, "--verify", "--run-directory", tmp_path / "run", "--json",
        "--trace", trace, "--tensorboard", tmp_path / "board",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    names = [
        event.get("args", {}).get("name") for event in json.loads(trace.read_text())["traceEvents"]
    ]
    assert {"predicted", "measured"} <= set(names)
    assert trace.with_suffix(".png").stat().st_size > 0
    answer = outcome.data
    keys = {
        "predicted_step_time_s",
        "measured_step_time_s",
        "relative_error",
        "losses",
        "max_loss_difference",
        "replans",
    }
    assert keys <= set(answer)
    assert answer["max_loss_difference"] < 1e-5
    assert len(answer["losses"]) == 4
    assert answer["replans"] == []
    for device in answer["devices"]:
        assert device["memory"]["peak_bytes"] > device["memory"]["at_peak"]["parameters"] > 0
        assert device["predicted_memory_bytes"] > 0
        assert device["memory_limit_bytes"] > device["memory"]["peak_bytes"]
        assert 0 <= device["bubble_share"] < 1
        assert 0 <= device["predicted_bubble_share"] < 1
        assert device["busy_s"] > 0
    for rank, device in enumerate(answer["devices"]):
        lines = (tmp_path / "run" / f"rank-{rank}.log").read_text().splitlines()
        assert all(f" {device['device']}  " in line for line in lines)
        assert lines[-1].endswith("done")
    runs = {name: EventAccumulator(str(tmp_path / "board" / name)) for name in BOARD_RUNS}
    for name, events in runs.items():
        events.Reload()
        steps = [entry.step for entry in events.Scalars("run/step_time_s")]
        # Memory is measured in the second step, which says nothing of speed.
        assert steps == ([1, 3, 4] if name == "measured" else [1, 2, 3, 4])
        assert len(events.Scalars(f"run_memory_mib/{answer['devices'][0]['device']}")) == 1
        assert any(
            tag.startswith("run_message_s/s0_forward_to_") for tag in events.Tags()["scalars"]
        )
    assert runs["predicted"].Scalars("run/step_time_s")[0].value == pytest.approx(
        answer["predicted_step_time_s"]
    )
    tags = runs["measured"].Tags()
    assert {"run/timelines", "run/memory"} <= set(tags["images"])
    assert "custom_scalars__config__" in tags["tensors"]
    assert {tag for tag in tags["scalars"] if tag.startswith("run/")} == {
        "run/loss", "run/step_time_s", "run/samples_per_s", "run/bubble_share",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--model", "gpt2"), "was made for the model"),
        (("--cluster", "a100-v100"), "was made for the cluster"),
        (("--device", "gpu"), "device: must be 'auto', 'cpu' or 'cuda', got 'gpu'"),
        (("--device", "cuda"), "device cuda: no device of the plan is a real GPU"),
        (("--trace", "trace.txt"), "allowed endings: .json, .png, .svg, .pdf"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    heterps: Heterps, plan: Path, tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    outcome = heterps("run", plan, "--run-directory", tmp_path / "run", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err


@pytest.mark.slow
def test_a_plan_for_devices_that_are_not_here_is_refused_with_what_it_takes(
    heterps: Heterps, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.yaml"
    heterps("place", "llama-7b", "-c", "h100-pod", "--planner", "even", "-o", plan)
    auto = heterps("run", plan, "--run-directory", tmp_path / "run")
    cpu = heterps("run", plan, "--run-directory", tmp_path / "run", "--device", "cpu")
    assert (auto.code, cpu.code) == (2, 2)
    assert "the plan names 16 H100-80G (h100-" in auto.err
    assert "and this machine has " in auto.err
    assert re.search(r"--device cpu, which takes \d+ GiB of memory, of which [\d.]+ GiB", auto.err)
    assert re.search(r"on the CPU the 16 devices of the plan take \d+ GiB", cpu.err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("event", "options", "expected"),
    [
        ("{slow: fast}", (), "`slow` needs a factor"),
        ("{slow: fats, factor: 3}", (), "events.0.slow: no device 'fats' in the cluster"),
        ("{slow: fast->fats, factor: 3}", (), "events.0.slow: no device 'fats' in the cluster"),
        ("{slow: fast->fast, factor: 3}", (), "events.0.slow: a link leads from one device to"),
        ("{slow: fast->medium, factor: 0}", (), "events.0.factor: must be at least 0.000001"),
        ("{step: 3, lose: fast}", (), "events.yaml: events.0.lose: needs --elastic"),
        ("{step: 3, lose: fats}", ("--elastic",), "events.yaml: events.0.lose: no device 'fats'"),
    ],
)
def test_events_that_cannot_be_are_refused_before_anything_starts(
    heterps: Heterps,
    plan: Path,
    tmp_path: Path,
    event: str,
    options: tuple[str, ...],
    expected: str,
) -> None:
    events = tmp_path / "events.yaml"
    events.write_text(f"events: [{event}]\n")
    run_directory = tmp_path / "run"
    outcome = heterps("run", plan, "--run-directory", run_directory, "--events", events, *options)
    assert outcome.code == 2
    assert expected in outcome.err
    assert not (run_directory / "run.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_goes_through_and_writes_its_summary(
    heterps: Heterps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "llama-small.yaml"
    source = huggingface_source(
        {**SMALL_LLAMA, "num_hidden_layers": 6}, sequence_length=64, image_size=None
    )
    trace_source(source, "llama-small").to_file(model)
    config = load_config("quick").changed(**SMALL_TRAINING)
    job = demo.JOB.changed(global_batch_size=4, micro_batch_size=1)
    monkeypatch.setattr("heterps.run_commands.demo.MODEL", str(model))
    monkeypatch.setattr("heterps.run_commands.demo.load_config", lambda name: config)
    monkeypatch.setattr("heterps.run_commands.demo.JOB", job)
    monkeypatch.setattr("heterps.run_commands.demo.PLAIN_STEPS", 2)
    monkeypatch.setattr("heterps.run_commands.demo.FINE_TUNE_S", 1.0)
    outcome = heterps("demo", "--run-directory", tmp_path, "--train-seconds", 2)
    assert outcome.code == 0, outcome.err
    assert "no hardware results" in outcome.out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert set(summary) == {"even", "policy", "drifted", "adapted", "gap_to_exact", "seconds"}
    for name in ("even", "policy", "drifted", "adapted"):
        assert set(summary[name]) == {"predicted_samples_per_s", "measured_samples_per_s"}
    predicted = {name: summary[name]["predicted_samples_per_s"] for name in ("even", "policy")}
    assert predicted["policy"] > 1.5 * predicted["even"]
    assert "Run of llama-small on local-emulated" in (tmp_path / "report.html").read_text()
    # From another folder than the demo was in.
    monkeypatch.chdir(tmp_path)
    for name in ("even", "policy", "adapted"):
        assert heterps("simulate", f"plan-{name}.yaml").code == 0


def test_an_interrupt_says_what_there_is_to_go_on_from(
    heterps: Heterps, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("heterps.run_commands.conduct.run_plan", interrupted)
    saved = tmp_path / "saved"
    options = ("--run-directory", tmp_path / "run")
    outcome = heterps("run", plan, *options)
    assert outcome.code == 130
    assert "nothing was saved" in outcome.err
    assert "Traceback" not in outcome.err
    outcome = heterps("run", plan, *options, "--checkpoint", saved)
    assert outcome.code == 130
    assert "there is no checkpoint yet" in outcome.err


def test_sigterm_ends_a_run_as_an_interrupt_does(
    heterps: Heterps, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "heterps.run_commands.conduct.run_plan",
        lambda *arguments, **options: os.kill(os.getpid(), signal.SIGTERM),
    )
    before = signal.getsignal(signal.SIGTERM)
    outcome = heterps("run", plan, "--run-directory", tmp_path / "run")
    assert outcome.code == 143
    assert "nothing was saved" in outcome.err
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupt_of_the_verification_leaves_the_result_of_the_run(
    heterps: Heterps,
    plan: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: type[KeyboardInterrupt],
    code: int,
) -> None:
    def interrupted(*arguments: object) -> None:
        raise stop

    monkeypatch.setattr("heterps_runtime.run.run_plan.run_reference", interrupted)
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    outcome = heterps(
        "run", plan, "--steps", 2, "--verify", "--run-directory", run, "--trace", trace
    )
    assert outcome.code == code
    assert "loss    " in outcome.out
    assert "verify      the training in one process failed: it was interrupted" in outcome.out
    assert "nothing was saved" not in outcome.err
    result = run / "run-result.json"
    assert outcome.err.endswith(f"the run itself is done, its result: {result}\n")
    assert RunResult.from_file(result).verification_error == "it was interrupted"
    assert trace.exists()


def test_a_run_that_cannot_be_verified_shows_its_result_and_fails(
    heterps: Heterps, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failed(*arguments: object) -> None:
        raise HeterpsError("rank 0 was ended by SIGKILL")

    monkeypatch.setattr("heterps_runtime.run.run_plan.run_reference", failed)
    run = ("run", plan, "--steps", 2, "--verify", "--run-directory", tmp_path)
    outcome = heterps(*run)
    assert outcome.code == 2
    assert "loss    " in outcome.out
    failure = "the training in one process failed: rank 0 was ended by SIGKILL"
    assert f"verify      {failure}" in outcome.out
    assert "error: --verify: the training in one process failed" in outcome.err
    report = tmp_path / "report.html"
    assert heterps("report", tmp_path, "-o", report).code == 0
    assert f"Verification: {failure}" in report.read_text()


def test_the_error_of_a_failed_rank_names_its_log(
    heterps: Heterps, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "rank-1.log"
    log.touch()

    def failed(*arguments: object, **options: object) -> None:
        raise RankError("rank 1 (fast): it failed", rank="1")

    monkeypatch.setattr("heterps.run_commands.conduct.run_plan", failed)
    outcome = heterps("run", plan, "--run-directory", tmp_path)
    assert outcome.code == 2
    assert f"rank 1 (fast): it failed; its log: {log}" in outcome.err
