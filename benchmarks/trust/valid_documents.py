"""A small valid document of every kind: what is broken, and what stands beside it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from heterps.planning.place import place
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem

Row = dict[str, Any]

# Only such devices are slowed down on purpose.
EMULATED: Row = {"emulation": {"host_device_type": "fast", "slowdown": 2.0}}
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
            **more,
        }
        for name, flops, more in (("fast", 2e12, {}), ("slow", 1e12, EMULATED))
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


@cache
def small_plan() -> Row:
    problem = Problem(
        ModelProfile.from_mapping(PROFILE), Cluster.from_mapping(CLUSTER), Job.from_mapping(JOB)
    )
    plan = place(problem, "greedy").plan
    return plan.changed(
        model_reference="profile.yaml", cluster_reference="cluster.yaml"
    ).to_mapping()


def write_valid(folder: Path) -> None:
    """The valid files that stand beside the broken one."""
    valid = {
        "profile": PROFILE,
        "cluster": CLUSTER,
        "plan": small_plan(),
        "graph": GRAPH,
        "job": JOB,
        "settings": SETTINGS,
        "events": EVENTS,
        "training": TRAINING,
        "remote": {"checkpoint": {"folder": "saved", "remote": "file"}},
    }
    for name, content in valid.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    (folder / "config.json").write_text(json.dumps(HUGGINGFACE))
    (folder / "trace.csv").write_text(TRACE)
