"""The end of a run: predicted beside measured, for each plan and for the whole run."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from heterps.reports.run_report import (
    device_table,
    evaluation_line,
    print_result,
    result_mapping,
    step_time_lines,
    verification_text,
)
from heterps_configs.errors import HeterpsError
from heterps_runtime.results.changes import Replan
from heterps_runtime.results.phases import phases_of
from heterps_runtime.results.result import DeviceReport, Evaluation, RunResult


def result_of(
    times_s: list[float],
    generations: list[int],
    first_step: int = 0,
    drifted: Collection[int] = (),
) -> RunResult:
    plans = {0: ("auto", 0.1), 1: ("recovery", 0.2)}
    return RunResult(
        predicted_step_time_s=0.1,
        measured_step_time_s=0.1,
        relative_error=-1e-6,
        times_of="emulated devices",
        losses=(1.0,) * len(times_s),
        step_times_s=tuple(times_s),
        generations=tuple(generations),
        first_step=first_step,
        phases=phases_of(times_s, generations, plans, first_step, drifted),
    )


def device_report(device: str, *, is_emulated: bool = False, **known: Any) -> DeviceReport:
    return DeviceReport(
        device=device,
        is_emulated=is_emulated,
        num_actions=0,
        num_overruns=0,
        worst_overrun_s=0.0,
        optimizer_s=0.0,
        **known,
    )


def test_each_plan_has_a_row_and_the_run_a_mean_without_warm_up_steps() -> None:
    result = result_of([9.0, 9.0, 0.1, 0.1] + [9.0, 9.0] + [0.25] * 8, [0] * 4 + [1] * 10, 5)
    assert step_time_lines(result) == [
        "step time   mean of each plan's steps, times of emulated devices",
        "  plan 1    steps 6-9 by auto: predicted 100 ms, measured 100 ms (+0.0 %)",
        "  plan 2    steps 10-19 by recovery: predicted 200 ms, measured 250 ms (-20.0 %)",
        "mean        of 10 steps: predicted 180 ms, measured 220 ms (-18.2 %)",
    ]


def test_steps_on_slow_devices_count_in_the_mean_of_a_run_that_kept_its_plan() -> None:
    result = result_of([0.1] * 4 + [0.3] * 6, [0] * 10, drifted=range(4, 10))
    assert step_time_lines(result) == [
        "step time   predicted 100 ms, measured 100 ms (+0.0 %) before a drift; since step 5 "
        "300 ms, times of emulated devices",
        "mean        of 8 steps: predicted 100 ms, measured 250 ms (-60.0 %); 6 since a drift that "
        "their prediction did not know",
    ]


def test_a_prediction_is_compared_with_the_steps_before_the_drift_that_it_does_not_know() -> None:
    times_s = [9.0, 9.0, 0.1, 0.1] + [0.4] * 5 + [9.0, 9.0] + [0.2] * 4
    result = result_of(times_s, [0] * 9 + [1] * 6, 5, drifted=range(4, 9))
    assert step_time_lines(result) == [
        "step time   mean of each plan's steps, times of emulated devices",
        "  plan 1    steps 6-14 by auto: predicted 100 ms, measured 100 ms (+0.0 %) before a "
        "drift; since step 10 400 ms",
        "  plan 2    steps 15-20 by recovery: predicted 200 ms, measured 200 ms (+0.0 %)",
        "mean        of 11 steps: predicted 136.4 ms, measured 272.7 ms (-50.0 %); 5 since a "
        "drift that their prediction did not know",
    ]
    first = result.phases[0]
    assert (first.num_steps, first.num_counted_steps, first.num_drifted_steps) == (9, 2, 5)
    assert first.drifted_from == 9


def test_a_plan_that_began_after_an_unknown_drift_says_so() -> None:
    times_s = [0.1] * 4 + [0.3] * 2 + [0.4] * 6
    result = result_of(times_s, [0] * 6 + [1] * 6, drifted=range(4, 12))
    assert step_time_lines(result)[2:] == [
        "  plan 2    steps 7-12 by recovery: predicted 200 ms, measured 400 ms (-50.0 %) under an "
        "older drift that its prediction did not know",
        "mean        of 8 steps: predicted 150 ms, measured 300 ms (-50.0 %); 8 since a drift that "
        "their prediction did not know",
    ]


def test_a_plan_of_warm_up_steps_alone_counts_them() -> None:
    phases = phases_of([0.5] + [0.1] * 5, [0] + [1] * 5, {0: ("a", 1.0), 1: ("b", 0.1)}, 0)
    assert [phase.num_counted_steps for phase in phases] == [1, 3, 4]
    assert phases[0].measured_step_time_s == 0.5
    assert phases[-1].measured_step_time_s == pytest.approx(0.2)


def test_times_of_a_host_are_not_held_against_a_prediction_of_emulated_devices(
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = result_of([0.25] * 4, [0] * 4).changed(
        measured_step_time_s=0.25,
        throughput_samples_per_s=40.0,
        predicted_throughput_samples_per_s=100.0,
        times_of="this host",
        devices=(device_report("fast", is_emulated=True),),
    )
    print_result(result)
    shown = capsys.readouterr().out
    for line in (
        "step time   measured 250 ms, times of this host: nothing was emulated",
        "mean        of 2 steps: 250 ms",
        "speed       measured 40 samples/s",
        "predicted   100 ms of emulated devices: to compare with a run of the engine heterps",
    ):
        assert line in shown.splitlines()
    assert "(" not in shown.split("loss")[0]
    real = result.changed(devices=(device_report("cpu", is_emulated=False),))
    assert "(+0.0 %)" in step_time_lines(real)[0]


@pytest.mark.parametrize("count", [4, 40])
def test_replicas_on_many_devices_are_one_row_with_the_fullest_ones_numbers(count: int) -> None:
    devices = tuple(
        device_report(
            f"gpu-{index}",
            stage_names=(f"s{index % 2}r{index // 2}",),
            predicted_memory_bytes=(index + 1) * 2**30,
        )
        for index in range(count)
    )
    table = device_table(result_of([0.1] * 4, [0] * 4).changed(devices=devices))
    out = io.StringIO()
    Console(file=out, width=120).print(table)
    assert table.row_count == (4 if count == 4 else 2)
    assert f"{count} GiB" in out.getvalue()
    assert ("the fullest device of each group" in out.getvalue()) == (count == 40)


def test_a_training_that_diverges_has_a_result_with_null_for_what_is_no_number(
    tmp_path: Path,
) -> None:
    evaluation = Evaluation(step=2, figures={"loss": math.nan})
    result = result_of([0.1] * 2, [0] * 2).changed(
        losses=(1.0, math.nan), evaluations=(evaluation,), max_loss_difference=math.inf,
        is_verified=True,
    )  # fmt: skip
    mapping = result_mapping(result, None)
    json.dumps(mapping, allow_nan=False)
    assert mapping["losses"] == [1.0, None]
    assert (mapping["is_verified"], mapping["max_loss_difference"]) == (True, None)
    (tmp_path / "result.json").write_text(result.model_dump_json())
    read = RunResult.from_file(tmp_path / "result.json")
    assert read.losses[0] == 1
    assert math.isnan(read.losses[1])
    assert verification_text(read) == verification_text(result) == "a loss is no number"
    assert verification_text(result.changed(max_loss_difference=None, is_verified=False)) == ""
    assert evaluation_line(read.evaluations[0]) == "after step 2: loss nan"


def test_lines_count_steps_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    replan = Replan(
        step=7,
        generation=1,
        planner="ppo",
        predicted_step_time_s=0.1,
        measured_step_time_s=0.1,
        seconds=0.2,
        bytes_moved=2**20,
    )
    print_result(result_of([0.1] * 9, [0] * 7 + [1] * 2).changed(replans=(replan,)))
    assert "re-placed   at step 8 by ppo" in capsys.readouterr().out


@pytest.mark.parametrize("drifted", [range(0), range(4, 10)], ids=["as planned", "drifted"])
def test_figures_of_the_steps_before_a_drift_are_said_to_be_that(
    drifted: Collection[int], capsys: pytest.CaptureFixture[str]
) -> None:
    result = result_of([0.1] * 4 + [0.3] * 6, [0] * 10, drifted=drifted).changed(
        throughput_samples_per_s=40.0,
        predicted_throughput_samples_per_s=40.0,
        devices=(device_report("d0", stage_names=("s0",)),),
    )
    print_result(result)
    out = capsys.readouterr().out
    assert ("speed       predicted" in out) is (not drifted)
    assert ("of the steps before the drift" in out) is bool(drifted)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"losses": (1.0,)}, "losses: must have as many entries as step_times_s, 2, got 1"),
        ({"generations": (0,) * 3}, "generations: must have as many entries as step_times_s, 2"),
        ({"step_times_s": (0.1, -1.0)}, "step_times_s.1: must be at least 0, got -1.0"),
        ({"first_step": -5}, "first_step: must be at least 0, got -5"),
    ],
)
def test_a_result_that_makes_no_sense_is_refused(changes: dict[str, Any], problem: str) -> None:
    content = result_of([0.1, 0.1], [0, 0]).model_dump(mode="json")
    with pytest.raises(HeterpsError, match=re.escape(f"rd: {problem}")):
        RunResult.from_mapping({**content, **changes}, "rd")
