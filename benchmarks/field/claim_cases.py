"""The problems on which claims of papers are tested: as nearly what a paper says of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks.shared.traced_models import traced_profile
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import device_type_named
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import OPEN


class Nodes(NamedTuple):
    """Equal nodes.

    Attributes:
        number: Of nodes.
        devices: How many of which types a node has.
        link: Inside a node, a shipped kind or bytes per second; empty: the first type's fastest.
        region: Of all of them.
    """

    number: int
    devices: Mapping[str, int]
    link: str | float = ""
    region: str = "local"


class ClaimCase(NamedTuple):
    """A model and where it trains.

    Attributes:
        model: A shipped name, or one of `_TRACED`.
        batch: Samples of a step.
        nodes: Of the cluster.
        between: Link between nodes: a shipped kind, or bytes per second.
        wide: Between regions, likewise; empty: there is one region.
        slower: How many times slower the first device of the cluster is than its type.
        offloads: Whether activations may be kept in host memory.
        dtype: What is computed in.
    """

    model: str
    batch: int
    nodes: tuple[Nodes, ...]
    between: str | float
    wide: str | float = ""
    slower: float = 1.0
    offloads: bool = False
    dtype: Dtype = "float16"

    @property
    def name(self) -> str:
        """Model and devices, in a few words."""
        counts: dict[str, int] = {}
        for each in self.nodes:
            for kind, count in each.devices.items():
                counts[kind] = counts.get(kind, 0) + each.number * count
        devices = " + ".join(f"{count} {kind}" for kind, count in counts.items())
        late = f", one {self.slower:g} x slower" if self.slower > 1 else ""
        return f"{self.model}, batch {self.batch}, {devices}{late}"


def problem_of(case: ClaimCase) -> Problem:
    """The problem of a case; what `heterps place` leaves open is open."""
    strategy = OPEN.changed(offload="auto") if case.offloads else OPEN
    job = Job(global_batch_size=case.batch, dtype=case.dtype)
    return Problem(_profile(case.model), _cluster(case), job, strategy=strategy)


def _gpt(width: int, layers: int, heads: int, length: int) -> tuple[Mapping[str, Any], int]:
    config = {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width,
        "n_layer": layers, "n_head": heads, "n_positions": length, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return config, length


_TRACED: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "opt-350m": (
        {
            "model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 1024,
            "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
            "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
            "do_layer_norm_before": False, "dropout": 0.0, "attention_dropout": 0.0,
        },
        2048,
    ),
    "gpt-350m": _gpt(1024, 24, 16, 1024),
    "gpt-1.3b": _gpt(2048, 24, 16, 2048),
    "gpt-2.7b": _gpt(2560, 32, 32, 512),
    "llama-13b": (
        {
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 5120,
            "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40,
            "vocab_size": 32000,
        },
        2048,
    ),
}  # fmt: skip


def _profile(model: str) -> ModelProfile:
    if model not in _TRACED:
        return load_profile(model)
    config, length = _TRACED[model]
    return traced_profile(f"field-{model}", config, length)


def _link(kind: str | float) -> object:
    if isinstance(kind, str):
        return kind
    return {"latency_s": 5e-5, "bandwidth_bytes_per_s": kind}


def _cluster(case: ClaimCase) -> Cluster:
    nodes: list[dict[str, Any]] = []
    for each in case.nodes:
        first = next(iter(each.devices))
        link = each.link or device_type_named(first).links[0]
        for _ in range(each.number):
            name = f"n{len(nodes)}"
            groups = [
                {"name": f"{name}-{kind}", "type": kind, "count": count}
                for kind, count in each.devices.items()
            ]
            nodes.append(
                {"name": name, "devices": groups, "link": _link(link), "region": each.region}
            )
    own_types = _slow_device(case, nodes) if case.slower > 1 else []
    return Cluster.from_mapping(
        {
            "name": "claim", "nodes": nodes, "inter_node_link": _link(case.between),
            "inter_region_link": _link(case.wide) if case.wide else None,
            "device_types": own_types,
        }
    )  # fmt: skip


def _slow_device(case: ClaimCase, nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes the first device one of a type of its own, which is returned."""
    group = nodes[0]["devices"][0]
    kind = device_type_named(group["type"]).to_mapping()
    slow = {
        **kind,
        "name": f"slow-{group['type']}",
        "peak_flops_per_s": {
            name: peak / case.slower for name, peak in kind["peak_flops_per_s"].items()
        },
        "memory_bandwidth_bytes_per_s": kind["memory_bandwidth_bytes_per_s"] / case.slower,
    }
    group["count"] -= 1
    alone = {"name": "slow", "type": slow["name"], "count": 1}
    nodes[0]["devices"] = [alone, group]
    return [slow]
