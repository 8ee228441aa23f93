"""From a plan file back to its problem, with a check that they belong together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from heterps.planning.problems import load_model
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, PlanMismatchError
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
    with naming(path):
        return plan, problem_of_plan(plan, path.parent, model, cluster)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Says of what is wrong with a plan which file holds it.

    Args:
        path: The file.
    """
    try:
        yield
    except PlanMismatchError as error:
        raise PlanMismatchError(f"{path}: {error}") from None
    except _MovedError as error:
        raise HeterpsError(f"{path}: {error}") from None


class _MovedError(HeterpsError):
    """What a plan refers to cannot be read."""


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
    named_model, named_cluster = model, cluster
    model = model or _near(folder, plan.model_reference) or plan.model
    cluster = cluster or _near(folder, plan.cluster_reference) or plan.cluster
    with _told(None if named_model else "model"):
        profile = load_model(model)
    with _told(None if named_cluster else "cluster"):
        document = load_cluster(cluster)
    problem = Problem(
        profile=profile,
        cluster=document,
        job=plan.job,
        model_reference=model,
        cluster_reference=cluster,
    )
    check_plan(problem, plan)
    return problem


@contextmanager
def _told(kind: str | None) -> Iterator[None]:
    """Says of an error that the plan named the file, and which option names another one."""
    try:
        yield
    except HeterpsError as error:
        if kind is None:
            raise
        raise _MovedError(f"{kind}_reference: {error}; --{kind} names another one") from error


def _near(folder: Path, reference: str) -> str:
    """A reference as the plan's folder sees it: files saved beside the plan come first."""
    beside = folder / reference
    return str(beside) if reference and beside.is_file() else reference
