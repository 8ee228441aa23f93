"""Sailor's plans as documents: groups of GPUs, shared network cards, times of a real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.importers.sailor import (
    SailorEnd,
    SailorLayerSizes,
    SailorLayerTimes,
    SailorLink,
    SailorLinks,
    SailorModel,
    SailorShape,
)
from heterps_configs.importers.sailor_gpus import sailor_gpu
from heterps_configs.importers.sailor_problem import bounded_send_s, group_link_s, to_documents
from heterps_configs.importers.sailor_runs import (
    SailorGroup,
    SailorPlan,
    SailorStage,
    SailorTraining,
    load_run,
    load_training,
)
from heterps_configs.importers.sailor_times import group_times

GPU = "RTX-3090"
GROUP = SailorGroup(GPU, 2, "here")
# The bandwidth is 2 GB/s for any message, that of two GPUs together, and never above 1 GB/s.
FLAT = SailorLink((0.0, 0.0, 2.0), 1e9)
LINKS = SailorLinks("links", {(SailorEnd(GPU, 2, "here"), SailorEnd(GPU, 2, "here")): FLAT})


def tiny_model() -> SailorModel:
    """Four layers of 100 parameters; a micro-batch of 2 is faster than one of 1 in one layer."""
    one = [SailorLayerTimes(1.0, 2.0, 0.3)] * 4
    one[1] = SailorLayerTimes(5.0, 2.0, 0.3)
    two = [SailorLayerTimes(1.5, 3.0, 0.3)] * 4
    sizes = {degree: (SailorLayerSizes(100, 1000, 50),) * 4 for degree in (1, 2)}
    times = {SailorShape(GPU, 1, 2): tuple(one), SailorShape(GPU, 2, 2): tuple(two)}
    return SailorModel("tiny", times, sizes)


def plan(*stages: tuple[int, int], replicas: int = 1, batch: int = 4) -> SailorPlan:
    groups = (GROUP,) * replicas
    return SailorPlan(tuple(SailorStage(a, b, groups) for a, b in stages), 1, batch)


def test_fewer_samples_never_take_longer_and_gradients_are_accumulated() -> None:
    times = group_times(tiny_model(), GROUP, 1)
    accumulation_s = 12 * 100 / sailor_gpu(GPU).memory_bandwidth_bytes_per_s
    assert [layer.forward_s for layer in times] == [1.0, 1.5, 1.0, 1.0]
    assert times[0].backward_s == pytest.approx(2 + accumulation_s, abs=1e-15)
    # Of the profiled model's four layers, each has a quarter of the parameters.
    assert [layer.update_s for layer in times] == pytest.approx([0.075] * 4)


def test_gpus_of_a_group_share_what_the_table_says_of_them_together() -> None:
    assert bounded_send_s(FLAT, 1e9) == pytest.approx(1.0)
    assert bounded_send_s(SailorLink((0.0, 0.0, 2.0), 4e9), 1e9) == pytest.approx(0.5)
    assert group_link_s(LINKS, GROUP, GROUP, 1e9) == pytest.approx(2.0)


def test_a_plan_becomes_documents_with_the_gpus_of_each_group() -> None:
    documents = to_documents(tiny_model(), LINKS, plan((0, 1), (1, 4), replicas=2), 0.5)
    assert [node.name for node in documents.cluster.nodes] == ["s0-r0", "s0-r1", "s1-r0", "s1-r1"]
    assert [stage.devices for stage in documents.plan.stages] == [
        (f"{node.name}-0", f"{node.name}-1") for node in documents.cluster.nodes
    ]
    assert [each.tensor_parallel for each in documents.profile.measurements] == [2]
    assert [pipeline.stages for pipeline in documents.plan.pipelines] == [
        ("s0-r0", "s1-r0"),
        ("s0-r1", "s1-r1"),
    ]
    assert [pipeline.micro_batches for pipeline in documents.plan.pipelines] == [(0, 1), (2, 3)]
    devices = {device.name: device for device in documents.cluster.devices}
    link = documents.cluster.link(devices["s0-r0-1"], devices["s1-r0-0"])
    assert link.bandwidth_bytes_per_s == pytest.approx(0.5e9)
    assert documents.profile.layers[0].output_bytes == 4000


def test_uneven_replicas_and_unknown_gpus_are_errors() -> None:
    uneven = SailorPlan((SailorStage(0, 1, (GROUP,) * 2), SailorStage(1, 4, (GROUP,))), 1, 4)
    with pytest.raises(HeterpsError, match="the same number of replicas"):
        to_documents(tiny_model(), LINKS, uneven)
    with pytest.raises(UnknownNameError, match="RTX-3091"):
        sailor_gpu("RTX-3091")


def test_a_training_configuration_says_what_attention_looks_like(tmp_path: Path) -> None:
    file = tmp_path / "training.json"
    file.write_text(json.dumps({"heads": 16, "sequence_length": 2048, "model": "tiny"}))
    assert load_training(file) == SailorTraining(16, 2048)


def test_the_seconds_of_the_gradient_all_reduce_may_be_missing(tmp_path: Path) -> None:
    group = [[[GPU, 2, "here"]], 2]
    pipeline = {
        "num_stages": 1,
        "layers_per_stage": [[0, 1]],
        "tmp_per_stage": [[group]],
        "dp": [1],
    }
    content = {"pipeline_list": [pipeline], "mbs": 1, "gbs": 4, "real": 1.5, "max_mem": 9}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(content))
    assert load_run(file).measured_reduce_s is None
    file.write_text(json.dumps({**content, "red_grads": 0.25}))
    assert load_run(file).measured_reduce_s == 0.25
