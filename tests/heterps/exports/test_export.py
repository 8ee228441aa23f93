"""Plans and weights in the formats of other tools, read back by these tools where they are here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from heterps.cli import other_tools
from heterps.cli.app import main
from heterps.exports.export import NAMES, export_plan, export_weights
from heterps.exports.imported import SOURCES
from heterps.exports.predicted import samples_per_s_one_by_one
from heterps.planning.problems import load_problem
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.problem import Problem
from heterps_runtime.models.build import build_module
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.layout import VALUE, checkpoint_key
from tests.heterps.exports.small_plans import CUTS, ONE, chain_of
from tests.runtime.networks import free_port


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem("llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2)


def test_a_plan_that_does_not_fit_is_exported_with_a_remark(
    problem: Problem, tmp_path: Path
) -> None:
    remarks = export_plan(problem, chain_of(problem, ONE), "megatron", tmp_path / "fits")
    assert not any("feasible" in remark for remark in remarks)
    job = problem.job.changed(min_throughput_samples_per_s=1e9)
    slow = replace(problem, job=job)
    remarks = export_plan(slow, chain_of(slow, ONE), "megatron", tmp_path / "slow")
    assert any(remark.startswith("the plan is not feasible: throughput") for remark in remarks)


def test_a_device_map_has_a_place_for_every_parameter(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, ONE)
    remark, _ = export_plan(problem, plan, "accelerate", tmp_path / "out")
    device_map = json.loads((tmp_path / "out" / "device_map.json").read_text())
    assert problem.profile.source is not None
    for name, _ in build_module(problem.profile.source).named_parameters():
        places = {place for path, place in device_map.items() if name.startswith(f"{path}.")}
        layer = re.search(r"layers\.(\d+)\.", name)
        index = int(layer[1]) + 1 if layer else 0 if "embed" in name else 15
        assert places == {next(i for i, (a, b) in enumerate(CUTS) if a <= index <= b)}, name
    memory = json.loads((tmp_path / "out" / "max_memory.json").read_text())
    assert memory == {
        str(i): problem.usable_bytes(name) for i, name in enumerate(("a100-0", "a100-1", "v100-0"))
    }
    # Nothing overlaps there.
    assert "instead of the plan's" in remark
    assert samples_per_s_one_by_one(problem, plan) > 0


def test_megatron_gets_its_layout_and_its_ranks(problem: Problem, tmp_path: Path) -> None:
    pairs = (("a100-0", "a100-1"), ("v100-0", "v100-1"))
    plan = chain_of(problem, pairs, cuts=((0, 10), (11, 15)))
    remarks = export_plan(problem, plan, "megatron", tmp_path / "out")
    arguments = (tmp_path / "out" / "arguments.txt").read_text().splitlines()
    assert arguments == [
        "--tensor-model-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-layout Et*10|t*4L",
        "--num-layers 14",
        "--micro-batch-size 2",
        "--global-batch-size 8",
    ]
    assert remarks == ("ranks: a100-0 a100-1 v100-0 v100-1",)


def test_megatron_shares_the_state_of_all_layers_or_of_none(
    problem: Problem, tmp_path: Path
) -> None:
    pairs = (("a100-0", "a100-1"), ("v100-0", "v100-1"))
    plan = chain_of(problem, pairs, cuts=((0, 10), (11, 15)))
    for last_layer, remark in ((15, False), (3, True)):
        sharded = (LayerRange(first_layer=0, last_layer=last_layer),)
        own, folder = plan.changed(sharded_state=sharded), tmp_path / str(last_layer)
        remarks = export_plan(problem, own, "megatron", folder)
        assert "--use-distributed-optimizer" in (folder / "arguments.txt").read_text()
        said = "the plan shares the optimizer state of 4 layers, this of all"
        assert (said in remarks) is remark


def test_blocks_of_each_stage_are_counted_for_vllm_and_named_for_torchtitan(
    problem: Problem, tmp_path: Path
) -> None:
    plan = chain_of(problem, ONE)
    export_plan(problem, plan, "vllm", tmp_path / "vllm")
    assert "VLLM_PP_LAYER_PARTITION=4,6,4\n" in (tmp_path / "vllm/environment.sh").read_text()
    assert (tmp_path / "vllm/config.yaml").read_text().splitlines() == [
        "tensor-parallel-size: 1", "pipeline-parallel-size: 3", "data-parallel-size: 1",
    ]  # fmt: skip
    export_plan(problem, plan, "torchtitan", tmp_path / "titan")
    fields = json.loads((tmp_path / "titan/parallelism.json").read_text())
    assert fields["pipeline_parallel_degree"] == 3
    parts = fields["module_fqns_per_model_part"]
    assert [part[0] for part in parts] == ["tok_embeddings", "layers.4", "layers.10"]
    assert parts[-1][-3:] == ["layers.13", "norm", "lm_head"]
    assert sum(map(len, parts)) == 17


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("accelerate", "stage s0 is split over several devices"),
        ("deepspeed", "stage s0 is split over 2 devices"),
        ("megatron", "stages have 1 and 2 devices"),
        ("vllm", "stages have 1 and 2 devices"),
        ("torchtitan", "stages have 1 and 2 devices"),
        ("torch-pipelining", "stage s0 is on 2 devices"),
    ],
)
def test_what_a_target_cannot_express_is_refused_and_nothing_is_left(
    problem: Problem, tmp_path: Path, target: str, reason: str
) -> None:
    plan = chain_of(problem, (("a100-0", "a100-1"), ("v100-0",), ("v100-1",)))
    with pytest.raises(HeterpsError, match=reason):
        export_plan(problem, plan, target, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_activations_that_a_target_keeps_are_told(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, (("a100-0",), ("v100-0",)), cuts=((0, 9), (10, 15)))
    first, last = plan.stages
    stages = first.changed(offloaded_layers=(1, 2)), last.changed(recompute_layers=(11,))
    told = "activations that the plan offloads (2 layers) stay on their devices: they fit there"
    for target in ("deepspeed", "megatron", "torchtitan"):
        remarks = export_plan(problem, plan.changed(stages=stages), target, tmp_path / target)
        assert told in remarks
    # torch's schedules compute nothing again either.
    remarks = export_plan(problem, plan.changed(stages=stages), "torch-pipelining", tmp_path / "t")
    assert told.replace(" stay", " or computes again (1 layers) stay") in remarks


def test_a_tied_head_is_refused_where_stages_cannot_share_it(
    problem: Problem, tmp_path: Path
) -> None:
    first, last = problem.profile.layers[0], problem.profile.layers[-1]
    shared = last.changed(tied_to=first.name, tied_parameters=first.num_parameters)
    layers = (*problem.profile.layers[:-1], shared)
    tied = replace(problem, profile=problem.profile.changed(layers=layers))
    for target in ("torchtitan", "torch-pipelining"):
        with pytest.raises(HeterpsError, match="share a parameter"):
            export_plan(tied, chain_of(tied, ONE), target, tmp_path / target)
    export_plan(tied, chain_of(tied, ONE), "deepspeed", tmp_path / "deepspeed")
    assert 'TiedLayerSpec, "embedding"' in (tmp_path / "deepspeed/train.py").read_text()


def in_turns(problem: Problem) -> Plan:
    """Two devices with two stages each."""
    return chain_of(
        problem,
        (("a100-0",), ("v100-0",), ("a100-0",), ("v100-0",)),
        cuts=((0, 3), (4, 7), (8, 11), (12, 15)),
    )


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("deepspeed", "a100-0 has 2 stages; each of its ranks has one"),
        ("torchtitan", "its 1F1B has one on each rank"),
        ("torch-pipelining", "the schedule 1f1b has one stage on each device"),
        ("vllm", "each of its ranks has one"),
    ],
)
def test_stages_in_turns_are_refused_where_a_rank_has_one(
    problem: Problem, tmp_path: Path, target: str, reason: str
) -> None:
    with pytest.raises(HeterpsError, match=reason):
        export_plan(problem, in_turns(problem), target, tmp_path / "out")


def test_stages_in_turns_are_virtual_stages(tmp_path: Path) -> None:
    problem = load_problem(
        "llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2, schedule="interleaved"
    )
    remarks = export_plan(problem, in_turns(problem), "megatron", tmp_path / "megatron")
    arguments = (tmp_path / "megatron/arguments.txt").read_text()
    assert "--pipeline-model-parallel-size 2\n" in arguments
    assert "--pipeline-model-parallel-layout Et*3|t*4|t*4|t*3L\n" in arguments
    # Several stages on a rank are its interleaved schedule: nothing to remark.
    assert remarks == ("ranks: a100-0 v100-0",)
    export_plan(problem, in_turns(problem), "torchtitan", tmp_path / "titan")
    words = (tmp_path / "titan/arguments.txt").read_text().splitlines()
    assert words[3:6] == [
        "--parallelism.pipeline_parallel_degree 2",
        "--parallelism.pipeline_parallel_schedule Interleaved1F1B",
        "--parallelism.pipeline_parallel_microbatch_size 2",
    ]
    assert words[6].split()[1:] == [
        "tok_embeddings,layers.0,layers.1,layers.2",
        "layers.3,layers.4,layers.5,layers.6",
        "layers.7,layers.8,layers.9,layers.10",
        "layers.11,layers.12,layers.13,norm,lm_head",
    ]
    assert words[7:] == [
        "--training.local_batch_size 8",
        "--training.global_batch_size 8",
        "--training.disable_cuda_graphs",
    ]


def test_pipelines_that_differ_are_refused(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, ONE[:2], (("v100-0",), ("v100-1",)), cuts=((0, 4), (5, 15)))
    other = plan.stages[2].changed(last_layer=7), plan.stages[3].changed(first_layer=8)
    uneven = plan.changed(stages=(*plan.stages[:2], *other))
    export_plan(problem, plan, "torchtitan", tmp_path / "even")
    fields = json.loads((tmp_path / "even/parallelism.json").read_text())
    assert fields["data_parallel_replicate_degree"] == 2
    with pytest.raises(HeterpsError, match="2 pipelines differ in cuts"):
        export_plan(problem, uneven, "torchtitan", tmp_path / "uneven")


def test_a_target_and_a_folder_are_checked_first(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, ONE)
    with pytest.raises(UnknownNameError, match="unknown target 'keras'"):
        export_plan(problem, plan, "keras", tmp_path / "out")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(HeterpsError, match="is there already"):
        export_plan(problem, plan, "vllm", tmp_path / "full")
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["mine"]
    assert "safetensors" in NAMES


def test_weights_need_a_checkpoint_and_plans_take_none(
    problem: Problem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain_of(problem, ONE).to_file(tmp_path / "plan.yaml")
    command = ["export", str(tmp_path / "plan.yaml"), str(tmp_path / "out"), "--to"]
    for more, reason in (
        (["safetensors"], "--to safetensors needs --checkpoint"),
        (["vllm", "--checkpoint", "saved"], "--to vllm writes no weights"),
    ):
        with pytest.raises(SystemExit) as stop:
            main([*command, *more])
        assert stop.value.code == 2
        assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("is_tied", [False, True])
def test_exported_weights_are_what_from_pretrained_loads(
    problem: Problem, tmp_path: Path, is_tied: bool
) -> None:
    source = problem.profile.source
    assert source is not None
    source = source.changed(config={**(source.config or {}), "tie_word_embeddings": is_tied})
    profile = problem.profile.changed(source=source)
    torch.manual_seed(0)
    model = build_module(source, device="cpu").eval()
    folder = tmp_path / "saved"
    tensors = {checkpoint_key(n, VALUE): p.detach() for n, p in model.named_parameters()}
    write_tensors(unfinished_path(folder, 1), tensors, None, 0)
    document = CheckpointDocument(
        step=1,
        seed=0,
        learning_rate=None,
        plan=chain_of(problem, ONE),
        num_ranks=1,
        layers=layer_sizes(profile),
        tied_names={"lm_head.weight": "model.embed_tokens.weight"} if is_tied else {},
    )
    publish(folder, document, keep=1)
    other = Problem(profile=profile, cluster=problem.cluster, job=problem.job)
    export_weights(other, folder, tmp_path / "out")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    loaded.train(False)
    assert type(loaded).__name__ == "LlamaForCausalLM"
    ids = torch.arange(12).reshape(2, 6)
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_names_out_of_documents_become_no_code_of_a_script(
    problem: Problem, tmp_path: Path
) -> None:
    hostile = 'x"""; import evil; """'
    named = replace(problem, profile=problem.profile.changed(name=hostile))
    plan = chain_of(problem, ONE)
    export_plan(named, chain_of(named, ONE), "torch-pipelining", tmp_path / "named")
    assert 'x"""' not in (tmp_path / "named/train.py").read_text()
    assert problem.profile.source is not None
    source = problem.profile.source.changed(architecture="LlamaForCausalLM(0)\nimport evil\n")
    other = replace(problem, profile=problem.profile.changed(source=source))
    with pytest.raises(HeterpsError, match="is no name of a module"):
        export_plan(other, plan, "torch-pipelining", tmp_path / "other")


# What takes seconds to import, both ranks have of one process, which computes the first loss, too.
RANKS = """
import multiprocessing, os, runpy, sys
import torch
train = runpy.run_path("train.py")
torch.manual_seed(0)
inputs, target = train["example"](8)
output = train["first_output"](train["build_model"]()(*inputs))
print("alone", train["loss_function"](output, target).item(), flush=True)
def execute(rank):
    os.environ["RANK"] = str(rank)
    train["main"]()
fork = multiprocessing.get_context("fork")
ranks = [fork.Process(target=execute, args=(rank,)) for rank in range(2)]
for each in ranks:
    each.start()
for each in ranks:
    each.join()
sys.exit(any(each.exitcode for each in ranks))
"""


@pytest.mark.slow
def test_the_script_for_torch_trains_as_one_process_does(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, (("a100-0",), ("v100-0",)), cuts=((0, 9), (10, 15)))
    export_plan(problem, plan, "torch-pipelining", tmp_path / "out")
    # As torchrun sets it.
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = {**os.environ, **meeting, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        [sys.executable, "-c", RANKS],
        cwd=tmp_path / "out", env=environment, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", run.stdout)]
    assert len(losses) == 3, run.stderr[-2000:]
    (alone,) = re.findall(r"alone ([\d.]+)", run.stdout)
    assert losses[0] == pytest.approx(float(alone), abs=1e-5)
    assert losses[2] < losses[0]


def test_the_command_completes_what_there_is() -> None:
    assert set(other_tools.TARGETS) == set(NAMES)
    assert set(other_tools.SOURCES) == set(SOURCES)
