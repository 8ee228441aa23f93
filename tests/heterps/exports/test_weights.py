"""Exported weights of every kind of model: what `from_pretrained` loads, with equal outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from heterps.exports.export import export_weights
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.library import load_cluster
from heterps_envs.problem import Problem
from heterps_runtime.models.build import build_module
from heterps_runtime.models.data import make_batch
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.layout import VALUE, checkpoint_key
from tests.runtime.small_models import profile_of, source_of


def whole(problem: Problem) -> Plan:
    """All layers on one device."""
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=problem.profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=(
            Stage(
                name="s0", first_layer=0, last_layer=problem.profile.num_layers - 1,
                devices=(problem.cluster.devices[0].name,),
            ),
        ),
        pipelines=(Pipeline(stages=("s0",), micro_batches=(0,)),),
        planner="test",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "t5"])
def test_from_pretrained_loads_what_was_trained(name: str, tmp_path: Path) -> None:
    source, profile = source_of(name), profile_of(name)
    problem = Problem(profile, load_cluster("a100-v100"), Job(global_batch_size=1, dtype="float32"))
    torch.manual_seed(0)
    model = build_module(source, device="cpu").eval()
    first: dict[int, str] = {}
    tied: dict[str, str] = {}
    for key, parameter in model.named_parameters(remove_duplicate=False):
        if first.setdefault(id(parameter), key) != key:
            tied[key] = first[id(parameter)]
    tensors = {checkpoint_key(n, VALUE): p.detach() for n, p in model.named_parameters()}
    folder = tmp_path / "saved"
    write_tensors(unfinished_path(folder, 1), tensors, None, 0)
    document = CheckpointDocument(
        step=1, seed=0, learning_rate=None, plan=whole(problem), num_ranks=1,
        layers=layer_sizes(profile), tied_names=tied,
    )  # fmt: skip
    publish(folder, document, keep=1)
    export_weights(problem, folder, tmp_path / "out")
    assert source.architecture is not None
    kind: Any = getattr(transformers, source.architecture)
    loaded = kind.from_pretrained(tmp_path / "out").eval()
    inputs, _ = make_batch(source, step=0, batch_size=2, seed=0)
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    auto: Any = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert auto.architectures == [source.architecture]
