"""A file of another kind is called what it is, instead of all fields that it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_configs import library
from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.training import GraphTrainingConfig
from heterps_configs.documents.yaml_files import read_yaml
from heterps_configs.errors import DocumentError

SHIPPED = Path(library.__file__).parent
RESULT = {"losses": [1.0], "step_times_s": [1.0], "generations": [0], "stages": [{"device": "a"}]}
OF_PLANS = "model, model_fingerprint, num_layers, cluster, job, stages, pipelines"
PLACED = {"requested_planner": "auto", "plan": {}, "estimate": {}}


def shipped(kind: str, name: str) -> Any:
    return read_yaml(SHIPPED / kind / f"{name}.yaml")


@pytest.mark.parametrize(
    ("document", "data", "message"),
    [
        (Plan, RESULT, "is the result of a run, no plan; `heterps report` takes the folder"),
        (Plan, PLACED, "is what `heterps place --json` printed, no plan; `heterps place -o"),
        (Plan, shipped("clusters", "a100-v100"), "is a cluster, no plan; --cluster takes it"),
        (Cluster, shipped("models", "gpt2"), "is a model profile, no cluster; commands take it"),
        (ModelProfile, shipped("clusters", "a100-v100"), "is a cluster, no model profile; --cl"),
        (Plan, {"name": "x", "nodes": [3, 4]}, f"is no plan of heterps, which has {OF_PLANS}; `h"),
        (Plan, {"version": 1, "job": {}, "on": {}}, f"is no plan of heterps, which has {OF_PLANS}"),
        (Cluster, {"name": "x", "on": 1, "files": []}, "is no cluster of heterps, which has "),
        (ModelProfile, {"version": 1}, "is no model profile of heterps, which has name, layers; "),
        (OperatorGraph, {"version": 1}, "is no operator graph of heterps, which has name, num_acc"),
    ],
)
def test_a_file_of_another_kind_is_called_what_it_is(
    document: type[Document], data: Any, message: str
) -> None:
    with pytest.raises(DocumentError) as caught:
        document.from_mapping(data, "file")
    assert str(caught.value).startswith(f"file: {message}")
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("document", "data", "message"),
    [
        (Cluster, {**shipped("clusters", "a100-v100"), "nodez": 1}, "nodez: unknown field"),
        (Plan, {"pipelines": [], "stages": [], "job": {}}, "model: is missing"),
        (GraphTrainingConfig, {"nodes": [9, 8], "problems": "graphs"}, "training has to end"),
        (Plan, {}, "model: is missing"),
        (Cluster, {"name": "x", "node": []}, "did you mean 'nodes'?"),
    ],
)
def test_a_broken_file_of_its_kind_is_told_its_fields(
    document: type[Document], data: Any, message: str
) -> None:
    with pytest.raises(DocumentError, match=message):
        document.from_mapping(data, "file")
