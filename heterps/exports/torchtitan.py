"""torchtitan: its parallelism settings, modules of each part by the names of its own models."""

from __future__ import annotations

import json

from heterps.exports.formats import Exported
from heterps.exports.predicted import offload_texts
from heterps.exports.shape import blocks_of, blocks_of_stages, equal_chains, equal_degree
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

_TITAN_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}


def to_torchtitan(problem: Problem, plan: Plan) -> Exported:
    """`parallelism.json`: fields of its `ParallelismConfig`, modules by its models' names.

    Raises:
        HeterpsError: The plan is not what torchtitan can do.
    """
    chain = equal_chains(plan, "torchtitan")
    degree = equal_degree(chain, "torchtitan")
    blocks = blocks_of(problem.profile, "torchtitan")
    parts = [
        [f"layers.{number}" for number in own] for own in blocks_of_stages(chain.stages, blocks)
    ]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    fields = {
        "data_parallel_replicate_degree": chain.num_replicas,
        "data_parallel_shard_degree": 1,
        "tensor_parallel_degree": degree,
        "pipeline_parallel_degree": len({stage.devices for stage in chain.stages}),
        "pipeline_parallel_schedule": _TITAN_SCHEDULES[plan.job.schedule],
        "pipeline_parallel_microbatch_size": plan.job.micro_batch_size,
        "module_fqns_per_model_part": parts,
    }
    remarks = ["module names are those of torchtitan's own Llama"]
    if any(stage.recompute_layers for stage in chain.stages):
        remarks.append("its activation checkpointing is a setting of its own: mode 'full'")
    if plan.sharded_state:
        remarks.append("shared optimizer state is left out: it would shard parameters, too")
    remarks += offload_texts(problem, plan)
    return Exported({"parallelism.json": json.dumps(fields, indent=1) + "\n"}, tuple(remarks))
