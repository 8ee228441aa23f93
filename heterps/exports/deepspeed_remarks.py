"""What DeepSpeed's pipeline does not do as a plan says, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator

from heterps.exports.predicted import cost_text, kept_texts, samples_per_s_of_deepspeed
from heterps.exports.shape import Chain, devices_by_rank
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem


def remarks(problem: Problem, plan: Plan, chain: Chain, has_script: bool) -> tuple[str, ...]:
    """In the order of their weight."""
    return tuple(
        text
        for part in (
            _speed(problem, plan),
            _script(plan, has_script),
            _state(plan, chain),
            kept_texts(problem, plan),
            (f"ranks: {' '.join(devices_by_rank(plan))}",),
        )
        for text in part
    )


def _speed(problem: Problem, plan: Plan) -> Iterator[str]:
    cost = cost_text(problem, plan, samples_per_s_of_deepspeed(problem, plan))
    if len(plan.pipelines[0].stages) == 1:
        yield f"DeepSpeed sums gradients after all passes: {cost}"
        return
    other = "" if plan.job.schedule == "1f1b" else f", not {plan.job.schedule}"
    yield (
        f"DeepSpeed's order is 1F1B{other}, its messages wait for the next pass the other way, and "
        f"gradients are summed after all passes: {cost}"
    )


def _script(plan: Plan, has_script: bool) -> Iterator[str]:
    if has_script:
        yield "weights and data of the script are examples"
        return
    yield "the model is no sequence of modules: there is no train.py, layers are left to you"
    again = sum(len(stage.recompute_layers) for stage in plan.stages) // len(plan.pipelines)
    if 0 < again < plan.num_layers:
        yield (
            f"{again} layers are recomputed in the plan (RECOMPUTED); ds_config.json alone "
            "recomputes all, checkpointable_layers says which classes"
        )


def _state(plan: Plan, chain: Chain) -> Iterator[str]:
    if chain.num_replicas == 1:
        return
    sharded = plan.sharded_layers
    if sharded and len(sharded) < plan.num_layers:
        yield f"the plan shares the optimizer state of {len(sharded)} layers; DeepSpeed that of all"
    elif not sharded and plan.job.dtype == "bfloat16":
        yield "its bfloat16 optimizer always shares its state among replicas; the plan does not"
