"""Targets by name, and the folder that an export becomes."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from heterps.exports.accelerate import to_accelerate
from heterps.exports.deepspeed import to_deepspeed
from heterps.exports.formats import Exported
from heterps.exports.megatron import to_megatron, to_vllm
from heterps.exports.torch_pipelining import to_torch_pipelining
from heterps.exports.torchtitan import to_torchtitan
from heterps.exports.weights import write_weights
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

TARGETS: Mapping[str, Callable[[Problem, Plan], Exported]] = {
    "accelerate": to_accelerate,
    "deepspeed": to_deepspeed,
    "megatron": to_megatron,
    "torch-pipelining": to_torch_pipelining,
    "torchtitan": to_torchtitan,
    "vllm": to_vllm,
}
WEIGHTS = "safetensors"
NAMES = (*TARGETS, WEIGHTS)


def export_plan(problem: Problem, plan: Plan, target: str, folder: Path) -> tuple[str, ...]:
    """Writes a plan in the format of another tool.

    Args:
        problem: What the plan answers.
        plan: Any; what the target cannot express is refused, or left out with a remark.
        target: One of `TARGETS`.
        folder: New, or empty.

    Returns:
        Remarks: what the target does not do as the plan says.

    Raises:
        UnknownNameError: There is no such target.
        HeterpsError: The target cannot express the plan, or the folder cannot be written.
    """
    if target not in TARGETS:
        raise UnknownNameError("target", target, list(NAMES))
    found = TARGETS[target](problem, plan)
    misses = estimate(problem, plan).reasons
    with new_folder(folder) as written:
        for name, content in found.files.items():
            (written / name).write_text(content, encoding="utf-8")
    remarks = list(found.remarks)
    if plan.job.dtype == "tf32":
        call = "torch.set_float32_matmul_precision('high')"
        remarks.append(f"the plan counts on TF32, which you turn on: {call}")
    return (*remarks, *(f"the plan is not feasible: {text}" for text in misses))


def export_weights(
    problem: Problem, checkpoint: str | os.PathLike[str], folder: Path
) -> tuple[str, ...]:
    """Writes the weights of a checkpoint as `from_pretrained` reads them; see `write_weights`."""
    with new_folder(folder) as written:
        write_weights(checkpoint, problem.profile.source, written)
    return ()


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder that appears under its name when all is written.

    Raises:
        HeterpsError: There is something already, or no place to write.
    """
    try:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if folder.exists() or folder.is_symlink():
            raise HeterpsError(f"{folder}: is there already; name a new or an empty folder")
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise HeterpsError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
