"""A planner that uses all of a limit in time, and how the time is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from heterps_agents.interface.planner import Budget, Planner
from heterps_configs.documents.job import Job
from heterps_configs.documents.numbers import MOST_LATENCY_S
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

# Of a limit in time, for what is found in tenths of a second: without walks over devices among it,
# with them, and where these win most; and of what is left of that, for each way to find it.
QUICK_PART, QUICK_PART_WALKED, QUICK_PART_MOST, WAY_PART = 1 / 4, 3 / 8, 1 / 2, 1 / 2
# Of what is left then, for first plans: less where what goes on from quick ones wins more. The rest
# is for better ones.
FIRST_PART, FIRST_PART_OF_MANY, FIRST_PART_OF_SOME = 3 / 4, 1 / 2, 1 / 4
SOME_DEVICES = 24
# With so many devices a search takes long, and the policy's own part is a tenth of what the
# simulator takes for the choice.
MANY_DEVICES = 128
# Devices are far where the slowest link's latency is so large a part of what each of them computes
# of a micro-batch, if all shared it evenly.
FAR = 0.1
FEWEST_WALKED, MOST_FAR_DEVICES = 3, 64


def has_many_devices(problem: Problem) -> bool:
    """Whether walks win most, on many devices without options: these take a search longer."""
    return len(problem.cluster.devices) >= MANY_DEVICES and problem.strategy.is_plain


def is_walked(problem: Problem) -> bool:
    """Whether walks over devices are for a problem, where time is limited."""
    if not _is_usual(problem.job):
        return False
    if problem.by_each_node is None and len(problem.views) > 1:
        return False  # no table knows the links within a class
    return FEWEST_WALKED <= len(problem.cluster.devices) < MANY_DEVICES


def _is_usual(job: Job) -> bool:
    """Whether the clock knows the schedule, and its seconds are what counts."""
    return job.schedule == "1f1b" and job.objective == "throughput"


def has_far_devices(problem: Problem) -> bool:
    """Whether links decide so much of a step that walks over devices are for it in any case."""
    count = len(problem.cluster.devices)
    if not is_walked(problem) or count > MOST_FAR_DEVICES:
        return False
    latency_s = problem.links.by_node.latency_s
    slowest_s = float(latency_s[latency_s <= MOST_LATENCY_S].max(initial=0.0))
    seconds = problem.tables.forward_s + problem.tables.backward_s
    return slowest_s > FAR * float(np.min(seconds, axis=1).sum()) / count


def _is_scattered(problem: Problem) -> bool:
    """Whether devices are far, and no node has two of them: such stages hardly have replicas."""
    cluster = problem.cluster
    return len(cluster.nodes) == len(cluster.devices) and has_far_devices(problem)


def quick_part(problem: Problem) -> float:
    """Of a limit in time, for quick plans."""
    if not is_walked(problem):
        return QUICK_PART
    wins_most = len(problem.cluster.devices) >= SOME_DEVICES or _is_scattered(problem)
    return QUICK_PART_MOST if wins_most else QUICK_PART_WALKED


def first_part(problem: Problem) -> float:
    """Of the time that is left after quick plans, for first plans."""
    if has_many_devices(problem):
        return FIRST_PART_OF_MANY
    if _is_usual(problem.job) and len(problem.cluster.devices) >= SOME_DEVICES:
        return FIRST_PART_OF_SOME
    return FIRST_PART_OF_MANY if _is_scattered(problem) else FIRST_PART


@runtime_checkable
class PatientPlanner(Planner, Protocol):
    """A planner that uses all of a limit in time, if it is patient.

    Attributes:
        is_patient: Whether it does.
    """

    is_patient: bool

    def hurried(self, problem: Problem) -> Planner:
        """Who answers first, in little time."""
        ...

    def quick_ways(self, problem: Problem) -> tuple[str, ...]:
        """Names of what is asked first; each answers in tenths of a second."""
        ...

    def ending_ways(self, problem: Problem) -> tuple[str, ...]:
        """Those of them that take no more than a second or two without any limit."""
        ...

    def quick_plan(self, problem: Problem, budget: Budget, way: str) -> Plan | None:
        """What one of them answers; None where it has no plan that may be used."""
        ...

    def quick_plans(
        self, problems: Sequence[Problem], budget: Budget, way: str
    ) -> dict[int, Plan] | None:
        """The same of several problems at once; None where the way looks at one at a time."""
        ...

    def nearby(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one near it that is found in a tenth of a second."""
        ...

    def improved(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one, found with all the time of a budget."""
        ...

    def of_stage_sets(
        self, problem: Problem, like: Plan, below_s: float, budget: Budget
    ) -> Plan | None:
        """A plan of fewer seconds, of stages that the bound does not rule out; None: no such plan.

        Args:
            problem: What was asked, with another size of micro-batches than some known plan.
            like: That plan.
            below_s: The seconds.
            budget: Its end ends this.
        """
        ...


def is_search(planner: object) -> bool:
    """Whether a planner searches: others, as a rule or a proof, have one answer that stays.

    A planner says so by an attribute `is_search`, or `hands_over_finds`; a patient one is one.
    """
    says_so = (getattr(planner, name, False) for name in ("is_search", "hands_over_finds"))
    return isinstance(planner, PatientPlanner) or any(says_so)
