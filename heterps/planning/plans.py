"""From a plan file back to its problem, with a check that they belong together."""

from __future__ import annotations

from pathlib import Path

from heterps.planning.problems import load_model
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import PlanMismatchError
from heterps_configs.library import load_cluster, load_plan
from heterps_envs.closed_form.placement import check_plan
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
    try:
        return plan, problem_of_plan(plan, path.parent, model, cluster)
    except PlanMismatchError as error:
        raise PlanMismatchError(f"{path}: {error}") from None


def problem_of_plan(
    plan: Plan, folder: Path, model: str | None = None, cluster: str | None = None
) -> Problem:
    """The problem that a plan answers.

    Args:
        plan: The plan.
        folder: Where it was saved: files beside it come first.
        model: MODEL; by default the plan's own reference.
        cluster: Cluster; by default the plan's own reference.

    Raises:
        PlanMismatchError: The plan was made for another model or another cluster.
        HeterpsError: A file is missing or broken.
    """
    model = model or _near(folder, plan.model_reference) or plan.model
    cluster = cluster or _near(folder, plan.cluster_reference) or plan.cluster
    problem = Problem(
        profile=load_model(model),
        cluster=load_cluster(cluster),
        job=plan.job,
        model_reference=model,
        cluster_reference=cluster,
    )
    check_plan(problem, plan)
    return problem


def _near(folder: Path, reference: str) -> str:
    """A reference as the plan's folder sees it: files saved beside the plan come first."""
    beside = folder / reference
    return str(beside) if reference and beside.is_file() else reference
