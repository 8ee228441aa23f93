"""Figures of a plan: which share of a backward pass computes again."""

from __future__ import annotations

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.workload import workload


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
