"""torch.distributed.pipelining: a script with split points and the schedule.

Also torchtitan: its parallelism settings with the modules of each part, by the names that its own
models have.
"""

from __future__ import annotations

import json
import re

from heterps.exports import torch_script
from heterps.exports.formats import Exported
from heterps.exports.shape import blocks_of, blocks_of_stages, equal_chains, equal_degree
from heterps_configs.documents.model_profile import ModelSource
from heterps_configs.documents.plan import Plan, Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.specification.torch_plan import (
    check_expressible,
    devices_in_order,
    stage_names,
)

_SCHEDULES = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zero-bubble": "ScheduleInterleavedZeroBubble",
}
_TITAN_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "InterleavedZeroBubble",
}
# Decoders whose stack makes rotary tables for all its blocks, and takes embeddings, too.
_STACKS = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "olmo2", "phi3")


def to_torch_pipelining(problem: Problem, plan: Plan) -> Exported:
    """`train.py`, and `config.json` where the model is of Hugging Face.

    Raises:
        HeterpsError: torch's schedules cannot express the plan, stages share parameters, or nothing
            says how to build the model.
    """
    check_expressible(plan)
    source, layers = problem.profile.source, problem.profile.layers
    if source is None or source.target is None:
        raise HeterpsError(f"torch-pipelining: {problem.profile.name} does not say how it is built")
    if source.kind == "huggingface" and not _is_stack(source):
        raise HeterpsError(
            f"torch-pipelining: of Hugging Face's models {', '.join(_STACKS)} can be cut; others "
            "make masks or tables for all their blocks at once, which torch's stages cannot send "
            "(`heterps run` can)"
        )
    stages = [plan.stage(name) for name in stage_names(plan)]
    stage_of = {index: stage.name for stage in stages for index in stage.layers}
    for owner, users in problem.profile.tied_layers.items():
        apart = [user for user in users if stage_of[user] != stage_of[owner]]
        if apart:
            raise HeterpsError(
                f"torch-pipelining: {layers[owner].name} and {layers[apart[0]].name} share a "
                "parameter, on two stages of the plan; torch's stages would each have one of their "
                "own"
            )
    schedule, devices = plan.job.schedule, devices_in_order(plan)
    in_turns = schedule not in ("gpipe", "1f1b")
    script = torch_script.SCRIPT.format(
        model=_as_words(problem.profile.name),
        count=len(stages),
        size=len(devices),
        devices=_as_words(", ".join(devices)),
        schedule=_SCHEDULES[schedule],
        num_micro_batches=plan.job.num_micro_batches,
        micro_batch_size=plan.job.micro_batch_size,
        build=_build(source),
        entries=[(entry.shape, entry.num_classes) for entry in (*source.inputs, source.target)],
        names=[entry.name for entry in source.inputs],
        imports="PipelineStage" if _is_stack(source) else "SplitPoint, pipeline",
        stages=_stages(problem, stages, source),
        given="stages" if in_turns else "stages[0]",
    )
    files = {"train.py": script}
    if source.kind == "huggingface":
        files["config.json"] = json.dumps(source.config, indent=1) + "\n"
    return Exported(files, ("weights, data and optimizer of the script are examples",))


def _build(source: ModelSource) -> str:
    if source.kind == "huggingface":
        architecture = _as_path(source.architecture or "")
        return torch_script.BUILD_HUGGINGFACE.format(architecture=architecture)
    module, function = map(_as_path, (source.factory or ":").split(":", 1))
    return f"    from {module} import {function}\n\n    return {function}()"


def _as_words(text: str) -> str:
    """A name out of a document as a script may say it: nothing of it ends a text."""
    return re.sub(r"[^\w.,+ -]", "_", text)


def _as_path(text: str) -> str:
    """A path of Python out of a document, which becomes code of the script.

    Raises:
        HeterpsError: It is something else.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", text):
        raise HeterpsError(f"torch-pipelining: {text[:80]!r} is no name of a module or a function")
    return text


def _is_stack(source: ModelSource) -> bool:
    return (source.config or {}).get("model_type") in _STACKS


def _stages(problem: Problem, stages: list[Stage], source: ModelSource) -> str:
    """How the script cuts the model."""
    if _is_stack(source):
        blocks = blocks_of(problem.profile, "torch-pipelining")
        own = blocks_of_stages(tuple(stages), blocks)
        # A stage without blocks begins where the next one does.
        firsts = [sum(map(len, own[:index])) for index in range(len(own))]
        return torch_script.PARTS.format(
            firsts=firsts, stack=_as_path(blocks.stack.removesuffix(".layers"))
        )
    modules = [layer.name.split("+") for layer in problem.profile.layers]
    return torch_script.SPLIT.format(splits=[modules[s.first_layer][0] for s in stages[1:]])


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
    return Exported({"parallelism.json": json.dumps(fields, indent=1) + "\n"}, tuple(remarks))
