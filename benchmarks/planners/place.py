"""Wall-clock seconds of the whole process `heterps place` on a saved profile, with a warm cache.

    python benchmarks/planners/place.py
    python benchmarks/planners/place.py --quick --json place.json
    python benchmarks/planners/place.py --only large      512 devices of six types, six models

Each case starts a new process. The bare interpreter and the import of numba alone run in between,
so that a slow moment of the machine falls on all of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.shared.common import interleaved_medians, parse_options, report

CASES = (("llama-7b", "a100-v100-t4"), ("llama-7b", "eight-types"), ("resnet-152", "a100-v100"))
HEAVY = ("torch", "stable_baselines3", "sb3_contrib", "gymnasium", "matplotlib")
# Nodes of eight devices, 512 in all.
LARGE = {"H100-80G": 8, "A100-80G": 8, "A100-40G": 12, "V100-32G": 12, "L4": 12, "T4": 12}
LARGE_MODELS = ("gpt2", "resnet-50", "bert-large", "llama-7b", "vit-large", "llama-70b")
# What is asked of planning: nothing, more time, or that it ends when nothing is left to look at.
LIMITS: tuple[tuple[str, ...], ...] = ((), ("--seconds", "5"), ("--effort", "normal"))


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", only="large: 512 devices of six types")
    if options.only == "large":
        _large(options)
        return
    commands = {
        f"place {model} on {cluster}": ["-m", "heterps", "place", model, "-c", cluster, "--json"]
        for model, cluster in CASES
    }
    commands["import numba"] = ["-c", "import numba"]
    commands["bare interpreter"] = ["-c", "pass"]
    medians = interleaved_medians(
        {name: partial(run, arguments) for name, arguments in commands.items()},
        repeats=3 if options.quick else 11,
    )
    rows = [{"process": name, "wall_s": seconds} for name, seconds in medians.items()]
    summary = {
        "place_llama_7b_on_a100_v100_t4_wall_s": medians["place llama-7b on a100-v100-t4"],
        "heavy_modules_imported": ", ".join(heavy_imports()) or "none",
    }
    report("Start-up and planning, whole process", rows, summary, options)


def _large(options: Namespace) -> None:
    """Whole processes on 512 devices, and the steps of their plans."""
    models = LARGE_MODELS[:1] if options.quick else LARGE_MODELS
    steps: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "six-types.yaml"
        cluster.write_text(yaml.safe_dump(six_types()))

        def place(name: str, model: str, limit: tuple[str, ...]) -> None:
            arguments = ["-m", "heterps", "place", model, "-c", str(cluster), *limit, "--json"]
            done = subprocess.run(
                [sys.executable, *arguments], check=True, capture_output=True, text=True
            )
            steps[name] = json.loads(done.stdout)["estimate"]["step_time_s"]

        processes = {
            f"{model} {' '.join(limit)}".strip(): (model, limit)
            for model in models
            for limit in LIMITS
        }
        medians = interleaved_medians(
            {name: partial(place, name, *how) for name, how in processes.items()}, repeats=3
        )
    rows = [
        {"process": name, "wall_s": seconds, "step_time_s": steps[name]}
        for name, seconds in medians.items()
    ]
    report("512 devices of six types, whole process", rows, {}, options)


def six_types() -> dict[str, Any]:
    """A cluster document: 512 devices in 64 nodes."""
    nodes = [
        {
            "name": f"{kind.lower()}-{number}",
            "devices": [{"name": f"{kind.lower()}-{number}-d", "type": kind, "count": 8}],
            "link": {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e11},
        }
        for kind, count in LARGE.items()
        for number in range(count)
    ]
    between = {"latency_s": 5e-5, "bandwidth_bytes_per_s": 1.25e10}
    return {"name": "six-types", "inter_node_link": between, "nodes": nodes}


def run(arguments: list[str]) -> None:
    """One process of this interpreter, its output thrown away."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def heavy_imports() -> list[str]:
    """Which heavy libraries a `place` has loaded at its end."""
    code = (
        "import sys, json, io, contextlib\n"
        "from heterps.cli.app import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try: main(['place', 'llama-7b', '-c', 'a100-v100-t4', '--json'])\n"
        "    except SystemExit: pass\n"
        f"print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return list(json.loads(done.stdout))


if __name__ == "__main__":
    main()
