"""How much memory a plan really needs: executed in one process, without waiting for anything."""

from __future__ import annotations

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.process.memory_ledger import ActionMemory
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.specification.build import check_runnable


def peak_bytes(
    profile: ModelProfile,
    plan: Plan,
    cluster: Cluster,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> dict[str, MemoryReport]:
    """Executes two steps of a plan, the second under memory ledgers.

    For small models: all devices' parameters are in this process at once.

    Args:
        profile: With its source.
        plan: Whose action lists are executed, device by device in turn.
        cluster: What the plan was made for.
        schedule: The plan's action lists; by default `build_schedule(problem, plan)`.
        seed: Of the parameters and the data.

    Returns:
        The peak of each device, by kind. `MemoryReport.peak_bytes` is exact: what the run of
        processes measures, too.

    Raises:
        HeterpsError: The plan cannot be run.
    """
    measured = measure_memory(profile, plan, cluster, schedule=schedule, seed=seed)
    return {device: report for device, (report, _) in measured.items()}


def measure_memory(
    profile: ModelProfile,
    plan: Plan,
    cluster: Cluster,
    *,
    schedule: Schedule | None = None,
    seed: int = 0,
) -> dict[str, tuple[MemoryReport, list[ActionMemory]]]:
    """`peak_bytes`, and besides what each action of each device held, in the order executed."""
    problem = Problem(profile=profile, cluster=cluster, job=plan.job)
    check_runnable(problem, plan)
    run = LocalRun.of(problem, plan, schedule, seed)
    run.step()
    return {
        device: (step.report(), step.ledger.actions) for device, step in run.measured_step().items()
    }
