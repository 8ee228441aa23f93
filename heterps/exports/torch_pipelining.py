"""torch.distributed.pipelining: a script with split points and the schedule."""

from __future__ import annotations

import json

from heterps.exports import torch_script
from heterps.exports.formats import Exported
from heterps.exports.predicted import kept_texts
from heterps.exports.scripts import STACKS, as_path, as_words, is_stack, model_and_data
from heterps.exports.shape import blocks_of, blocks_of_stages
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
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
    if source.kind == "huggingface" and not is_stack(source):
        raise HeterpsError(
            f"torch-pipelining: of Hugging Face's models {', '.join(STACKS)} can be cut; others "
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
        model=as_words(problem.profile.name),
        count=len(stages),
        size=len(devices),
        devices=as_words(", ".join(devices)),
        schedule=_SCHEDULES[schedule],
        num_micro_batches=plan.job.num_micro_batches,
        micro_batch_size=plan.job.micro_batch_size,
        model_and_data=model_and_data(source, "torch-pipelining"),
        names=[entry.name for entry in source.inputs],
        imports="PipelineStage" if is_stack(source) else "SplitPoint, pipeline",
        stages=_stages(problem, stages, source),
        given="stages" if in_turns else "stages[0]",
    )
    files = {"train.py": script}
    if source.kind == "huggingface":
        files["config.json"] = json.dumps(source.config, indent=1) + "\n"
    examples = "weights, data and optimizer of the script are examples"
    return Exported(files, (examples, *kept_texts(problem, plan, recomputes=False)))


def _stages(problem: Problem, stages: list[Stage], source: ModelSource) -> str:
    """How the script cuts the model."""
    if is_stack(source):
        blocks = blocks_of(problem.profile, "torch-pipelining")
        own = blocks_of_stages(tuple(stages), blocks)
        # A stage without blocks begins where the next one does.
        firsts = [sum(map(len, own[:index])) for index in range(len(own))]
        return torch_script.PARTS.format(
            firsts=firsts, stack=as_path(blocks.stack.removesuffix(".layers"), "torch-pipelining")
        )
    modules = [layer.name.split("+") for layer in problem.profile.layers]
    return torch_script.SPLIT.format(splits=[modules[s.first_layer][0] for s in stages[1:]])
