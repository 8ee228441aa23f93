"""How stages are carried out, in words: degree, what is done with activations, sharded state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import workload


def way_text(plan: Plan, stage: Stage) -> str:
    """How a stage is carried out, where it is not one device that keeps all."""
    texts = [f"tensor parallel {stage.degree}"] if stage.degree > 1 else []
    if stage.uneven_shares:
        shares = " and ".join(f"{100 * share:.3g}" for share in stage.uneven_shares)
        texts = [f"{texts[0]} ({shares} %)"]
    if stage.whole_layers:
        texts.append(f"not split{_part(stage.whole_layers, stage)}")
    if stage.batch_layers:
        texts.append(f"split by batch{_part(stage.batch_layers, stage)}")
    if stage.recompute_layers:
        texts.append(f"recompute{_part(stage.recompute_layers, stage)}")
    if stage.offloaded_layers:
        texts.append(f"offload{_part(stage.offloaded_layers, stage)}")
    if stage.in_flight is not None:
        texts.append(f"{stage.in_flight} in flight")
    sharded = [layer for layer in stage.layers if layer in plan.sharded_layers]
    if sharded:
        texts.append(f"state sharded{_part(sharded, stage)}")
    return ", ".join(texts)


def _part(chosen: Sequence[int], stage: Stage) -> str:
    return "" if len(chosen) == len(stage.layers) else f" {len(chosen)} layers"


def plan_ways_text(plan: Plan) -> str:
    """The same of a whole plan; empty where each stage is one device that keeps all."""
    degrees, again, offloaded, sharded = plan_ways(plan)
    texts = []
    if degrees != "1":
        texts.append(f"tensor parallel {degrees.replace(', ', ' and ')}")
    texts += [
        name if part == "all" else f"{name} {part} layers"
        for name, part in (("recompute", again), ("offload", offloaded), ("state sharded", sharded))
        if part
    ]
    return ", ".join(texts)


def plan_ways(plan: Plan) -> tuple[str, str, str, str]:
    """Degrees, and which layers are computed again, offloaded, and have sharded state.

    Such as `1, 4`, `all`, `12 of 32`, or nothing.
    """
    degrees = sorted({stage.degree for stage in plan.stages})
    return (
        ", ".join(map(str, degrees)),
        _share(plan, (layer for stage in plan.stages for layer in stage.recompute_layers)),
        _share(plan, (layer for stage in plan.stages for layer in stage.offloaded_layers)),
        _share(plan, plan.sharded_layers),
    )


def _share(plan: Plan, layers: Iterable[int]) -> str:
    count = len(set(layers))
    if count == plan.num_layers:
        return "all"
    return f"{count} of {plan.num_layers}" if count else ""


def recompute_share(problem: Problem, plan: Plan) -> dict[str, float]:
    """For stages that compute layers again, the share of their backward pass."""
    shares, work = {}, workload(problem, plan)
    for stage in plan.stages:
        column = problem.for_stage(stage).tables.forward_s[:, problem.class_of[stage.devices[0]]]
        again_s = float(column[list(stage.recompute_layers)].sum())
        pass_s = work.stages[stage.name].backward_s
        if plan.job.schedule == "zero-bubble":
            pass_s -= work.stages[stage.name].weight_gradient_s
        if again_s > 0:
            shares[stage.name] = again_s / pass_s
    return shares
