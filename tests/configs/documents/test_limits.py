"""What a slip of the finger asks for is refused at once: never built, and never taken silently."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_configs.documents.base import Document, parse_yaml
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_configs.errors import DocumentError

LINK = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9}


def cluster(**changes: Any) -> dict[str, Any]:
    group = {"name": "g", "type": "A100-40G", **changes}
    return {"name": "c", "nodes": [{"name": "n", "devices": [group], "link": LINK}]}


def linked(**changes: Any) -> dict[str, Any]:
    data = cluster()
    data["nodes"][0]["link"] = {**LINK, **changes}
    return data


def plan(**changes: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "model_fingerprint": "f",
        "num_layers": 2,
        "cluster": "c",
        "job": {"global_batch_size": 1},
        "stages": [{"name": "s", "first_layer": 0, "last_layer": 1, "devices": ["g"]}],
        "pipelines": [{"stages": ["s"], "micro_batches": [0]}],
        **changes,
    }


def huggingface(**config: Any) -> dict[str, Any]:
    return {
        "kind": "huggingface",
        "config": {"model_type": "llama", **config},
        "architecture": "LlamaForCausalLM",
        "inputs": [{"name": "input_ids", "shape": [8], "dtype": "int64", "num_classes": 9}],
    }


BAD: dict[str, tuple[type[Document], dict[str, Any], str]] = {
    "count true": (Cluster, cluster(count=True), "devices.0.count: must be a whole number, got"),
    "infinite memory": (Cluster, cluster(memory_bytes=float("inf")), "memory_bytes: must be"),
    "huge memory": (Cluster, cluster(memory_bytes=10**30), "memory_bytes: must be at most"),
    "infinite latency": (Cluster, linked(latency_s=float("inf")), "latency_s: must be a finite"),
    "long latency": (Cluster, linked(latency_s=1e300), "latency_s: must be at most 1000000,"),
    "no bandwidth": (Cluster, linked(bandwidth_bytes_per_s=1e-300), "must be at least 0.001,"),
    "a tiny price": (Cluster, cluster(price_usd_per_hour=1e-12), "must be 0, or 0.001 to 1e+06"),
    "a name of two lines": (Cluster, cluster(name="a\nb"), "must have no control characters"),
    "1e9 samples": (Job, {"global_batch_size": 10**9}, "1000000000 micro-batches; a step has at"),
    "1e30 samples": (Job, {"global_batch_size": 1e30}, "global_batch_size: must be at most"),
    "infinite floor": (Job, {"min_throughput_samples_per_s": float("inf")}, "must be a finite"),
    "a plan's NaN": (Plan, plan(predicted_step_time_s=float("nan")), "must be a finite number"),
    "a plan's 1e9 layers": (Plan, plan(num_layers=10**9), "num_layers: must be at most 65536"),
    "a negative seed": (Plan, plan(seed=-1), "seed: must be at least 0, got -1"),
    "a device twice": (
        Plan,
        plan(stages=[{"name": "s", "first_layer": 0, "last_layer": 1, "devices": ["g", "g"]}]),
        "stages.0.devices: 'g' stands there twice",
    ),
    "learning rate": (RunSettings, {"learning_rate": 1e300}, "learning_rate: must be at most 10,"),
    "seed": (RunSettings, {"seed": -1}, "seed: must be at least 0"),
    "no layers": (ModelSource, huggingface(num_hidden_layers=0), "config.num_hidden_layers: must"),
    "1e9 layers": (ModelSource, huggingface(num_hidden_layers=10**9), "must be at most 8192, got"),
    "a class that is no name": (
        ModelSource,
        huggingface(architectures=[{"a": 1}]),
        "a list of text",
    ),
    "1e12 problems": (ChainTrainingConfig, {"budget_s": 1, "pool_size": 1e12}, "pool_size: must"),
    "a large pool": (
        ChainTrainingConfig,
        {"budget_s": 1, "pool_size": 10**6, "layers": [8, 4096]},
        "pool_size: 1000000 problems of up to 4096 layers",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_number_that_cannot_be_is_refused_with_its_field_and_what_is_allowed(case: str) -> None:
    document, data, expected = BAD[case]
    with pytest.raises(DocumentError) as caught:
        document.from_mapping(data, "file.yaml")
    assert str(caught.value).startswith("file.yaml: ")
    assert expected in str(caught.value)


def test_a_cluster_of_too_many_groups_is_counted_and_not_listed() -> None:
    data = cluster()
    data["nodes"][0]["devices"] = [
        {"name": f"g{index}", "type": "A100-40G", "count": 4096} for index in range(500)
    ]
    with pytest.raises(DocumentError, match="2048000 devices; a cluster has at most 4096"):
        Cluster.from_mapping(data)


ALIASES = "a0: &a0 [1, 1]\n" + "".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ALIASES, "more than 500000 values"),
        ("a: &a [*a]", "an alias stands within what it stands for"),
        ("[" * 100_000, "lists and mappings within each other more than 100 deep"),
        ("- " * 100_000, "lists and mappings within each other more than 100 deep"),
        ("{a: " * 5000, "lists and mappings within each other more than 100 deep"),
        ("a: !!python/name:os.system", "could not determine a constructor for the tag"),
        ('a: !!int ""', "a value that cannot be read"),
        ("a: !!timestamp x", "a value that cannot be read"),
        ("!!map [a]", "a value that cannot be read"),
        ("a: " + "9" * 5000, "a value that cannot be read"),
        ("#" * (2**25 + 1), "33554433 characters; at most 33554432 are read"),
    ],
    ids=lambda value: value[:24],
)
def test_yaml_that_no_document_is_gets_one_line(text: str, expected: str) -> None:
    with pytest.raises(DocumentError) as caught:
        parse_yaml(text, "file.yaml")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
