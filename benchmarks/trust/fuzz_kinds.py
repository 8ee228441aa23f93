"""Kinds of files that commands read: how broken ones are drawn, and which commands read them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NoReturn

import numpy as np
import yaml
from hypothesis import strategies as st

from benchmarks.trust.broken_checkpoints import checkpoints
from benchmarks.trust.broken_documents import broken_text, table_files, yaml_files
from benchmarks.trust.document_checks import LAST_STEPS
from benchmarks.trust.valid_documents import (
    CLUSTER,
    EVENTS,
    GRAPH,
    HUGGINGFACE,
    JOB,
    PROFILE,
    SETTINGS,
    TRACE,
    TRAINING,
    Row,
    small_plan,
)
from benchmarks.trust.whole_checkpoint import Content, read_as_ranks_do
from heterps_agents.graphs.policy import GraphPolicy
from heterps_configs.documents.base import Document
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvents
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.training import ChainTrainingConfig

Files = st.SearchStrategy[bytes] | st.SearchStrategy[Content]

FILE = "file"
KINDS = (
    "cluster", "profile", "job", "plan", "settings", "events", "trace", "training", "graph",
    "huggingface", "policy", "checkpoint",
)  # fmt: skip
# Ranks read checkpoints: the runs begin, and what each would read first is read.
READ_BY_RANKS = dict.fromkeys(
    ("heterps_runtime.run.run_plan.begin", "heterps_runtime.elastic.run_elastic.begin"),
    read_as_ranks_do,
)
PLACE = ("-p", "greedy", "--evaluations", "20")


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        files: Their bytes, or those of all files of a folder.
        commands: Command lines that read one; `FILE` stands for its name.
        suffix: Of that name.
        share: Of the files of a run, against those of other kinds.
        valid: The valid file of the kind; empty where there is none.
        last_steps: What stands in for the steps of its commands that are left out.
    """

    files: Files
    commands: Sequence[Sequence[str]]
    suffix: str = ".yaml"
    share: int = 4
    valid: str = ""
    last_steps: Mapping[str, Callable[..., NoReturn]] = field(default_factory=lambda: LAST_STEPS)


def _document(document: type[Document], base: Row) -> Files:
    return yaml_files(base, document.model_json_schema())


@st.composite
def _policies(draw: st.DrawFn) -> bytes:
    """A .npz file with weights that are missing, of another shape, no numbers, or cut off."""
    policy = GraphPolicy.load("graph-generalist")
    weights: dict[str, Any] = dict(policy.weights)
    kind = {"problems": "graphs", "feature_version": policy.feature_version}
    meta = draw(
        st.sampled_from([kind, {}, [], 1, {**kind, "feature_version": [1]}, {**kind, "config": 5}])
    )
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(weights)))
        change = draw(st.sampled_from(("remove", "nan", "shape", "type", "turn")))
        if change == "remove":
            del weights[name]
        elif change == "nan":
            weights[name] = np.full_like(weights[name], np.nan)
        elif change == "shape":
            weights[name] = np.zeros(draw(st.lists(st.integers(0, 9), max_size=3)), np.float32)
        elif change == "type":
            weights[name] = np.full(weights[name].shape, draw(st.sampled_from(["a", 1j, True])))
        else:
            weights[name] = weights[name].T
    buffer = io.BytesIO()
    np.savez(buffer, meta=np.array(yaml.safe_dump(meta)), **weights)
    content = buffer.getvalue()
    cut = draw(st.one_of(st.none(), st.integers(0, len(content))))
    return content if cut is None else content[:cut] + draw(broken_text("x"))


@cache
def kinds() -> Mapping[str, Kind]:
    """All kinds of files, by name; other files of a command stand beside them."""
    place_on = ("place", "profile.yaml", "-c", "cluster.yaml", *PLACE)
    beside = ("--model", "profile.yaml", "-c", "cluster.yaml")
    plan = small_plan()
    resumed = ("run", "plan.yaml", *beside, "--resume", "--steps", "9")
    found = {
        "cluster": Kind(
            _document(Cluster, CLUSTER),
            [
                ("place", "profile.yaml", "-c", FILE, *PLACE, "-o", "out.yaml"),
                ("spot-trace", FILE, "--hours", "2"),
                ("place-graph", "profile.yaml", "-c", FILE, "--evaluations", "20"),
                ("simulate", "plan.yaml", "--model", "profile.yaml", "-c", FILE),
            ],
        ),
        "profile": Kind(
            _document(ModelProfile, PROFILE),
            [
                ("place", FILE, "-c", "cluster.yaml", *PLACE, "-o", "out.yaml"),
                ("profile", "--merge", "profile.yaml", FILE, "-o", "out.yaml"),
                ("simulate", "plan.yaml", "--model", FILE, "-c", "cluster.yaml"),
                ("place-graph", FILE, "-c", "cluster.yaml", "--evaluations", "20"),
            ],
        ),
        "job": Kind(_document(Job, JOB), [(*place_on, "--job", FILE, "-o", "out.yaml")]),
        "plan": Kind(
            _document(Plan, plan),
            [
                ("simulate", FILE, *beside),
                ("simulate", FILE, *beside, "--certify"),
                ("run", FILE, *beside),
            ],
        ),
        "settings": Kind(
            _document(RunSettings, SETTINGS),
            [
                ("run", "plan.yaml", *beside, "--settings", FILE),
                ("run", "plan.yaml", *beside, "--settings", FILE, "--online"),
                ("run", "plan.yaml", *beside, "--settings", FILE, "--elastic"),
            ],
        ),
        "events": Kind(
            _document(RunEvents, EVENTS),
            [("run", "plan.yaml", *beside, "--elastic", "--events", FILE)],
            share=2,
        ),
        "trace": Kind(
            table_files(TRACE), [("simulate", "plan.yaml", *beside, "--trace", FILE)], ".csv", 2
        ),
        "training": Kind(
            _document(ChainTrainingConfig, TRAINING), [("train", "--config", FILE)], share=2
        ),
        "graph": Kind(
            _document(OperatorGraph, GRAPH), [("place-graph", FILE, "--evaluations", "20")], share=2
        ),
        "huggingface": Kind(
            yaml_files(HUGGINGFACE, None),
            [("place", FILE, "-c", "cluster.yaml", *PLACE)],
            ".json",
            1,
        ),
        "policy": Kind(
            _policies(),
            [("place-graph", "graph.yaml", "--evaluations", "20", "--policy", FILE)],
            ".npz",
            1,
        ),
        "checkpoint": Kind(
            checkpoints(),
            [
                (*resumed, "--checkpoint", FILE),
                (*resumed, "--checkpoint", FILE, "--elastic"),
                (*resumed, "--settings", "remote.yaml"),
            ],
            "",
            last_steps=READ_BY_RANKS,
        ),
    }
    names = {name: f"{name}.yaml" for name in found}
    names |= {
        "huggingface": "config.json",
        "trace": "trace.csv",
        "policy": "",
        "checkpoint": FILE,
    }
    return {name: replace(found[name], valid=names[name]) for name in KINDS}
