"""`heterps simulate`: the table, the pictures, and a trace that Perfetto accepts."""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heterps.commands.simulate import memory_table
from heterps.reports.chrome_trace import write_chrome_trace
from heterps.reports.figures import timeline_figure
from heterps.reports.memory_figure import memory_figure
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem, plan_of

Heterps = Callable[..., Any]
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")


def simulated(schedule: str) -> tuple[Problem, Plan, Estimate]:
    """Four stages on two devices; the first stage computes its layer again."""
    problem = chain_problem(
        [1.0] * 4,
        [2.0] * 4,
        num_micro_batches=4,
        parameters=[10] * 4,
        activation_bytes=[50.0] * 4,
        output_bytes=[8.0] * 4,
        schedule=schedule,
    )
    stages = {f"s{index}": (index, index, f"d0-{index % 2}") for index in range(4)}
    plan = plan_of(problem, stages, {tuple(stages): range(4)})
    again = plan.stages[0].changed(recompute_layers=(0,))
    plan = plan.changed(stages=(again, *plan.stages[1:]))
    return problem, plan, estimate(problem, plan, with_timeline=True, with_memory=True)


def trace_of(schedule: str, path: Path) -> tuple[Estimate, list[dict[str, Any]]]:
    problem, plan, shown = simulated(schedule)
    write_chrome_trace({"predicted": shown}, path, problem, plan)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return shown, events


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_slices_of_a_track_do_not_overlap_and_arrows_begin_and_end_in_slices(
    schedule: str, tmp_path: Path
) -> None:
    _, events = trace_of(schedule, tmp_path / "trace.json")
    assert {event["ph"] for event in events} == {"M", "X", "s", "f", "C"}
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(tracks) <= named
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert begins.keys() == ends.keys()
    assert len(begins) == sum(event["cat"] == "send" for event in events if event["ph"] == "X")
    for event in (*begins.values(), *ends.values()):
        spans = tracks[event["pid"], event["tid"]]
        assert any(start <= event["ts"] <= end for start, end in spans)
    assert all(begins[number]["ts"] <= ends[number]["ts"] for number in begins)


def test_messages_say_their_size_and_counters_the_memory(tmp_path: Path) -> None:
    shown, events = trace_of("1f1b", tmp_path / "trace.json")
    sizes = {event["args"]["bytes"] for event in events if event.get("cat") == "send"}
    assert sizes == {8}
    for device, peak in shown.memory_bytes.items():
        values = [
            sum(event["args"].values())
            for event in events
            if event["ph"] == "C" and device in event["name"]
        ]
        assert max(values) == pytest.approx(peak, abs=3)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_figures_show_every_device_and_kind_of_action(schedule: str) -> None:
    _, plan, shown = simulated(schedule)
    figure = timeline_figure(shown, "title", {"s0": 0.3})
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["d0-0", "d0-1"]
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    backward = {"backward-input", "backward-weight"} if schedule == "zero-bubble" else {"backward"}
    assert {"forward", "computed again", "waits for a message", *backward} <= legend
    assert [axes.get_title(loc="left") for axes in memory_figure(shown, "").axes] == list(
        plan.devices
    )


def test_a_limit_near_the_peak_is_drawn_and_a_far_one_is_not() -> None:
    _, _, shown = simulated("1f1b")
    near = dict.fromkeys(shown.memory_bytes, max(shown.memory_bytes.values()) + 10)
    close = shown.changed(memory_limit_bytes=near)
    assert [len(axes.lines) for axes in memory_figure(shown, "").axes] == [0, 0]
    assert [len(axes.lines) for axes in memory_figure(close, "").axes] == [1, 1]


def test_the_table_splits_the_peak_by_kind() -> None:
    _, _, shown = simulated("gpipe")
    assert [column.header for column in memory_table(shown).columns] == [
        "device", "parameters", "optimizer", "gradients", "activations", "buffers", "all", "of",
    ]  # fmt: skip


def test_the_command_writes_trace_and_figures(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    timeline, memory = tmp_path / "timeline.svg", tmp_path / "memory.png"
    outcome = heterps(
        "simulate", blocks_plan, "--trace", trace, "--figure", timeline, "--memory-figure", memory
    )
    assert outcome.code == 0
    assert "memory at its peak" in outcome.out
    assert all(path.stat().st_size > 0 for path in (trace, timeline, memory))


def test_a_figure_needs_a_known_ending(heterps: Heterps, blocks_plan: Path, tmp_path: Path) -> None:
    outcome = heterps("simulate", blocks_plan, "--memory-figure", tmp_path / "memory.txt")
    assert outcome.code == 2
    assert "allowed endings: .png, .svg, .pdf" in outcome.err


def test_a_certificate_that_holds_says_what_was_checked_again(
    heterps: Heterps, blocks_plan: Path
) -> None:
    plan = blocks_plan
    outcome = heterps("simulate", plan, "--certify")
    assert outcome.code == 0
    assert "certificate holds; optimality: proven" in outcome.out
    assert "re-checked: memory of every device" in outcome.out
    outcome = heterps("simulate", plan, "--certify", "--json")
    found = json.loads(outcome.out)["certificate"]
    assert (outcome.code, found["is_valid"], found["problems"]) == (0, True, [])
    assert "certificate" not in json.loads(heterps("simulate", plan, "--json").out)


def test_a_claim_that_does_not_hold_ends_with_code_1(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    plan = Plan.from_file(blocks_plan)
    assert plan.bound.step_time_s is not None
    plan.changed(bound=plan.bound.changed(step_time_s=2 * plan.bound.step_time_s)).to_file(file)
    outcome = heterps("simulate", file, "--certify")
    assert outcome.code == 1
    assert "certificate does not hold" in outcome.out
    assert "wrong: the bound of" in outcome.out
    outcome = heterps("simulate", file, "--certify", "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out)["certificate"]["is_valid"] is False


def test_claims_about_simulated_times_are_held_against_the_simulator(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path
) -> None:
    file, plan = tmp_path / "plan.yaml", Plan.from_file(blocks_plan)
    simulated_s = plan.predicted_step_time_s
    assert simulated_s is not None
    bound = plan.executable_bound
    false: dict[str, dict[str, Any]] = {
        "predicted_step_time_s is": {"predicted_step_time_s": 2 * simulated_s},
        "is above the simulated": {"executable_bound": bound.changed(step_time_s=2 * simulated_s)},
        "the gap of 0 % allow": {
            "executable_bound": bound.changed(step_time_s=simulated_s / 2, gap=0.0)
        },
    }
    for expected, changes in false.items():
        plan.changed(**changes).to_file(file)
        outcome = heterps("simulate", file, "--certify", "--json")
        assert outcome.code == 1
        assert expected in outcome.data["certificate"]["problems"][-1]


def test_a_plan_of_which_nothing_can_be_checked_has_no_certificate_that_holds(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path
) -> None:
    plan = Plan.from_file(blocks_plan)
    on_one = [
        stage.changed(devices=plan.stages[0].devices, in_flight=None) for stage in plan.stages
    ]
    assert len(on_one) > 1, "the test needs several stages"
    file = tmp_path / "plan.yaml"
    plan.changed(
        stages=tuple(on_one), predicted_step_time_s=None, bound=Bound(), executable_bound=Bound(),
        job=plan.job.changed(schedule="interleaved"),
    ).to_file(file)  # fmt: skip
    outcome = heterps("simulate", file, "--certify")
    assert "certificate has nothing that could be re-checked" in outcome.out


def test_a_cluster_that_moved_is_told_with_the_plan_and_the_option(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path
) -> None:
    file = tmp_path / "plan.yaml"
    Plan.from_file(blocks_plan).changed(cluster_reference="./gone.yaml").to_file(file)
    outcome = heterps("simulate", file)
    assert outcome.code == 2
    assert f"{file}: cluster_reference: ./gone.yaml: no such file; --cluster names" in outcome.err


@pytest.mark.parametrize(("field", "words"), [("bound", "closed form"), ("executable_bound", "si")])
def test_a_bound_above_the_plan_s_own_step_is_told_without_being_asked(
    heterps: Heterps, blocks_plan: Path, tmp_path: Path, field: str, words: str
) -> None:
    plan = Plan.from_file(blocks_plan)
    file = tmp_path / "plan.yaml"
    plan.changed(**{field: Bound(step_time_s=1e3, gap=0.0, status="proven")}).to_file(file)
    with pytest.warns(UserWarning, match=rf"plan.yaml: {field}: 1000 s is above the .*{words}"):
        assert heterps("simulate", file, "--json").code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert heterps("simulate", blocks_plan, "--json").code == 0
