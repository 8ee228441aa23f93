"""From a plan file back to its problem, with a check that they belong together."""

from __future__ import annotations

from pathlib import Path

from heterps_configs.library import load_cluster, load_plan

from heterps.problems import load_model
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_configs.plan import Plan
from heterps_envs.problem import Problem


def load_plan_and_problem(
    path: Path, model: str | None = None, cluster: str | None = None
) -> tuple[Plan, Problem]:
    """Reads a plan and the problem that it answers.

    Args:
        path: The plan file.
        model: MODEL; by default the plan's own reference.
        cluster: Cluster; by default the plan's own reference.

    Raises:
        PlanMismatchError: The plan was made for another model or another cluster.
        HeterpsError: A file is missing or broken.
    """
    plan = load_plan(str(path))
    model = model or plan.model_reference or plan.model
    cluster = cluster or plan.cluster_reference or plan.cluster
    problem = Problem(
        profile=load_model(model),
        cluster=load_cluster(cluster),
        job=plan.job,
        model_reference=model,
        cluster_reference=cluster,
    )
    check_plan(plan, problem, str(path))
    return plan, problem


def check_plan(plan: Plan, problem: Problem, source: str) -> None:
    """Refuses a plan that does not belong to the problem.

    Raises:
        PlanMismatchError: Names what differs.
    """
    profile = problem.profile
    if plan.num_layers != profile.num_layers or (
        plan.model_fingerprint != profile.layers_fingerprint()
    ):
        raise PlanMismatchError(
            f"{source}: the plan was made for {plan.model!r} with {plan.num_layers} layers; "
            f"{problem.model_reference!r} has {profile.num_layers} layers "
            f"and fingerprint {profile.layers_fingerprint()} (the plan's: {plan.model_fingerprint})"
        )
    known = {device.name for device in problem.cluster.devices}
    foreign = [name for name in plan.devices if name not in known]
    if foreign:
        raise PlanMismatchError(
            f"{source}: the cluster {problem.cluster.name!r} has no device "
            f"{', '.join(map(repr, foreign))}; it has {', '.join(sorted(known))}"
        )
    if any(len(stage.devices) > 1 for stage in plan.stages):
        raise HeterpsError(f"{source}: tensor-parallel groups cannot be simulated or run yet")
