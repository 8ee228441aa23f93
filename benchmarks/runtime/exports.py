"""Exported plans, read by the real tools: the split that they see is the plan's, losses are equal.

    python benchmarks/runtime/exports.py
    python benchmarks/runtime/exports.py --only deepspeed --json exports.json

A tool that is not installed, or cannot be imported, is a row that says so; none is a dependency.
accelerate and torch come with heterps. Of the others their parsers are enough, on any machine
(`pip install --no-deps deepspeed torchtitan megatron-core vllm`, and then what they import).
DeepSpeed's and torch's scripts train three steps with processes on this machine's CPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.runtime import export_checks, export_runs
from benchmarks.shared.common import parse_options, report
from heterps.exports.export import export_plan
from heterps.planning.problems import load_problem
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from tests.heterps.exports.small_plans import ONE, chain_of

TWO = ((0, 9), (10, 15))
FOUR = ((0, 2), (3, 8), (9, 11), (12, 15))
Check = Callable[[Problem, Plan, Path], str]
CHECKS: Mapping[str, tuple[str, Check]] = {
    "accelerate": ("accelerate", export_checks.accelerate),
    "deepspeed": ("deepspeed", export_runs.deepspeed),
    "megatron": ("megatron-core", export_checks.megatron),
    "torch-pipelining": ("torch", export_runs.torch_pipelining),
    "torchtitan": ("torchtitan", export_checks.torchtitan),
    "vllm": ("vllm", export_checks.vllm),
}


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", only=f"one of {', '.join(CHECKS)}; by default all")
    rows = [
        _row(target, package, check, name, problem, plan)
        for target, (package, check) in CHECKS.items()
        if options.only in (None, target)
        for name, (problem, plan) in _plans().items()
    ]
    counts = {
        word: sum(row["found"] == word for row in rows)
        for word in ("equal", "refused", "not installed", "differs")
    }
    report("exports", rows, counts, options)


def _plans() -> dict[str, tuple[Problem, Plan]]:
    """Uneven cuts of a small Llama in all shapes that some target knows."""
    problem = load_problem(
        "llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2, dtype="float32"
    )
    tied = export_checks.with_tied_head(problem)
    interleaved = load_problem(
        "llama-tiny", "a100-v100", global_batch_size=8, micro_batch_size=2, dtype="float32",
        schedule="interleaved",
    )  # fmt: skip
    first, second = ("a100-0",), ("v100-0",)
    chain = chain_of(problem, (first, second), cuts=TWO)
    again = chain.stages[0].changed(recompute_layers=(0, 2, 5)), chain.stages[1]
    return {
        "three stages": (problem, chain_of(problem, ONE)),
        "two replicas": (
            problem,
            chain_of(problem, (first, second), (("a100-1",), ("v100-1",)), cuts=TWO),
        ),
        "groups of two": (
            problem,
            chain_of(problem, (("a100-0", "a100-1"), ("v100-0", "v100-1")), cuts=TWO),
        ),
        "two stages in turns": (
            interleaved,
            chain_of(interleaved, (first, second, first, second), cuts=FOUR),
        ),
        "some recomputed": (problem, chain.changed(stages=again)),
        "tied head": (tied, chain_of(tied, ONE)),
    }


def _row(
    target: str, package: str, check: Check, name: str, problem: Problem, plan: Plan
) -> dict[str, Any]:
    found, of = "equal", ""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "out"
        try:
            export_plan(problem, plan, target, written)
            of = check(problem, plan, written)
        except HeterpsError as error:
            found, of = "refused", str(error)
        except ImportError as error:
            found, of = "not installed", str(error)
        except AssertionError as error:
            found, of = "differs", str(error)
    version = export_checks.version_of(package)
    return {"target": target, "version": version, "plan": name, "found": found, "of": of}


if __name__ == "__main__":
    main()
