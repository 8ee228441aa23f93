"""Why stages are carried out as they are: `heterps place --explain`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from heterps.micro_batches.outlooks import BOUND_IS_ABOVE
from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps.planning.explain import explain
from heterps.planning.explanation import Explanation
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.reports.tables import dropped_lines, explanation_table, idle_lines, size_lines
from heterps_agents.finishing.idle_devices import Found, IdleClass, Lifted
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import LayerRange
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import estimate
from tests.heterps.small_profiles import PLAIN

Heterps = Callable[..., Any]
ALL = Strategy(tensor_parallel=(1, 2, 4), recompute="auto", shard_state="auto")
GPT2 = ("place", "gpt2", "-c", "h100-pod", "-p", "greedy")


def placed(model: str, strategy: Strategy) -> tuple[Problem, PlaceResult]:
    problem = load_problem(model, "h100-pod", strategy=strategy)
    return problem, place(problem, "greedy", budget=Budget(500))


def test_each_choice_costs_what_the_plan_with_it_costs() -> None:
    problem, result = placed("gpt2", ALL.changed(tensor_parallel=(2, 4)))
    explanation = explain(problem, result)
    assert explanation.step_time_s == result.estimate.step_time_s
    assert [stage.first_layer for stage in explanation.stages] == sorted(
        {stage.first_layer for stage in result.plan.stages}
    )
    plan = result.plan
    for stage in explanation.stages:
        again = [each for each in stage.alternatives if each.option.memory == "recompute"]
        chosen = [each for each in plan.stages if each.first_layer == stage.first_layer]
        changed = plan.changed(
            stages=tuple(
                each.changed(recompute_layers=tuple(each.layers)) if each in chosen else each
                for each in plan.stages
            )
        )
        assert [each.step_time_s for each in again] == [estimate(problem, changed).step_time_s]
        assert {each.option.degree for each in stage.alternatives} <= {2, 4}
        assert all(each.option != stage.option for each in stage.alternatives)


def sharded(*layers: int) -> PlaceResult:
    """Two replicas of layers 0 to 6, two of 7 to 13, and these layers' state divided."""
    _, result = placed("gpt2", ALL.changed(tensor_parallel=(1, 2)))
    stages = (PlacedStage(0, 6, 0, 2, degree=2), PlacedStage(7, 13, 0, 2, degree=2))
    plan = bound_plan(result.problem, stages, planner="greedy", seed=0)
    plan = plan.changed(sharded_state=LayerRange.all_of(set(layers)))
    return replace(result, plan=plan, estimate=estimate(result.problem, plan))


@pytest.mark.parametrize(
    ("layers", "counts", "others"),
    [
        ((), (0, 0), {7}),
        (range(14), (7, 7), {0}),
        ((0, 1), (2, 0), {0, 7}),
        ((5, 6, 7, 9), (2, 2), {0, 7}),
    ],
    ids=["none", "all", "some with the first", "some, over two stages"],
)
def test_a_stage_says_whether_all_some_or_none_of_its_layers_divide_their_state(
    layers: tuple[int, ...], counts: tuple[int, int], others: set[int]
) -> None:
    result = sharded(*layers)
    explanation = explain(result.problem, result)
    assert tuple(each.num_sharded_layers for each in explanation.stages) == counts
    assert [each.option.shards_state for each in explanation.stages] == [n > 0 for n in counts]
    front = explanation.stages[0]
    found = {
        each.num_sharded_layers: each.step_time_s
        for each in front.alternatives
        if each.option[:-1] == front.option[:-1]
    }
    assert found.keys() == others
    rest = {layer for layer in layers if layer > 6}
    for count in others:
        changed = result.plan.changed(sharded_state=LayerRange.all_of({*range(count), *rest}))
        assert found[count] == estimate(result.problem, changed).step_time_s


def test_other_choices_leave_the_layers_whose_state_is_divided_as_they_are() -> None:
    result = sharded(1, 2, 8)
    front = explain(result.problem, result).stages[0]
    (halved,) = (each for each in front.alternatives if each.option.degree == 1)
    stages = (PlacedStage(0, 6, 0, 4), PlacedStage(7, 13, 0, 2, degree=2))
    plan = bound_plan(result.problem, stages, planner="greedy", seed=0)
    plan = plan.changed(sharded_state=LayerRange.all_of({1, 2, 8}))
    assert halved.num_sharded_layers == 2
    assert halved.step_time_s == estimate(result.problem, plan).step_time_s


def test_the_table_names_how_many_layers_divide_their_state() -> None:
    result = sharded(1, 2, *range(7, 14))
    table = explanation_table(explain(result.problem, result))
    ways = [str(cell) for cell in table.columns[2].cells]
    assert ways == [
        "tensor parallel 2, state sharded 2 layers x 2",
        "tensor parallel 2, state sharded x 2",
    ]


def test_what_does_not_fit_is_said_with_the_bytes_that_are_missing() -> None:
    problem, result = placed("llama-70b", ALL.changed(tensor_parallel=(8,)))
    explanation = explain(problem, result)
    kept = [stage.runner_up for stage in explanation.stages]
    assert all(each is not None and each.option.memory == "keep" for each in kept)
    assert all(each is not None and each.over_bytes > 2**30 for each in kept)
    cells = list(explanation_table(explanation).columns[-1].cells)
    assert len(cells) == len(kept)
    assert all(re.fullmatch(r"does not fit: [\d.]+ GiB over", str(cell)) for cell in cells)


def test_without_options_there_was_nothing_to_choose_and_that_is_one_line(
    heterps: Heterps,
) -> None:
    plain = heterps(*GPT2, *PLAIN, "--explain")
    assert plain.code == 0
    assert "nothing to choose" in plain.out
    assert "--tensor-parallel, --recompute, --shard-state and --offload" in plain.out
    refused = heterps(*GPT2, "--explain", "--frontier")
    assert refused.code == 2
    assert "--explain" in refused.err
    assert len(refused.err.splitlines()) == 1


def test_a_planner_that_chooses_no_options_is_named() -> None:
    problem = load_problem("gpt2", "a100-v100", strategy=ALL)
    with pytest.warns(UserWarning, match="pipeedge places each stage"):
        result = place(problem, "pipeedge")
    note = explain(problem, result).note
    assert note.endswith("the planner pipeedge places each stage on one device that keeps all")


def test_a_planner_that_computes_layers_again_by_its_own_cost_is_not_said_to_keep_all() -> None:
    problem = load_problem("gpt2", "a100-v100", strategy=ALL)
    with pytest.warns(UserWarning, match="pipeedge places each stage"):
        result = place(problem, "pipeedge")
    first, *rest = result.plan.stages
    again = first.changed(recompute_layers=(first.first_layer,))
    own = replace(result, plan=result.plan.changed(stages=(again, *rest)))
    note = explain(problem, own).note
    assert note.endswith("the planner pipeedge chooses how stages are carried out by its own cost")


def test_the_command_names_a_planner_that_chooses_no_options(heterps: Heterps) -> None:
    asked = ("place", "gpt2", "-c", "a100-v100", "--micro-batch", "8", "--explain")
    told = heterps(*asked, "-p", "pipeedge")
    assert "the planner pipeedge places each stage on one device that keeps all" in told.out


def test_options_that_planners_left_out_come_with_their_reason() -> None:
    problem, result = placed("gpt2", ALL)
    lines = dropped_lines(result.problem, explain(problem, result))
    assert any("recompute" in line and "memory suffices" in line for line in lines)


def test_the_answer_in_json_holds_all_choices(heterps: Heterps) -> None:
    data = heterps(
        *GPT2, "--tensor-parallel", "1", "--shard-state", "never", "--explain", "--json"
    ).data
    for stage in data["explanation"]["stages"]:
        assert stage["option"]["memory"] == "keep"
        assert [each["option"]["memory"] for each in stage["alternatives"]] == ["recompute"]
    sizes = {each["size"]: each for each in data["explanation"]["micro_batch_sizes"]}
    assert list(sizes) == sorted(sizes)
    best = data["estimate"]["step_time_s"]
    chosen = [each for each in sizes.values() if each["is_chosen"]]
    assert [each["found"] for each in chosen] == [best]
    assert all(each["why"] or each["found"] >= best for each in sizes.values())


@pytest.mark.slow
def test_idle_devices_are_explained_where_that_is_asked_for(heterps: Heterps) -> None:
    asked = ("place", "gpt2", "-c", "a100-v100-t4", "-p", "greedy", "--micro-batch", "8")
    plain = heterps(*asked)
    assert "why idle      --explain looks for plans with them" in plain.out
    told = heterps(*asked, "--explain")
    assert "why idle" not in told.out
    data = heterps(*asked, "--explain", "--json").data
    idle, step_s = data["explanation"]["idle"], data["estimate"]["step_time_s"]
    used = {name for stage in data["plan"]["stages"] for name in stage["devices"]}
    assert sum(len(each["devices"]) for each in idle) + len(used) == 16
    for each in idle:
        assert used.isdisjoint(each["devices"])
        assert each["plan_cost"] == pytest.approx(step_s)
        assert f"idle: {len(each['devices'])} {each['device_type']} (" in told.out
        if each["why"] in ("slow", "limited"):
            assert each["with_more"]["cost"] >= 0.999 * step_s


def test_each_reason_for_idle_devices_reads_as_a_line() -> None:
    problem = load_problem("gpt2", "a100-v100")
    found = Found(PlacedStage(3, 5, 1, replicas=2), 2, 1.1, slowness=9.0)
    slower = IdleClass("T4", ("t4-0", "t4-1"), "slow", 1.0, found, (Lifted("samples", -0.1),))
    limited = slower._replace(why="limited", lifted=(Lifted("links", 0.25), Lifted("memory", 0.0)))
    lines = idle_lines(
        problem,
        [
            slower,
            limited,
            slower._replace(why="missed", found=found._replace(cost=0.9)),
            limited._replace(found=None),
            slower._replace(why="memory", found=found._replace(over_bytes=2**30)),
            slower._replace(why="memory", found=None, lifted=()),
            slower._replace(why="unknown", found=None, lifted=()),
        ],
    )
    best = (
        "idle: 2 T4 (t4-0..1): the best plan found with 2 of them (layers 3-5 x 2) takes 1.1 s "
        "(+10.0 %), these layers 9 x as long there"
    )
    assert lines[0] == f"{best}; with 4 x the batch no gain was found either"
    assert lines[1] == f"{best}; they would pay with links 1000 x as fast (-25.0 %)"
    assert "a better plan, which was not found, has 2 of them" in lines[2]
    assert "takes 900 ms (-10.0 %)" in lines[2]
    assert "allow no plan with more of them; they would pay with links" in lines[3]
    assert "no plan with them fits: the nearest lacks 1 GiB" in lines[4]
    assert "no layer fits beside what a device keeps free" in lines[5]
    assert "not looked at" in lines[6]


def test_each_size_of_micro_batches_says_in_a_line_why_it_lost() -> None:
    sizes = (
        TriedSize(1, 1.0, 2.5, None, BOUND_IS_ABOVE),
        TriedSize(2, 0.5, math.inf, 1.0),
        TriedSize(4, 0.5, 2.0, 1.25),
    )
    assert size_lines(Explanation(1.0, sizes=sizes, micro_batch_size=2)) == [
        f"micro-batch 1: {BOUND_IS_ABOVE} (bound 1 x, simple placements 2.5 x of what was chosen)",
        "micro-batch 2: chosen, 1 s",
        "micro-batch 4: the best found costs +25.0 %",
    ]
