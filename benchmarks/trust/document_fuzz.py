"""Broken documents of every kind, given to the commands that read them.

    python -m benchmarks.trust.document_fuzz --count 5000
    python -m benchmarks.trust.document_fuzz --count 200 --json documents.json

Hypothesis draws the files (`broken_documents`), a valid one of the kind or one of its schema first;
`document_checks` runs the command and says what is wrong with what it did. The same seed draws the
same files. A kind of file that another part of heterps reads gets its name in `KINDS` and a line in
`kinds`.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.shared.common import parse_options, report
from benchmarks.trust.broken_documents import broken_text, table_files, yaml_files
from benchmarks.trust.document_checks import REFUSED, check_command, quiet_environment
from heterps.planning.place import place
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
from heterps_envs.problem import Problem

Row = dict[str, Any]
Files = st.SearchStrategy[bytes]

CLUSTER: Row = {
    "name": "two",
    "device_types": [
        {
            "name": name,
            "kind": "cpu",
            "memory_bytes": 10**10,
            "peak_flops_per_s": {"float32": flops},
            "memory_bandwidth_bytes_per_s": 1e11,
            "price_usd_per_hour": 1.0,
        }
        for name, flops in (("fast", 2e12), ("slow", 1e12))
    ],
    "nodes": [
        {
            "name": f"node{index}",
            "devices": [{"name": f"d{index}", "type": kind, "count": 2}],
            "link": {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e9},
            "host": {"action_s": 1e-4, "slowdown_together": [1.0, 1.5]},
        }
        for index, kind in enumerate(("fast", "slow"))
    ],
    "inter_node_link": {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e8},
    "link_overrides": [
        {"between": ["node0", "node1"], "link": {"latency_s": 0, "bandwidth_bytes_per_s": 1e9}}
    ],
}
PROFILE: Row = {
    "name": "small",
    "dtype": "float32",
    "layers": [
        {
            "name": f"layer{index}",
            "kind": "Linear",
            "num_parameters": 1000 * (index + 1),
            "forward_flops": 1e9,
            "backward_flops": 2e9,
            "activation_bytes": 1e5,
            "output_bytes": 1e4,
            "sent": [[1, 1e4]],
        }
        for index in range(4)
    ],
    "measurements": [
        {
            "device_type": "fast",
            "micro_batch_size": 2,
            "forward_s": [0.001, 0.002, 0.003, 0.004],
            "backward_s": [0.002, 0.004, 0.006, 0.008],
            "peak_bytes": [1e4, 1e4, 1e4, 1e4],
        }
    ],
    "source": {
        "kind": "factory",
        "factory": "heterps_runtime.examples.sequential:perceptron",
        "inputs": [{"name": "x", "shape": [32]}],
        "target": {"name": "target", "dtype": "int64", "num_classes": 10},
    },
}
JOB: Row = {
    "global_batch_size": 8,
    "micro_batch_size": 2,
    "dtype": "float32",
    "optimizer": "sgd",
    "schedule": "1f1b",
    "min_throughput_samples_per_s": 0.5,
}
SETTINGS: Row = {
    "steps": 3,
    "learning_rate": 0.01,
    "checkpoint": {"folder": "checkpoints", "every": 2},
    "online": {"fine_tune_s": 1, "drift_threshold": 0.1},
    "elastic": {"heartbeat_s": 1.0, "losses_per_hour": {"fast": 0.1}},
}
EVENTS: Row = {
    "events": [
        {"step": 2, "lose": "d0-0"},
        {"time_s": 3.5, "join": "d0-0"},
        {"step": 4, "slow": "d1-0", "factor": 2.0},
    ]
}
TRAINING: Row = {
    "budget_s": 5,
    "layers": [8, 16],
    "pool_size": 64,
    "num_environments": 8,
    "steps_per_update": 4,
    "learning_rate": 1e-3,
}
GRAPH: Row = {
    "name": "graph",
    "num_accelerators": 2,
    "num_cpus": 1,
    "accelerator_memory_bytes": 1e9,
    "nodes": [
        {"name": f"n{i}", "accelerator_s": 0.1, "cpu_s": 0.5, "memory_bytes": 1e6} for i in range(5)
    ],
    "edges": [[0, 1], [1, 2], [0, 3], [3, 4], [2, 4]],
}
HUGGINGFACE: Row = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 16,
    "vocab_size": 50,
    "n_positions": 32,
}
TRACE = """time_s,scope,name,event,count,price_usd_per_hour
0,node,node0,price,,0.5
60,device,d0-0,lost,,
90.5,device,d0-0,back,,
120,node,node1,lost,1,
200,type,slow,available,1,0.7
600,trace,,end,,
"""
FILE = "file"
KINDS = (
    "cluster", "profile", "job", "plan", "settings", "events", "trace", "training", "graph",
    "huggingface", "policy",
)  # fmt: skip
PLACE = ("-p", "greedy", "--evaluations", "20")


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        files: Their bytes.
        commands: Command lines that read one; `FILE` stands for its name.
        suffix: Of that name.
        share: Of the files of a run, against those of other kinds.
        valid: The valid file of the kind; empty where there is none.
    """

    files: Files
    commands: Sequence[Sequence[str]]
    suffix: str = ".yaml"
    share: int = 4
    valid: str = ""


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
    plan = _small_plan()
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
    }
    names = {name: f"{name}.yaml" for name in found}
    names |= {"huggingface": "config.json", "trace": "trace.csv", "policy": ""}
    return {name: replace(found[name], valid=names[name]) for name in KINDS}


@cache
def _small_plan() -> Row:
    problem = Problem(
        ModelProfile.from_mapping(PROFILE), Cluster.from_mapping(CLUSTER), Job.from_mapping(JOB)
    )
    plan = place(problem, "greedy").plan
    return plan.changed(
        model_reference="profile.yaml", cluster_reference="cluster.yaml"
    ).to_mapping()


def _write_others(folder: Path) -> None:
    """The valid files that stand beside the broken one."""
    valid = {
        "profile": PROFILE,
        "cluster": CLUSTER,
        "plan": _small_plan(),
        "graph": GRAPH,
        "job": JOB,
        "settings": SETTINGS,
        "events": EVENTS,
        "training": TRAINING,
    }
    for name, content in valid.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "config.json").write_text(json.dumps(HUGGINGFACE))
    (folder / "trace.csv").write_text(TRACE)


def _warm_up(chosen: Mapping[str, Kind], folder: Path) -> Iterator[str]:
    """Every command once with valid files: what it imports and compiles counts for no broken one.

    What it has against a valid file is a finding too: it would have as much against all others.
    """
    for name, kind in chosen.items():
        for command in kind.commands if kind.valid else ():
            valid = [kind.valid if part == FILE else part for part in command]
            verdict = check_command(valid, folder, limit_s=900.0)
            if verdict.findings or not verdict.is_through:
                yield f"{name}: {' '.join(valid)}: a valid file: {verdict}"


@dataclass
class Outcome:
    """What came of the files.

    Attributes:
        files: By kind.
        refused: Of these, those that got a line and exit code 2.
        slowest_s: The longest answer, by kind.
        findings: What is wrong, with the command and the file's first bytes.
    """

    files: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    slowest_s: dict[str, float] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def fuzz(
    count: int,
    number: int = 0,
    only: Sequence[str] = (),
    on_finding: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Gives `count` files to commands.

    Args:
        count: Files of all kinds together, about.
        number: Seed.
        only: Names of kinds; by default all.
        on_finding: Called with each finding, to show it at once.
    """
    quiet_environment()
    outcome, start = Outcome(), time.perf_counter()
    chosen = {name: kind for name, kind in kinds().items() if not only or name in only}
    total = sum(kind.share for kind in chosen.values())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_others(folder)
        outcome.findings += _warm_up(chosen, folder)
        for kind_name, kind in chosen.items():
            told = len(outcome.findings)
            share = max(1, count * kind.share // total)
            _fuzz_kind(kind_name, kind, share, number, folder, outcome)
            for text in outcome.findings[told:]:
                on_finding(text)
    outcome.seconds = time.perf_counter() - start
    return outcome


def _fuzz_kind(
    name: str, kind: Kind, count: int, number: int, folder: Path, outcome: Outcome
) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(content=kind.files, index=st.integers(0, len(kind.commands) - 1))
    def check(content: bytes, index: int) -> None:
        file = folder / f"{FILE}{kind.suffix}"
        file.write_bytes(content)
        command = [file.name if part == FILE else part for part in kind.commands[index]]
        verdict = check_command(command, folder)
        outcome.files[name] += 1
        outcome.refused[name] += verdict.code == REFUSED
        outcome.slowest_s[name] = max(outcome.slowest_s.get(name, 0.0), verdict.seconds)
        outcome.findings += [
            f"{name}: {' '.join(command)}: {text} | {content[:600]!r}" for text in verdict.findings
        ]

    check()


def rows(outcome: Outcome) -> list[Row]:
    """One row for each kind of file."""
    return [
        {
            "kind": name,
            "files": count,
            "refused": outcome.refused[name],
            "slowest_s": outcome.slowest_s[name],
            "findings": sum(text.startswith(f"{name}: ") for text in outcome.findings),
        }
        for name, count in outcome.files.items()
    ]


def summary(outcome: Outcome) -> Row:
    """The numbers that the table of the subject shows."""
    return {
        "document_fuzz_files": outcome.files.total(),
        "document_fuzz_findings": len(outcome.findings),
        "document_fuzz_slowest_s": max(outcome.slowest_s.values(), default=0.0),
        "document_fuzz_seconds": outcome.seconds,
    }


def main() -> None:
    """Runs the benchmark and prints its table and what it found."""
    options = _options()
    only = options.kinds.split(",") if options.kinds else ()
    count = 200 if options.quick else int(options.count or 5000)
    outcome = fuzz(count, options.seed, only, on_finding=print)
    report("Broken documents", rows(outcome), summary(outcome), options)


def _options() -> argparse.Namespace:
    return parse_options(
        __doc__ or "", count="files, 5000 by default", kinds="only these, with commas between"
    )


if __name__ == "__main__":
    main()
