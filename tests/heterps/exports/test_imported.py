"""Splits of other tools as plans: what is exported comes back, and bad files are told."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.exports.export import export_plan
from heterps.exports.imported import import_plan
from heterps.exports.read_megatron import read_megatron
from heterps.planning.problems import load_problem
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.problem import Problem
from tests.heterps.exports.small_plans import chain_of

Heterps = Callable[..., Any]
# llama-tiny has 14 blocks between its embedding and its head.
NUM_BLOCKS = 14


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2)


def blocks_of(text: str, num_blocks: int = NUM_BLOCKS) -> tuple[int, ...]:
    return read_megatron(text, num_blocks, "file").blocks


@pytest.mark.parametrize(
    "chains",
    [
        ((("a100-0",), ("a100-1",), ("v100-0",)),),
        ((("a100-0", "a100-1"), ("v100-0", "v100-1")),),
        ((("a100-0",), ("v100-0",)), (("a100-1",), ("v100-1",))),
    ],
)
def test_what_megatron_is_told_comes_back(problem: Problem, tmp_path: Path, chains: Any) -> None:
    cuts = ((0, 4), (5, 10), (11, 15)) if len(chains[0]) == 3 else ((0, 9), (10, 15))
    plan = chain_of(problem, *chains, cuts=cuts)
    *_, order = export_plan(problem, plan, "megatron", tmp_path / "out")
    names = order.removeprefix("ranks: ").split()
    found, again = import_plan(problem, tmp_path / "out" / "arguments.txt", "megatron", names)
    assert found.job == problem.job
    by_pipeline = [
        [[plan.stage(name) for name in pipeline.stages] for pipeline in each.pipelines]
        for each, plan in ((plan, plan), (again, again))
    ]
    for expected, got in zip(*by_pipeline, strict=True):
        assert [(s.first_layer, s.last_layer, s.devices) for s in expected] == [
            (s.first_layer, s.last_layer, s.devices) for s in got
        ]
    assert again.predicted_step_time_s is not None


def test_a_device_map_comes_back(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, (("a100-0",), ("a100-1",), ("v100-0",)))
    export_plan(problem, plan, "accelerate", tmp_path / "out")
    _, again = import_plan(
        problem, tmp_path / "out" / "device_map.json", "accelerate", ["a100-0", "a100-1", "v100-0"]
    )
    assert [(s.first_layer, s.last_layer, s.devices) for s in again.stages] == [
        (s.first_layer, s.last_layer, s.devices) for s in plan.stages
    ]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(sum))
def test_any_layout_says_how_many_blocks_its_stages_have(blocks: list[int]) -> None:
    layout = "|".join("t" * count for count in blocks)
    text = f"--pipeline-model-parallel-size {len(blocks)} --pipeline-model-parallel-layout "
    assert blocks_of(f"{text}'E{layout}L'", sum(blocks)) == tuple(blocks)
    short = "|".join(f"t*{count}" if count > 1 else "t" * count for count in blocks)
    assert blocks_of(f"{text}'E,{short},L'", sum(blocks)) == tuple(blocks)


def test_repeats_of_stages_and_equal_shares_are_known() -> None:
    size = "--pipeline-model-parallel-size"
    assert blocks_of(f"{size} 4 --pipeline-model-parallel-layout=Et*4|(t*4|)*2t*2L") == (4, 4, 4, 2)
    assert blocks_of(f"{size} 7") == (2,) * 7
    uneven = f"{size} 4 --decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 4"
    assert blocks_of(uneven) == (2, 4, 4, 4)
    assert blocks_of(f"{size} 1\n--bf16\n--lr 1e-4") == (14,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "has no arguments"),
        ("--num-layers 12", "--num-layers 12; the model has 14 blocks"),
        ("--pipeline-model-parallel-size 4", "14 blocks cannot be dealt equally to 4 ranks"),
        (
            "--pipeline-model-parallel-size 2 --decoder-first-pipeline-num-layers 99",
            "the first and the last rank are to have 99 blocks, and the model has 14",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 3",
            "14 blocks on 2 ranks are no whole number of such stages",
        ),
        (
            "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2",
            "ranks with 7 blocks cannot each deal them equally to 2 stages",
        ),
        (
            "--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7",
            "one rank is both the first and the last",
        ),
        ("--pipeline-model-parallel-size x", "expected a whole number from 1 on"),
        ("--context-parallel-size 2", "a plan has no such groups"),
        ("--pipeline-model-parallel-layout tL", "expected one E"),
        ("--pipeline-model-parallel-layout t|EL", "E comes first"),
        ("--pipeline-model-parallel-layout Et*3|t*3L", "its stages have 6 blocks"),
        (
            "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*5|t*5|t*4L'",
            "3 stages, which --pipeline-model-parallel-size 2 ranks cannot share equally",
        ),
        ("--pipeline-model-parallel-layout E((t*99999)*99999)*99999L", "too long"),
        ("--note 'open", "is no list of arguments"),
        ("--training.local_batch_size 16", "has none that says where layers are"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(text: str, expected: str) -> None:
    with pytest.raises(HeterpsError) as error:
        blocks_of(text)
    assert expected in str(error.value)
    assert str(error.value).startswith("file: ")


def read(problem: Problem, folder: Path, text: str) -> tuple[Problem, Plan]:
    path = folder / "arguments.txt"
    path.write_text(text)
    return import_plan(problem, path, "megatron")


def test_stages_that_ranks_take_in_turns_are_interleaved(problem: Problem, tmp_path: Path) -> None:
    text = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*4|t*4|t*4|t*2L'"
    _, plan = read(problem, tmp_path, text)
    assert plan.job.schedule == "interleaved"
    asked = replace(problem, job=problem.job.changed(schedule="zero-bubble"))
    assert read(asked, tmp_path, text)[1].job.schedule == "zero-bubble"
    assert read(problem, tmp_path, "--num-layers 14")[1].job.schedule == "1f1b"


def test_ranks_of_unlike_length_divide_their_blocks_among_their_stages() -> None:
    text = (
        "--pipeline-model-parallel-size 3 --decoder-first-pipeline-num-layers 2 "
        "--decoder-last-pipeline-num-layers 4 --num-virtual-stages-per-pipeline-rank 2"
    )
    assert blocks_of(text) == (1, 4, 2, 1, 4, 2)
    each = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    assert blocks_of(each) == (1,) * 14


def test_only_blocks_are_computed_again(problem: Problem, tmp_path: Path) -> None:
    text = "--pipeline-model-parallel-size 2 --recompute-granularity full"
    _, plan = read(problem, tmp_path, text)
    assert [stage.recompute_layers for stage in plan.stages[:2]] == [
        tuple(range(1, 8)),
        tuple(range(8, 15)),
    ]
    some = f"{text} --recompute-method block --recompute-num-layers 2"
    _, plan = read(problem, tmp_path, some)
    assert [stage.recompute_layers for stage in plan.stages[:2]] == [(1, 2), (8, 9)]
    uniform = f"{text} --recompute-method uniform --recompute-num-layers"
    with pytest.warns(UserWarning, match="4 blocks together keep one input there, and a plan"):
        _, plan = read(problem, tmp_path, f"{uniform} 4")
    assert plan.stages[0].recompute_layers == tuple(range(1, 8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(problem, tmp_path, f"{uniform} 1")
    with pytest.warns(UserWarning, match="attention alone is computed again there"):
        _, plan = read(problem, tmp_path, "--recompute-granularity selective")
    assert not plan.stages[0].recompute_layers


def test_sizes_that_make_no_sense_are_told_with_the_file(problem: Problem, tmp_path: Path) -> None:
    path = re.escape(str(tmp_path / "arguments.txt"))
    with pytest.raises(HeterpsError, match=f"{path}: micro_batch_size: 64 is larger"):
        read(problem, tmp_path, "--micro-batch-size 64")
    with pytest.raises(HeterpsError, match=f"{path}: 4 replicas cannot share a step of 8 samples"):
        read(problem, tmp_path, "--micro-batch-size 3")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]", "expected a mapping of modules to devices"),
        ("{", "line 1: Expecting"),
        ('{"": "disk"}', "is on 'disk'"),
        ('{"model.embed_tokens": 0}', "has no device for model.layers.0"),
        ('{"": 0, "model.layers.3.mlp": 1}', "the model on 0 and model.layers.3.mlp on 1"),
        ('{"": 0, "model.norm": 1}', "is one layer of the profile"),
        (
            '{"": 0, "model.layers.1": 1, "model.layers.2": 2, "model.layers.3": 3, '
            '"model.layers.4": 4}',
            "its places are 0, 1, 2, 3, 4; .* there must be 5",
        ),
    ],
)
def test_device_maps_that_make_no_sense_are_refused(
    problem: Problem, tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "device_map.json"
    path.write_text(content)
    with pytest.raises(HeterpsError, match=expected):
        import_plan(problem, path, "accelerate")


def test_names_that_nothing_has_are_told(problem: Problem, tmp_path: Path) -> None:
    path = tmp_path / "arguments.txt"
    path.write_text("--num-layers 14")
    with pytest.raises(UnknownNameError, match="nosuch"):
        import_plan(problem, path, "megatron", ["nosuch"])
    with pytest.raises(UnknownNameError, match="deepspeed"):
        import_plan(problem, path, "deepspeed")
    with pytest.raises(HeterpsError, match="missing"):
        import_plan(problem, tmp_path / "missing", "megatron")
    with pytest.raises(HeterpsError, match="--devices: a100-0 stands there twice"):
        import_plan(problem, path, "megatron", ["a100-0", "a100-0"])


def test_a_name_that_was_meant_for_one_that_is_read_is_told() -> None:
    with pytest.warns(UserWarning, match="--tensor-model-parallel-sizes is not read; --tensor-"):
        blocks_of("--num-layers 14 --tensor-model-parallel-sizes 2 --encoder-num-layers 3")


def test_options_that_the_file_overrules_are_told(heterps: Heterps, tmp_path: Path) -> None:
    arguments = tmp_path / "arguments.txt"
    arguments.write_text("--num-layers 14 --global-batch-size 8 --micro-batch-size 2")
    sizes = ("--global-batch", 16, "--micro-batch", 2)
    with pytest.warns(UserWarning, match=r"--global-batch 16 is ignored: .*txt says 8") as told:
        outcome = heterps(
            "import", arguments, "llama-tiny", "-c", "a100-v100", "--from", "megatron", *sizes
        )
    assert outcome.code == 0
    assert len(told) == 1


def test_a_device_map_of_several_devices_says_which_schedule_was_assumed(
    heterps: Heterps, tmp_path: Path
) -> None:
    file = tmp_path / "device_map.json"
    asked = (
        "import", file, "llama-tiny", "-c", "a100-v100", "--from", "accelerate",
        "--global-batch", 8, "--micro-batch", 2,
    )  # fmt: skip
    file.write_text('{"": 0}')
    assert "has no schedule" not in heterps(*asked).out
    places = {f"model.layers.{index}": index // 7 for index in range(NUM_BLOCKS)}
    file.write_text(json.dumps({"": 0, **places, "model.norm": 1, "lm_head": 1}))
    text = " ".join(heterps(*asked).out.split())
    assert "note a device_map has no schedule: this is 1f1b with micro-batches of 2" in text
    assert "accelerate lets one micro-batch at a time through its devices: predicted" in text


def test_the_command_prints_and_writes_the_plan(heterps: Heterps, tmp_path: Path) -> None:
    arguments, plan = tmp_path / "arguments.txt", tmp_path / "plan.yaml"
    arguments.write_text(
        "--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 2\n"
        "--global-batch-size 8\n--micro-batch-size 2\n--recompute-granularity full\n"
    )
    outcome = heterps(
        "import", arguments, "llama-tiny", "-c", "a100-v100", "--from", "megatron", "-o", plan,
        "--json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert outcome.data["planner"] == "megatron"
    assert [len(stage["devices"]) for stage in outcome.data["plan"]["stages"]] == [2, 2]
    assert outcome.data["bound"]["gap"] >= 0
    simulated = heterps("simulate", plan, "--json")
    assert simulated.data["step_time_s"] == outcome.data["estimate"]["step_time_s"]
    assert json.dumps(outcome.data["plan"]["stages"]).count("recompute_layers") == 2
