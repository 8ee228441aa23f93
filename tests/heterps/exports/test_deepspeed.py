"""DeepSpeed's pipeline: exact cuts, its config, what it refuses, and that its script trains."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps.exports.export import export_plan
from heterps.exports.predicted import samples_per_s_of_deepspeed
from heterps.planning.problems import load_problem
from heterps_configs.documents.plan import LayerRange
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.heterps.exports.small_plans import ONE, chain_of

TWO = ((0, 9), (10, 15))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem(
        "llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2, dtype="float32",
        optimizer="sgd",
    )  # fmt: skip


def values_of(script: Path) -> dict[str, Any]:
    """Constants of a script, without running it."""
    found = {}
    for entry in ast.parse(script.read_text()).body:
        if isinstance(entry, ast.Assign) and isinstance(entry.targets[0], ast.Name):
            found[entry.targets[0].id] = ast.literal_eval(entry.value)
    return found


def test_cuts_are_those_of_the_plan_in_modules(problem: Problem, tmp_path: Path) -> None:
    remarks = export_plan(problem, chain_of(problem, ONE), "deepspeed", tmp_path / "out")
    found = values_of(tmp_path / "out" / "partition.py")
    # Norm and head are one layer of the profile, and two modules.
    assert found["PARTS"] == [0, 5, 11, 17]
    assert [found["LAYERS"][i] for i in (0, 5, 11, 15, 16)] == [
        "model.embed_tokens", "model.layers.4", "model.layers.10", "model.norm", "lm_head",
    ]  # fmt: skip
    assert json.loads((tmp_path / "out" / "ds_config.json").read_text()) == {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 0},
    }
    assert "its messages wait for the next pass the other way" in remarks[0]
    assert remarks[-1] == "ranks: a100-0 a100-1 v100-0"


def test_replicas_share_micro_batches_and_state(problem: Problem, tmp_path: Path) -> None:
    chains = (("a100-0",), ("v100-0",)), (("a100-1",), ("v100-1",))
    plan = chain_of(problem, *chains, cuts=TWO)
    part = plan.changed(sharded_state=(LayerRange(first_layer=0, last_layer=9),))
    remarks = export_plan(problem, part, "deepspeed", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text())
    assert config["gradient_accumulation_steps"] == 2
    assert config["zero_optimization"] == {"stage": 1}
    assert "the plan shares the optimizer state of 10 layers; DeepSpeed that of all" in remarks
    assert remarks[-1] == "ranks: a100-0 a100-1 v100-0 v100-1"


def test_recomputed_layers_are_named_one_by_one(problem: Problem, tmp_path: Path) -> None:
    plan = chain_of(problem, (("a100-0",), ("v100-0",)), cuts=TWO)
    first, last = plan.stages
    stages = first.changed(recompute_layers=(1, 4)), last.changed(recompute_layers=(15,))
    export_plan(problem, plan.changed(stages=stages), "deepspeed", tmp_path / "out")
    assert values_of(tmp_path / "out" / "partition.py")["RECOMPUTED"] == [1, 4, 15, 16]
    config = json.loads((tmp_path / "out" / "ds_config.json").read_text())
    # A reentrant one has no gradient for an embedding.
    assert config["pipeline"] == {"activation_checkpoint_interval": 1, "use_reentrant": False}


def test_a_model_that_is_no_sequence_gets_its_parts_alone(tmp_path: Path) -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=8, micro_batch_size=2)
    plan = chain_of(problem, (("a100-0",), ("v100-0",)), cuts=((0, 6), (7, 13)))
    remarks = export_plan(problem, plan, "deepspeed", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "ds_config.json", "partition.py",
    ]  # fmt: skip
    found = values_of(tmp_path / "out" / "partition.py")
    assert found["PARTS"] == [0, 7, 14]
    assert len(found["LAYERS"]) == 14
    assert any("there is no train.py" in text for text in remarks)


def test_what_its_pipeline_cannot_do_is_refused(tmp_path: Path) -> None:
    problem = load_problem("llama-tiny", "a100-v100", global_batch_size=7, micro_batch_size=2)
    plan = chain_of(problem, (("a100-0", "a100-1"), ("v100-0",)), cuts=TWO)
    with pytest.raises(HeterpsError, match="stage s0 is split over 2 devices"):
        export_plan(problem, plan, "deepspeed", tmp_path / "groups")
    with pytest.raises(HeterpsError, match="micro-batches have unequal sizes"):
        export_plan(problem, chain_of(problem, ONE), "deepspeed", tmp_path / "sizes")
    assert list(tmp_path.iterdir()) == []


def test_its_order_costs_time_where_messages_are_slow(problem: Problem) -> None:
    alone = chain_of(problem, (("a100-0",),), cuts=((0, 15),))
    shown = estimate(problem, alone).throughput_samples_per_s
    # The simulator adds what the host takes; there are no messages and no sums.
    assert samples_per_s_of_deepspeed(problem, alone) == pytest.approx(shown, rel=0.02)
    plan = chain_of(problem, ONE)
    own = estimate(problem, plan).throughput_samples_per_s
    assert samples_per_s_of_deepspeed(problem, plan) < own


@pytest.mark.slow
def test_its_script_trains_as_one_process_does(problem: Problem, tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    plan = chain_of(problem, (("a100-0",), ("v100-0",)), cuts=TWO)
    export_plan(problem, plan, "deepspeed", tmp_path / "out")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "train.py"],
        cwd=tmp_path / "out", env=environment, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", run.stdout)]
    assert len(losses) == 3, run.stderr[-2000:]
    script = """
import torch, train
torch.manual_seed(0)
model, (inputs, target) = train.build_model(), train.example(8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(3):
    loss = train.loss_function(model(*inputs).logits, target)
    print("alone", loss.item())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    alone = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "out", capture_output=True, text=True,
        timeout=400, check=True,
    )  # fmt: skip
    expected = [float(text) for text in re.findall(r"alone ([\d.]+)", alone.stdout)]
    assert losses == pytest.approx(expected, abs=1e-5)
