"""torchtitan: its parallelism settings, modules of each part by the names of its own models."""

from __future__ import annotations

import json

from heterps.exports.formats import Exported
from heterps.exports.predicted import kept_texts
from heterps.exports.shape import (
    Chain,
    blocks_of,
    blocks_of_stages,
    check_micro_batches,
    equal_chains,
    equal_degree,
    pipeline_ranks,
)
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}


def to_torchtitan(problem: Problem, plan: Plan) -> Exported:
    """`arguments.txt` for its command line; `parallelism.json`: fields of its `ParallelismConfig`.

    Raises:
        HeterpsError: The plan is not what torchtitan can do.
    """
    chain = equal_chains(plan, "torchtitan")
    check_micro_batches(plan, "torchtitan")
    if problem.profile.tied_layers and len(chain.stages) > 1:
        raise HeterpsError(
            "torchtitan: embedding and head share a parameter, which its pipelines cannot have"
        )
    fields = _parallelism(problem.profile, plan.job, chain)
    remarks = ["module names are those of torchtitan's own Llama; before 0.3, lm_head was output"]
    if any(stage.recompute_layers for stage in chain.stages):
        remarks.append("its activation checkpointing is a setting of its own: mode 'full'")
    if plan.sharded_state:
        remarks.append("shared optimizer state is left out: it would shard parameters, too")
    remarks += kept_texts(problem, plan)
    return Exported(
        {
            "arguments.txt": _arguments(fields, plan.job, chain),
            "parallelism.json": json.dumps(fields, indent=1) + "\n",
        },
        tuple(remarks),
    )


def _parallelism(profile: ModelProfile, job: Job, chain: Chain) -> dict[str, object]:
    """Fields of its class.

    Raises:
        HeterpsError: Its schedule cannot have the stages.
    """
    degree = equal_degree(chain, "torchtitan")
    size = pipeline_ranks(chain, "torchtitan")
    if job.schedule in ("gpipe", "1f1b") and size < len(chain.stages):
        raise HeterpsError(
            f"torchtitan: devices have several stages each; its {_SCHEDULES[job.schedule]} has one "
            "on each rank"
        )
    numbers = blocks_of_stages(chain.stages, blocks_of(profile, "torchtitan"))
    parts = [[f"layers.{number}" for number in own] for own in numbers]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {
        "data_parallel_replicate_degree": chain.num_replicas,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": degree,
        "pipeline_parallel_degree": size,
        "pipeline_parallel_schedule": _SCHEDULES[job.schedule],
        "pipeline_parallel_microbatch_size": job.micro_batch_size,
        "module_fqns_per_model_part": parts,
    }


def _arguments(fields: dict[str, object], job: Job, chain: Chain) -> str:
    """A list of lists is lists with commas, one behind the other."""
    lines = []
    for name, value in fields.items():
        text = " ".join(map(",".join, value)) if isinstance(value, list) else str(value)
        lines.append(f"--parallelism.{name} {text}")
    local = job.global_batch_size // chain.num_replicas
    lines.append(f"--training.local_batch_size {local}")
    lines.append(f"--training.global_batch_size {job.global_batch_size}")
    if len(chain.stages) > 1:
        # It records CUDA graphs unless it is told not to, and refuses to with pipelines.
        lines.append("--training.disable_cuda_graphs")
    return "\n".join(lines) + "\n"
