"""DeepSpeed: the partition of its pipeline, its config, and a script that trains.

Its own ways to partition balance numbers, parameters or types of layers. A plan's cuts are said by
a subclass, which is told them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heterps.exports import deepspeed_script
from heterps.exports.deepspeed_remarks import remarks
from heterps.exports.formats import Exported
from heterps.exports.scripts import as_path, as_words, is_stack, model_and_data
from heterps.exports.shape import (
    Chain,
    blocks_of,
    check_micro_batches,
    devices_by_rank,
    equal_chains,
)
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

if TYPE_CHECKING:
    from torch import nn

_OPTIMIZERS: Mapping[str, dict[str, Any]] = {
    "adamw": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "sgd": {"type": "SGD", "params": {"lr": 1e-3}},
    "sgd-momentum": {"type": "SGD", "params": {"lr": 1e-3, "momentum": 0.9}},
}
_FORMATS: Mapping[str, dict[str, Any]] = {
    "float32": {},
    "tf32": {},
    "float16": {"fp16": {"enabled": True}},
    "bfloat16": {"bf16": {"enabled": True}},
    "mixed-bfloat16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
}


def to_deepspeed(problem: Problem, plan: Plan) -> Exported:
    """`ds_config.json`, `partition.py`, and `train.py` where the model is a sequence of modules.

    Raises:
        HeterpsError: The plan is not what DeepSpeed's pipeline can do.
    """
    chain = _chain(plan)
    profile, source = problem.profile, problem.profile.source
    script = None if source is None else _modules(profile, source)
    names = [[layer.name] if script is None else layer.name.split("+") for layer in profile.layers]
    ends = [sum(map(len, names[: stage.last_layer + 1])) for stage in chain.stages]
    again = {layer for stage in chain.stages for layer in stage.recompute_layers}
    recomputed = [layer in again for layer, own in enumerate(names) for _ in own]
    partition = deepspeed_script.PARTITION.format(
        model=as_words(profile.name),
        count=len(chain.stages),
        layers=[as_words(name) for own in names for name in own],
        parts=[0, *ends],
        recomputed=[number for number, is_again in enumerate(recomputed) if is_again],
    )
    config = _config(plan.job, chain.num_replicas, bool(plan.sharded_state), bool(again))
    files = {"ds_config.json": json.dumps(config, indent=1) + "\n", "partition.py": partition}
    if script is not None and source is not None:
        files["train.py"] = _script(problem, plan, source, script)
        if source.kind == "huggingface":
            files["config.json"] = json.dumps(source.config, indent=1) + "\n"
    return Exported(files, remarks(problem, plan, chain, has_script=script is not None))


def _chain(plan: Plan) -> Chain:
    """The plan as equal chains of single devices.

    Raises:
        HeterpsError: It is something else.
    """
    chain = equal_chains(plan, "deepspeed")
    groups = [stage for stage in chain.stages if stage.degree > 1]
    if groups:
        raise HeterpsError(
            f"deepspeed: stage {groups[0].name} is split over {groups[0].degree} devices; layers "
            "of its pipeline are whole (`heterps place --tensor-parallel 1`)"
        )
    devices = [stage.devices[0] for stage in chain.stages]
    twice = [name for name in devices if devices.count(name) > 1]
    if twice:
        raise HeterpsError(
            f"deepspeed: {twice[0]} has {devices.count(twice[0])} stages; each of its ranks has one"
        )
    check_micro_batches(plan, "deepspeed")
    return chain


def _config(job: Job, num_replicas: int, shards_state: bool, recomputes: bool) -> dict[str, object]:
    found: dict[str, object] = {
        "train_batch_size": job.global_batch_size,
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": job.num_micro_batches // num_replicas,
        "optimizer": _OPTIMIZERS[job.optimizer],
        # Its default clips to a norm of 1.
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": int(shards_state)},
        **_FORMATS[job.dtype],
    }
    if recomputes:
        found["pipeline"] = {"activation_checkpoint_interval": 1, "use_reentrant": False}
    return found


def _modules(profile: ModelProfile, source: ModelSource) -> str | None:
    """How a script takes the model apart; None: it is no sequence of modules with one input."""
    if source.target is None or len(source.inputs) != 1:
        return None
    if source.kind == "huggingface":
        if not is_stack(source) or not profile.layers[-1].name.endswith("norm+lm_head"):
            return None
        stack = blocks_of(profile, "deepspeed").stack.removesuffix(".layers")
        return deepspeed_script.STACK.format(stack=as_path(stack, "deepspeed"))
    names = [name for layer in profile.layers for name in layer.name.split("+")]
    return deepspeed_script.SEQUENCE if names == _children(source) else None


def _children(source: ModelSource) -> list[str] | None:
    """Names of the modules of a plain sequence."""
    from torch import nn

    from heterps_runtime.models.build import build_module

    module: nn.Module = build_module(source)
    return [name for name, _ in module.named_children()] if type(module) is nn.Sequential else None


def _script(problem: Problem, plan: Plan, source: ModelSource, modules: str) -> str:
    is_tied = bool(problem.profile.tied_layers)
    last = problem.profile.num_layers - 1
    # DeepSpeed calls the head of a tied model by a `partial`.
    computes_again = any(last in stage.recompute_layers for stage in plan.stages)
    devices = devices_by_rank(plan)
    return deepspeed_script.SCRIPT.format(
        model=as_words(problem.profile.name),
        count=len(plan.pipelines[0].stages),
        size=len(devices),
        devices=as_words(", ".join(devices)),
        model_and_data=model_and_data(source, "deepspeed"),
        modules=modules,
        specifications=deepspeed_script.TIED if is_tied else deepspeed_script.APART,
        partial=', "partial"' if is_tied and computes_again else "",
    )
