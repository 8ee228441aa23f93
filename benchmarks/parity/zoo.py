"""Models of transformers from their config alone: traced, placed, trained under a plan; and timed.

    python -m benchmarks.parity.zoo --json zoo.json
    python -m benchmarks.parity.zoo --only "clip;whisper" --processes yes

Forty architectures at tiny size: each is traced, placed on the four emulated devices of
`local-emulated`, and trained for five steps under a plan of four stages beside training in one
process (`--processes yes`: in a process for each device, as `heterps run --verify` does). Twenty at
full size are traced and placed; nothing of their size is allocated. CPU seconds, layers, and how
many layers are several modules that no plan can cut.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from benchmarks.parity.parity import LOSS_LIMIT, PARAMETER_LIMIT
from benchmarks.parity.plans import plan_of, problem_of
from benchmarks.parity.runs import compare
from benchmarks.parity.zoo_models import FULL, SEQUENCE_LENGTH, SOUND, TINY, Config
from benchmarks.shared.common import Row, parse_options, report
from heterps import load_problem, place
from heterps_configs.documents.base import Dtype
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_configs.library import load_cluster
from heterps_envs.problem import Problem
from heterps_runtime.profiling.model_source import resolve_profile

_Found = TypeVar("_Found")
NUM_STEPS = 5
WITHOUT_TOKENS = ("vit", "swin", "convnext", "segformer", "wav2vec2")
# An image of sixteen patches comes with its tokens, Whisper's positions are 32.
LENGTHS = {"llava": 40}


def main() -> None:
    """All models that are asked for, tiny ones first."""
    options = parse_options(
        __doc__ or "",
        only="one model, or several with semicolons between",
        processes="train in processes",
    )
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    names = options.only.split(";") if options.only else [*TINY, *FULL]
    for name in names:
        if name not in TINY and name not in FULL:
            raise UnknownNameError("model", name, [*TINY, *FULL])
    rows: list[Row] = []
    for number, name in enumerate(names):
        print(f"{number + 1} of {len(names)}: {name}", file=sys.stderr)
        rows.append(_row(name, options))
    report("Models from their config alone", rows, _summary(rows), options)


def tiny_profile(name: str) -> ModelProfile:
    """A tiny model's layers, from its config.

    Raises:
        HeterpsError: It cannot be traced.
    """
    length = None if name in WITHOUT_TOKENS else LENGTHS.get(name, SEQUENCE_LENGTH)
    return _traced(name, TINY[name], "float32", length, [SOUND] if name == "wav2vec2" else [])


def _traced(
    name: str, config: Config, dtype: Dtype | None, length: int | None, inputs: list[str]
) -> ModelProfile:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps({"model_type": name, **config}))
        profile = resolve_profile(str(file), inputs, sequence_length=length, dtype=dtype)
    return profile.changed(name=name)


def _row(name: str, options: argparse.Namespace) -> Row:
    try:
        return _tiny(name, options) if name in TINY else _full(name)
    except HeterpsError as error:
        return {"model": name, "size": "tiny" if name in TINY else "full", "verdict": str(error)}


def _tiny(name: str, options: argparse.Namespace) -> Row:
    trace_s, profile = _timed(lambda: tiny_profile(name))
    place_s, _ = _timed(lambda: place(_on(profile, "local-emulated")))
    problem = problem_of(profile, "unequal cuts", "1f1b", "adamw")
    plan = plan_of(problem, "unequal cuts")
    run_s, outcome = _timed(
        lambda: compare(problem, plan, options.seed, NUM_STEPS, not options.processes)
    )
    is_equal = outcome.loss <= LOSS_LIMIT and outcome.parameter <= PARAMETER_LIMIT
    verdict = "equal" if is_equal else "differs"
    if not is_equal:
        exact = compare(problem, plan, options.seed, NUM_STEPS, in_float64=True)
        verdict = "rounding" if max(exact.loss, exact.parameter) <= 1e-10 else "differs"
    return {
        **_layers(name, "tiny", profile),
        "trace_cpu_s": trace_s,
        "place_cpu_s": place_s,
        "run_cpu_s": run_s,
        "loss_difference": outcome.loss,
        "parameter_difference": outcome.parameter,
        "verdict": verdict,
    }


def _full(name: str) -> Row:
    config, cluster, times = FULL[name]
    trace_s, profile = _timed(
        lambda: _traced(str(config["model_type"]), config, "bfloat16", None, [])
    )
    dtype: Dtype = "bfloat16" if cluster == "h100-pod" else "float16"
    large = _larger(load_cluster(cluster), times)
    place_s, result = _timed(lambda: place(_on(profile, large, dtype)))
    return {
        **_layers(name, "full", profile),
        "trace_cpu_s": trace_s,
        "place_cpu_s": place_s,
        "devices": len(large.devices),
        "samples_per_s": result.estimate.throughput_samples_per_s,
        "verdict": "placed",
    }


def _larger(cluster: Cluster, times: int) -> Cluster:
    """The same nodes several times."""
    nodes = [
        node.changed(
            name=f"{node.name}-{copy}",
            devices=tuple(g.changed(name=f"{g.name}-{copy}") for g in node.devices),
        )
        for copy in range(times)
        for node in cluster.nodes
    ]
    return cluster if times == 1 else cluster.changed(nodes=tuple(nodes))


def _on(profile: ModelProfile, cluster: str | Cluster, dtype: Dtype = "float32") -> Problem:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "profile.yaml"
        profile.to_file(file)
        return load_problem(str(file), cluster, dtype=dtype)


def _layers(name: str, size: str, profile: ModelProfile) -> Row:
    return {
        "model": name,
        "size": size,
        "class": profile.source.architecture if profile.source else "",
        "parameters": profile.num_parameters,
        "layers": profile.num_layers,
        "joined": sum(bool(layer.joined_because) for layer in profile.layers),
    }


def _timed(work: Callable[[], _Found]) -> tuple[float, _Found]:
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def _summary(rows: list[Row]) -> Row:
    tiny = [row for row in rows if row["size"] == "tiny"]
    full = [row for row in rows if row["size"] == "full"]
    timed = [row for row in rows if "trace_cpu_s" in row]
    return {
        "tiny": len(tiny),
        "equal": sum(row["verdict"] == "equal" for row in tiny),
        "but_for_rounding": sum(row["verdict"] == "rounding" for row in tiny),
        "full": len(full),
        "placed": sum(row["verdict"] == "placed" for row in full),
        "median_trace_cpu_s": median([row["trace_cpu_s"] for row in timed] or [0.0]),
        "longest_trace_cpu_s": max([row["trace_cpu_s"] for row in timed] or [0.0]),
    }


if __name__ == "__main__":
    main()
