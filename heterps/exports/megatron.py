"""Megatron-LM: its arguments, with the layout of pipeline stages; and vLLM's, which are fewer."""

from __future__ import annotations

from heterps.exports.formats import Exported
from heterps.exports.predicted import kept_texts
from heterps.exports.shape import (
    Blocks,
    Chain,
    blocks_of,
    blocks_of_stages,
    check_micro_batches,
    devices_by_rank,
    equal_chains,
    equal_degree,
    pipeline_ranks,
)
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem


def to_megatron(problem: Problem, plan: Plan) -> Exported:
    """`arguments.txt`, one for each line, in the order of the documentation.

    Raises:
        HeterpsError: The plan is not what Megatron can do.
    """
    chain = equal_chains(plan, "megatron")
    degree = equal_degree(chain, "megatron")
    blocks = blocks_of(problem.profile, "megatron")
    job, size = plan.job, pipeline_ranks(chain, "megatron")
    check_micro_batches(plan, "megatron")
    arguments = {
        "--tensor-model-parallel-size": degree,
        "--pipeline-model-parallel-size": size,
        "--pipeline-model-parallel-layout": megatron_layout(chain, blocks),
        "--num-layers": len(blocks),
        "--micro-batch-size": job.micro_batch_size,
        "--global-batch-size": job.global_batch_size,
    }
    lines = [f"{name} {value}" for name, value in arguments.items()]
    remarks = []
    recomputed = sum(len(stage.recompute_layers) for stage in chain.stages)
    if recomputed:
        lines += ["--recompute-granularity full", "--recompute-method uniform",
                  "--recompute-num-layers 1"]  # fmt: skip
        if recomputed < problem.profile.num_layers:
            remarks.append(f"{recomputed} layers are recomputed in the plan, all of them by these")
    if plan.sharded_state:
        lines.append("--use-distributed-optimizer")
        if len(plan.sharded_layers) < plan.num_layers:
            number = len(plan.sharded_layers)
            remarks.append(f"the plan shares the optimizer state of {number} layers, this of all")
    own = "interleaved" if len(chain.stages) > size else "1f1b"
    if job.schedule != own:
        remarks.append(f"its schedule is {own} then, the plan's is {job.schedule}")
    remarks += kept_texts(problem, plan)
    remarks.append(f"ranks: {' '.join(devices_by_rank(plan))}")
    return Exported({"arguments.txt": "\n".join(lines) + "\n"}, tuple(remarks))


def to_vllm(problem: Problem, plan: Plan) -> Exported:
    """`environment.sh`: how many blocks each stage has; `config.yaml`: how many ranks.

    Raises:
        HeterpsError: The plan is not what vLLM can do.
    """
    chain = equal_chains(plan, "vllm")
    degree = equal_degree(chain, "vllm")
    numbers = blocks_of_stages(chain.stages, blocks_of(problem.profile, "vllm"))
    empty = [stage.name for stage, own in zip(chain.stages, numbers, strict=True) if not own]
    if empty:
        raise HeterpsError(f"vllm: stage {empty[0]} has no block; each of its stages has one")
    if pipeline_ranks(chain, "vllm") < len(chain.stages):
        raise HeterpsError("vllm: devices have several stages each; each of its ranks has one")
    counts = ",".join(str(len(own)) for own in numbers)
    sizes = {
        "tensor-parallel-size": degree,
        "pipeline-parallel-size": len(chain.stages),
        "data-parallel-size": chain.num_replicas,
    }
    return Exported(
        {
            "environment.sh": f"export VLLM_PP_LAYER_PARTITION={counts}\n",
            "config.yaml": "".join(f"{name}: {value}\n" for name, value in sizes.items()),
        },
        ("vLLM answers requests and trains nothing: the plan's step time says nothing of it",),
    )


def megatron_layout(chain: Chain, blocks: Blocks) -> str:
    """Stages from front to back: E embedding, t a block, L head and loss."""
    rows = []
    for stage, own in zip(chain.stages, blocks_of_stages(chain.stages, blocks), strict=True):
        first, last = stage is chain.stages[0], stage is chain.stages[-1]
        middle = f"t*{len(own)}" if len(own) > 1 else "t" * len(own)
        rows.append(("E" if first else "") + middle + ("L" if last else ""))
    return "|".join(rows)
